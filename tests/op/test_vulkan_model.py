"""A filled prompt over Vulkan against the same on the CPU, on a tiny random llama. Needs a build with all of upstream's
shaders, minutes more than test_vulkan.py needs, so it runs only where somebody made one:

make build BUILD=build-vk CMAKE_ARGS=-DGGML_VULKAN=ON
RIDGEFILL_BUILD=build-vk make pytest BUILD=build-vk ARGS=tests/op/test_vulkan_model.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from _e2e.random_files import write_maps, write_model
from _e2e.shapes import SHAPES
from ridgefill_cpp import _capi
from ridgefill_cpp._session import Session

N_PROMPT, N_DECODE, TAIL, HEAD, UBATCH = 512, 4, 64, 16, 256


def decode(where: str, folder: Path) -> None:
    """Runs the prompt without and with the fill, one after the other in one context, and writes the logits."""
    ids = np.random.default_rng(3).integers(0, SHAPES["tiny"]().number("vocab_size"), N_PROMPT + N_DECODE)
    model, maps, n_ctx = folder / "model.gguf", folder / "maps.gguf", len(ids)
    layers = 0 if where == "cpu" else 99
    with Session(model, n_ctx, n_batch=UBATCH, n_ubatch=UBATCH, gpu_layers=layers, verbose=True) as session:
        session.attach(session.load(maps), _capi.llama_ridgefill_params(_capi.MODE_SPEED, TAIL, HEAD, 0))
        for name, mode in (("stock", _capi.MODE_OFF), ("fill", _capi.MODE_SPEED)):
            params = _capi.llama_ridgefill_params(mode, TAIL, HEAD, 0)
            rows = session.decode(ids, range(N_PROMPT - 8, len(ids)), params=params, n_prompt=N_PROMPT)
            np.save(folder / f"{where}-{name}.npy", np.concatenate([logits.copy() for _, logits in rows]))
            print(f"{name}: {session.counts().n_filled} filled")


def run(where: str, folder: Path, **variables: str) -> str:
    """The child's output. A process for each device: on the CPU no other may be there, or large products go to it."""
    env = {name: value for name, value in os.environ.items() if name != "GGML_VK_VISIBLE_DEVICES"}
    env |= {"PYTHONPATH": os.pathsep.join(sys.path), **variables}
    done = subprocess.run([sys.executable, __file__, where, str(folder)], env=env, capture_output=True, text=True)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text[-4000:]
    assert f"fill: {N_PROMPT - TAIL - HEAD} filled" in text, text[-4000:]
    return text


def nmse(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(((found - wanted) ** 2).sum() / (wanted**2).sum())


@pytest.mark.parametrize("weights", ["q8_0", "bf16"])
def test_fill_equals_cpu(build: Path, tmp_path: Path, weights: str) -> None:
    if not (build / "bin" / "libggml-vulkan-ridgefill.so").is_file():
        pytest.skip(f"{build} has no Vulkan backend; how to make one is said in {Path(__file__).name}")
    write_model(tmp_path / "model.gguf", SHAPES["tiny"](), weights)
    write_maps(tmp_path / "maps.gguf", SHAPES["tiny"]())
    assert "Vulkan0 model buffer size" not in run("cpu", tmp_path, GGML_VK_VISIBLE_DEVICES="")
    text = run("vulkan", tmp_path, GGML_VK_VISIBLE_DEVICES="0", GGML_RIDGEFILL_VULKAN="plain")
    assert "Vulkan0 model buffer size" in text, text[-4000:]
    assert "ridgefill: ridgefill_mul" in text, "the op did not run on the device"
    logits = {path.stem: np.load(path) for path in tmp_path.glob("*.npy")}
    for name in ("stock", "fill"):
        assert nmse(logits[f"vulkan-{name}"], logits[f"cpu-{name}"]) < 1e-3
    # the fill itself is far coarser, so the above says that it filled with the same rows
    assert nmse(logits["cpu-fill"], logits["cpu-stock"]) > 1e-2


if __name__ == "__main__":
    decode(sys.argv[1], Path(sys.argv[2]))
