"""Mode off, and a context without a projector, give the logits of a pristine build of the same pin, bit for bit.

The pristine libraries come from `make stock` (build-stock/bin), or from the folder that RIDGEFILL_STOCK_LIBS names.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = [("on", "f16"), ("off", "f16"), ("on", "q8_0")]


@pytest.fixture(scope="module")
def stock_env(build: Path) -> dict[str, str]:
    libs = Path(os.environ.get("RIDGEFILL_STOCK_LIBS", ROOT / "build-stock" / "bin"))
    if not list(libs.glob("*llama.*")):
        pytest.skip(f"no pristine llama library in {libs}; run: make stock, or set RIDGEFILL_STOCK_LIBS")
    classes = next((p for p in (ROOT / "build-stock" / "upstream", build / "upstream") if p.is_dir()), None)
    return {"PYTHONPATH": str(classes), "LLAMA_CPP_LIB_PATH": str(libs)}


def logits(who: str, env: dict[str, str], model: Path, out: Path, setting: tuple[str, str], *side: Path) -> np.ndarray:
    command = [sys.executable, str(Path(__file__).with_name("logits.py")), who, str(model), str(out), *setting]
    run = subprocess.run([*command, *map(str, side)], env={**os.environ, **env}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    return np.load(out)


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_off_equals_stock(name: str, request, build: Path, stock_env: dict[str, str], tmp_path: Path) -> None:
    from ridgefill_cpp._arms import write_identity
    from ridgefill_cpp.base import base_of

    model = request.getfixturevalue(name)
    side = tmp_path / "identity.gguf"
    write_identity(side, base_of(model), 6)
    ours = {"PYTHONPATH": str(build / "python")}
    seen = []
    for setting in SETTINGS:
        stock = logits("stock", stock_env, model, tmp_path / "stock.npy", setting)
        assert np.isfinite(stock).all() and stock.std() > 0.1
        assert np.array_equal(stock, logits("plain", ours, model, tmp_path / "plain.npy", setting))
        assert np.array_equal(stock, logits("off", ours, model, tmp_path / "off.npy", setting, side))
        seen.append(stock)
    # bit equality has power: another attention kernel or cache type shows
    assert not np.array_equal(seen[0], seen[1]) and not np.array_equal(seen[0], seen[2])


def test_stock_is_stock(stock_env: dict[str, str]) -> None:
    code = "from llama_cpp import llama_cpp as c; print(hasattr(c._lib, 'llama_ridgefill_abi'), c._lib._name)"
    run = subprocess.run([sys.executable, "-c", code], env={**os.environ, **stock_env}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    ours, path = run.stdout.split(maxsplit=1)
    assert ours == "False" and Path(path.strip()).resolve().is_relative_to(
        Path(stock_env["LLAMA_CPP_LIB_PATH"]).resolve()
    )
