"""What every test may ask for: the build, the programs, the real models, the stock libraries. Needs `make build`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("RIDGEFILL_BUILD", ROOT / "build"))
sys.path.insert(0, str(ROOT / "tools"))
if "ridgefill_cpp" not in sys.modules and str(BUILD / "python") not in sys.path:
    sys.path.insert(0, str(BUILD / "python"))

import models  # noqa: E402  (lives in tools/)


@pytest.fixture(scope="session")
def build() -> Path:
    assert (BUILD / "python" / "ridgefill_cpp").is_dir(), f"{BUILD}: nothing built here; run: make build"
    return BUILD


@pytest.fixture(scope="session")
def program(build: Path):
    """The path of a built program: program("llama-server")."""

    def find(name: str) -> Path:
        path = build / "bin" / name
        assert path.is_file(), f"{path} not built; run: make build"
        return path

    return find


@pytest.fixture(scope="session")
def tiny_hybrid() -> Path:
    """A small trained hybrid with texts beside it (calib/, held-long/), where somebody has put them."""
    path = Path(os.environ.get("RIDGEFILL_SHARED", ROOT.parent / "shared")) / "models" / "tiny-hybrid-q8_0.gguf"
    if not path.is_file():
        pytest.skip(f"{path}: no trained hybrid here; no registry has one, so it cannot be fetched")
    return path


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return models.get("smollm2")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    return models.get("gemma3-270m")
