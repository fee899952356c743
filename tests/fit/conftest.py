"""Tests of the fit; those that capture from a model need a build, the others nothing."""

import sys
from pathlib import Path

if not any((Path(folder) / "ridgefill_cpp" / "__init__.py").exists() for folder in sys.path if folder):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from ridgefill_cpp.fit.blas import limit_blas

# small matrices: threads would only wait for each other, and sums of other thread counts have other last bits
assert limit_blas(1)
