"""The op on activations of a real model: the stream entering a late layer has channels far larger than the others."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from ridgefill_cpp.fit.capture import Capture

TEXT = "A measured cost stands beside every gain: what was filled, what was exact, and what it did to the answer. " * 40


@pytest.mark.parametrize("split", [10, 20])
def test_real_activations(build: Path, smollm2: Path, tmp_path: Path, split: int) -> None:
    with Capture(smollm2, split, "layer_input", (29,), 256, threads=2) as rows:
        x = rows.run(rows.tokenize(TEXT)[:256])[0].copy()
    x = x[16:]  # maps never see the first rows, and their sinks are another kind of outlier
    x.astype("<f4").tofile(tmp_path / "x.bin")
    program = build / "bin" / "ridgefill-test-backend-ridgefill"
    done = subprocess.run(
        [program, "test", "-b", "CPU", "-x", f"{tmp_path / 'x.bin'}:{x.shape[1]}"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "240 rows of a file" in done.stdout
    peak = np.abs(x).max(axis=1) / np.sqrt((x**2).mean(axis=1))
    assert np.median(peak) > 8  # otherwise this test says nothing about outliers
