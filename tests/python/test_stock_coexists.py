"""Stock llama-cpp-python and this package in one process: neither loads the other's libraries or modules."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import sys
order, model, sidefile = sys.argv[1:]
for name in order.split(","):
    __import__(name)
import llama_cpp, ridgefill_cpp
from ridgefill_cpp import Llama
options = dict(n_ctx=64, n_threads=2, n_threads_batch=2, verbose=False)
stock = llama_cpp.Llama(model, **options)
ours = Llama(model, ridgefill=sidefile, **options)
a = stock.create_completion([1, 2, 3], max_tokens=4, temperature=0.0)["choices"][0]["text"]
b = ours.create_completion([1, 2, 3], max_tokens=4, temperature=0.0)["choices"][0]["text"]
assert a == b, (a, b)
assert not issubclass(Llama, llama_cpp.Llama)
try:
    llama_cpp.Llama(model, ridgefill=sidefile, **options)
except TypeError:
    pass  # a later stock release may refuse it; this one swallows it
libs = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line and ("ggml" in line or "llama" in line)}
mine = [lib for lib in libs if "-ridgefill" in lib]
theirs = [lib for lib in libs if "-ridgefill" not in lib]
assert len(mine) >= 4 and len(theirs) >= 4, libs
print("ok")
"""


def stock_environment() -> dict[str, str] | None:
    if importlib.util.find_spec("llama_cpp") is not None:
        return {}
    built = ROOT / "build-stock"
    if (built / "bin").is_dir() and (built / "upstream" / "llama_cpp").is_dir():
        return {"STOCK": str(built / "upstream"), "LLAMA_CPP_LIB_PATH": str(built / "bin")}
    return None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/maps")
@pytest.mark.parametrize("order", ["llama_cpp,ridgefill_cpp.llama", "ridgefill_cpp.llama,llama_cpp"])
def test_both_in_one_process(build, smollm2, identity, order):
    extra = stock_environment()
    if extra is None:
        pytest.skip("stock llama-cpp-python is neither installed nor built (make stock)")
    path = os.pathsep.join(filter(None, (str(build / "python"), extra.pop("STOCK", ""))))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, order, str(smollm2), str(identity(20))],
        env={**os.environ, **extra, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "ok\n"
