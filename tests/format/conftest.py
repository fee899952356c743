"""Tests of the side file, the published forms and the commands on them; they need no build."""

import sys
from pathlib import Path

if not any((Path(folder) / "ridgefill_cpp" / "__init__.py").exists() for folder in sys.path if folder):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
