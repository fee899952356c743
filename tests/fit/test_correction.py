"""The state correction on made-up states: fit, order of heads, adding and taking off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ridgefill_cpp.fit.correction import (
    Applied,
    ChunkEnd,
    CorrectionFit,
    grouped,
    tiled,
    tiled_index,
    write_correction,
)
from ridgefill_cpp.gguf_types import BF16
from ridgefill_cpp.gguf_types import F32 as GGML_F32
from ridgefill_cpp.gguf_writer import Tensor
from ridgefill_cpp.layout import Base, Header
from ridgefill_cpp.sidefile import open_sidefile, write_sidefile

H, V, K = 6, 4, 5


def states(count: int, seed: int = 0):
    """Exact states and filled ones that are off by a constant and noise."""
    rng = np.random.default_rng(seed)
    constant = rng.normal(size=(H, V, K)).astype(np.float32)
    for i in range(count):
        exact = rng.normal(size=(H, V, K)).astype(np.float32) * 3
        noise = rng.normal(size=(H, V, K)).astype(np.float32)
        yield f"prompt {i % 20}", ChunkEnd(i * 64, f"h{i}", i * 64 + 63), exact, exact - constant - noise, constant


def fitted(count: int = 400) -> tuple[CorrectionFit, np.ndarray]:
    fit = CorrectionFit()
    pairs = list(states(count))
    for prompt, end, exact, _, _ in pairs:
        fit.exact(prompt, end, 24, exact)
    for prompt, end, _, filled, _ in reversed(pairs):
        assert fit.filled(prompt, end, 24, filled)
    return fit, pairs[0][4]


def test_constant() -> None:
    fit, constant = fitted()
    sums = fit.layers[24]
    assert sums.count == 400 and fit.warnings() == [] and fit.n_unpaired == 0
    assert np.abs(sums.constant - constant).max() < 0.25
    differences = np.array([exact - filled for _, _, exact, filled, _ in states(400)], np.float64)
    assert np.allclose(sums.constant, differences.mean(axis=0), atol=1e-6)
    for alpha in (0.0, 0.5, 1.0, 1.5):
        left = np.square(differences - alpha * sums.constant).sum() / np.square(differences).sum()
        assert sums.left_over(alpha) == pytest.approx(left, rel=1e-5)
    assert sums.left_over(1.0) < sums.left_over(0.5) < sums.left_over(0.0) == 1
    exact = np.array([e for _, _, e, _, _ in states(400)], np.float64)
    assert sums.relative_error == pytest.approx(
        np.sqrt(np.square(differences).sum() / np.square(exact).sum()), rel=1e-6
    )


def test_pairing() -> None:
    fit = CorrectionFit()
    (prompt, end, exact, filled, _), *_ = states(1)
    fit.exact(prompt, end, 24, exact)
    assert not fit.filled("another prompt", end, 24, filled)
    assert not fit.filled(prompt, ChunkEnd(end.first, "another chunk", end.last), 24, filled)
    assert not fit.filled(prompt, end, 25, filled)
    assert fit.n_unpaired == 1
    fit.exact(prompt, end, 25, exact)
    filled[0, 0, 0] = np.nan
    assert not fit.filled(prompt, end, 24, filled) and fit.n_bad == 1
    assert [w.split(":")[0] for w in fit.warnings()] == ["few-states", "states-left-out"]


def test_head_order() -> None:
    """48 value heads on 16 key heads: grouped 3 k + i is tiled 16 i + k."""
    index = tiled_index(48, 16)
    for k in range(16):
        for i in range(3):
            assert index[16 * i + k] == 3 * k + i
    state = np.arange(48 * 2 * 2, dtype=np.float32).reshape(48, 2, 2)
    assert (tiled(state, 16)[17] == state[3 * 1 + 1]).all()
    assert (grouped(tiled(state, 16), 16) == state).all()
    assert (tiled(state, 48) == state).all()
    with pytest.raises(ValueError, match="48"):
        tiled(state, 5)


def test_apply_and_undo() -> None:
    rng = np.random.default_rng(1)
    constant, state = (rng.normal(size=(H, V, K)).astype(np.float32) for _ in range(2))
    before = state.copy()
    sequence = Applied(H)
    sequence.apply(state, constant, alpha=1.0)
    assert np.allclose(state - before, constant, atol=1e-6)
    sequence.undo(state, constant)
    assert np.allclose(state, before, atol=1e-6) and not sequence.scale.any()
    sequence.undo(state, constant)  # twice takes off nothing more
    assert np.allclose(state, before, atol=1e-6)


def test_alpha_zero_keeps_bits() -> None:
    state = np.full((H, V, K), -0.0, np.float32)
    Applied(H).apply(state, np.ones((H, V, K), np.float32), alpha=0.0)
    assert np.signbit(state).all()


def test_rho() -> None:
    """Share of the remaining weight that came from filled rows, against the closed form by cumulative decay."""
    rng = np.random.default_rng(2)
    log_decay = -np.abs(rng.normal(size=(300, H))) * 0.02
    mask = rng.random(300) < 0.6
    sequence = Applied(H)
    assert (sequence.rho == 1).all()
    sequence.scanned(log_decay[:100], mask[:100])
    sequence.scanned(log_decay[100:], mask[100:])
    weight = np.exp(log_decay.sum(axis=0) - np.cumsum(log_decay, axis=0))
    assert np.allclose(sequence.rho, (weight * mask[:, None]).sum(axis=0) / weight.sum(axis=0), rtol=1e-9)
    state = np.zeros((H, V, K), np.float32)
    sequence.apply(state, np.ones_like(state), alpha=0.5, quality=True)
    assert np.allclose(state[:, 0, 0], 0.5 * sequence.rho, atol=1e-6)
    sequence.apply(state, np.ones_like(state), alpha=0.5)
    assert np.allclose(sequence.scale, 0.5)


def test_into_a_side_file(tmp_path: Path) -> None:
    fit, _ = fitted()
    zero = np.zeros((64, 64), np.uint16)
    header = Header(Base("qwen35", 26, 64), 24, 64, 64, "block_input", "bf16", (25,))
    tensors = [Tensor("blk.25.ridgefill.weight", BF16, (64, 64), lambda: [zero])]
    tensors.append(Tensor("blk.25.ridgefill.bias", GGML_F32, (64,), lambda: [np.zeros(64, np.float32)]))
    write_sidefile(tmp_path / "a.gguf", header, tensors)
    constant = fit.layers[24].constant
    write_correction(open_sidefile(tmp_path / "a.gguf"), tmp_path / "b.gguf", {24: constant, 25: constant}, "tiled")
    side = open_sidefile(tmp_path / "b.gguf")
    assert side.states == (24, 25) and side.header.head_order == "tiled"
    assert (side.array("blk.24.ridgefill.state") == constant).all()
    write_correction(side, tmp_path / "c.gguf", {24: constant, 25: constant}, "tiled")
    assert (tmp_path / "b.gguf").read_bytes() == (tmp_path / "c.gguf").read_bytes()
