"""`python -m ridgefill_cpp` is the `ridgefill` command."""

import sys

from .cli import main

sys.exit(main())
