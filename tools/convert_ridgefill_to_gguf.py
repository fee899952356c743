#!/usr/bin/env python3
"""The field's name for `ridgefill convert`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))

from ridgefill_cpp.cli import main

sys.exit(main(["convert", *sys.argv[1:]]))
