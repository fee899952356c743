"""Flash-Next's real dimensions (seeds, not real maps): sizes to the byte, time against a copy, memory.

Half a minute, and 4 GB of disk while it runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from ridgefill_cpp.safetensors_io import write_safetensors
from toys import META, new, write_manifest

ROOM = 4 << 30
N, W, SPLIT, LAYERS, VOCAB = 2560, 10240, 24, 48, 248320
CREDIT = {"name": "n" * 36, "authors": "a" * 30, "license": "Apache-2.0", "doi": "10.5281/zenodo.23890247"}
RUN = """
import re, sys
from pathlib import Path
from ridgefill_cpp.cli import main
status = main(sys.argv[1:])
# not ru_maxrss: that keeps the peak of the process that forked this one
print("peak", re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
sys.exit(status)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    work = tmp_path_factory.mktemp("full")
    if (free := shutil.disk_usage(work).free) < ROOM:
        pytest.skip(f"{free >> 20} MB free in {work}, needed for files of full size: {ROOM >> 20} MB")
    yield make_folder(work / "flash-next")
    shutil.rmtree(work)


def make_folder(path: Path) -> Path:
    path.mkdir()
    rng = np.random.default_rng(1)
    metadata = {"format": "ridgefill-projector-1", **CREDIT}
    for layer in range(SPLIT, LAYERS):
        codes = rng.integers(-127, 128, (N, W), dtype=np.int8)
        scale = rng.integers(0x3A00, 0x3C00, (N, W // 128), dtype=np.uint16)
        bias = rng.integers(0x3A00, 0x3C00, N, dtype=np.uint16)
        tensors = [("codes", "I8", codes), ("scale", "BF16", scale), ("bias", "BF16", bias)]
        maps = [new(f"proj.{layer}.{part}", dtype, data) for part, dtype, data in tensors]
        write_safetensors(path / f"proj8.L{layer}.safetensors", metadata, maps)
    late = [layer for layer in range(SPLIT, LAYERS) if layer % 4 != 3]
    states = [new(f"st.{layer}", "F32", rng.random((48, 128, 128), dtype=np.float32)) for layer in late]
    write_safetensors(path / "correction.safetensors", metadata, states)
    tables = {"score": rng.random(VOCAB), "score_none": np.full(VOCAB, -np.inf), "score_all": np.zeros(VOCAB)}
    scores = [new(name, "F32", data.astype(np.float32)) for name, data in tables.items()]
    write_safetensors(path / "rowsel.safetensors", metadata, scores)
    kinds = {str(layer): "recurrent" if layer in late else "full_attn" for layer in range(SPLIT, LAYERS)}
    manifest = {"format": 1, **CREDIT, "authors": [CREDIT["authors"]], "adapter": "qwen4exp", "split": SPLIT}
    manifest |= {"model": {"arch_id": "qwen4exp", "meta": {**META, "n_embd": str(N), "n_vocab": str(VOCAB)}}}
    manifest |= {"stream_width": W, "block_in_width": N, "layers": kinds, "projector": {"dtype": "i8"}}
    write_manifest(path, manifest)
    return path


def ridgefill(*args: object) -> float:
    """Runs one command in a process of its own; returns its peak memory in MB."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", RUN, *map(str, args)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split("peak ")[1]) / 1024


def test_sizes(folder: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert {sizes[f"proj8.L{layer}.safetensors"] for layer in range(SPLIT, LAYERS)} == {26_629_560}
    assert sizes["correction.safetensors"] == 56_624_736 and sizes["rowsel.safetensors"] == 2_980_272


def test_convert_and_back(folder: Path) -> None:
    work = folder.parent
    copies, converts, peaks = [], [], []
    for turn in range(3):  # by turns, so that a slow moment of the disk meets both
        copies.append(timed(lambda turn=turn: shutil.copytree(folder, work / f"copy{turn}", copy_function=plain_copy)))
        shutil.rmtree(work / f"copy{turn}")
        converts.append(timed(lambda: peaks.append(ridgefill("convert", folder, "-o", work / "a.gguf", "--force"))))
    copy, convert = (tuple(map(median, zip(*times, strict=True))) for times in (copies, converts))
    # figures, not a condition: a busy disk would decide (docs/results/formats-and-fit.csv has quiet ones)
    print(f"copy {copy[0]:.2f} s ({copy[1]:.2f} s on disk), convert {convert[0]:.2f} s ({convert[1]:.2f} s on disk)")
    print(f"peak {max(peaks):.0f} MB")
    assert max(peaks) < 300
    assert ridgefill("inspect", work / "a.gguf", "--source", folder) < 300
    assert ridgefill("export", work / "a.gguf", "-o", work / "back") < 300
    ridgefill("convert", work / "back", "-o", work / "b.gguf")
    assert subprocess.run(["cmp", work / "a.gguf", work / "b.gguf"]).returncode == 0
    for path in folder.glob("*.safetensors"):
        assert subprocess.run(["cmp", path, work / "back" / path.name]).returncode == 0


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Seconds until it returns, and until what it wrote is on the disk."""
    os.sync()
    begin = time.perf_counter()
    action()
    done = time.perf_counter()
    os.sync()
    return done - begin, time.perf_counter() - begin


def plain_copy(source: str, target: str) -> None:
    """A copy that moves the bytes, which a reflink would not."""
    with open(source, "rb") as a, open(target, "wb") as b:
        shutil.copyfileobj(a, b, 8 << 20)
