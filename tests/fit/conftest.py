"""Tests of the fit; those that capture from a model need a build, the others nothing."""

import sys
from pathlib import Path

if not any((Path(folder) / "ridgefill_cpp" / "__init__.py").exists() for folder in sys.path if folder):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import pytest
from ridgefill_cpp.fit.blas import limit_blas


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Sums of other thread counts have other last bits, and a fit sets the count of its process for good."""
    assert limit_blas(1)
