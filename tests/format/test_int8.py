"""The int8 rule against an independent statement of it in Python floats (float64), and its exact transcription."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from ridgefill_cpp import int8


def bf16_round(x: float) -> int:
    """Nearest bfloat16 bits, ties to even, of a non-negative float64: chosen among all, by distance."""
    low = struct.unpack("<I", struct.pack("<f", np.float32(x)))[0] >> 16
    around = [b for b in (low - 1, low, low + 1) if 0 <= b < 0x7F80]
    return min(around, key=lambda b: (abs(value(b) - x), b & 1))


def value(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])


def rule(row: list[float]) -> tuple[list[int], list[int]]:
    """Codes and scale bits of one output row."""
    codes, scales = [], []
    for begin in range(0, len(row), 128):
        group = row[begin : begin + 128]
        amax = max(abs(w) for w in group)
        bits = bf16_round(amax / 127) or 0x3F80
        scales.append(bits)
        codes += [max(-127, min(127, round(w / value(bits)))) for w in group]
    return codes, scales


def rows_of_all_kinds(n_in: int) -> np.ndarray:
    """bf16 bits [rows, n_in]: random at many sizes, zeros, subnormal, huge, ties."""
    rng = np.random.default_rng(5)
    rows = [rng.normal(size=n_in) * 10.0**e for e in (-38, -30, -12, -4, -1, 0, 3, 20, 37)]
    rows += [rng.normal(size=n_in) * np.exp(rng.normal(size=n_in) * 4) for _ in range(20)]
    rows += [np.zeros(n_in), np.where(np.arange(n_in) == 3, 1.0, 0.0), np.where(np.arange(n_in) < 128, 0.0, 1.0)]
    rows += [np.full(n_in, s * 2.0**-133) for s in (1, 64, 127, 128, 255)]  # bf16 subnormals
    rows += [np.full(n_in, 3.3895e38), np.where(np.arange(n_in) % 2, 3.3895e38, -1e-40)]
    # ties: scale exactly 1, 2 and 0.25, so that halves fall on the tie
    for scale in (1.0, 2.0, 0.25):
        halves = (np.arange(n_in) % 253 - 126) / 2
        rows.append(np.where(np.arange(n_in) % 128 == 0, 127.0, halves) * scale)
    return int8.f32_to_bf16(np.array(rows, np.float32))


@pytest.mark.parametrize("n_in", [128, 256, 576, 32])
def test_rule(n_in: int) -> None:
    bits = rows_of_all_kinds(n_in)
    codes, scale = int8.quantize(bits, rows_per_step=7)
    for row in range(len(bits)):
        wanted = rule([value(int(b)) for b in bits[row]])
        assert (codes[row].tolist(), scale[row].tolist()) == wanted, row


def test_rule_on_every_scale() -> None:
    """Every positive finite bf16 as the largest weight of a group, beside a weight of half a step more than a code."""
    amax = np.arange(1, 0x7F80, dtype=np.uint16)
    rows = np.zeros((len(amax), 128), np.uint16)
    rows[:, 0] = amax
    rows[:, 1] = int8.f32_to_bf16(int8.bf16_to_f32(amax) * np.float32(0.5))
    rows[:, 2] = int8.f32_to_bf16(int8.bf16_to_f32(amax) * np.float32(-0.3))
    codes, scale = int8.quantize(rows)
    for row in range(len(rows)):
        wanted = rule([value(int(b)) for b in rows[row, :3]])
        assert (codes[row, :3].tolist(), scale[row].tolist()) == wanted, hex(int(amax[row]))
    assert not codes[:, 3:].any()


def test_rule_on_every_quotient() -> None:
    """Every pair of mantissas, a weight within eight binary orders of the largest one: rounding is right everywhere."""
    small = np.arange(0x3F80 - 8 * 128, 0x3F80 + 128, dtype=np.uint16)
    for largest in range(0x3F80, 0x4000):
        group = np.full((len(small) // 127 + 1, 128), largest, np.uint16)
        group[:, 1:].flat[: len(small)] = np.minimum(small, np.uint16(largest))
        codes, scale = int8.quantize(group)
        s = value(int(scale[0, 0]))
        w = int8.bf16_to_f32(group).astype(np.float64)
        assert (scale == bf16_round(value(largest) / 127)).all()
        assert (codes == np.clip(np.rint(w / s), -127, 127)).all(), largest


def test_ties_go_to_even() -> None:
    row = np.zeros((1, 128), np.float32)
    row[0, :6] = 127, 0.5, 1.5, 2.5, -0.5, -1.5
    codes, scale = int8.quantize(int8.f32_to_bf16(row))
    assert int8.bf16_to_f32(scale).tolist() == [[1.0]]
    assert codes[0, :6].tolist() == [127, 0, 2, 2, 0, -2]


def test_half_step_bound_and_clamp() -> None:
    bits = int8.f32_to_bf16(np.random.default_rng(1).normal(size=(400, 576)).astype(np.float32))
    codes, scale = int8.quantize(bits)
    w, s = int8.bf16_to_f32(bits), int8.spread(int8.bf16_to_f32(scale), 576)
    assert (np.abs(w - int8.dequantize(codes, scale)) <= s / 2).all()
    assert codes.min() >= -127 and codes.max() <= 127
    assert 0 < int8.worst_error(bits, codes, scale) < 0.005


def test_bf16_rounding() -> None:
    rng = np.random.default_rng(2)
    values = np.abs(rng.normal(size=2000) * 10.0 ** rng.integers(-40, 38, 2000)).astype(np.float32)
    ties = np.array([0x3F808000, 0x3F818000, 0x00008000, 0x00018000, 0x7F7F7FFF], np.uint32).view(np.float32)
    values = np.concatenate([values, ties])
    assert int8.f32_to_bf16(values).tolist() == [bf16_round(float(v)) for v in values]
    assert math.isnan(int8.bf16_to_f32(int8.f32_to_bf16(np.array([np.nan], np.float32)))[0])


def test_bf16_round_trip() -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    finite = every[(every & 0x7F80) != 0x7F80]
    assert (int8.f32_to_bf16(int8.bf16_to_f32(finite)) == finite).all()


@pytest.mark.parametrize("n_in", [128, 576, 32])
def test_q8_0_is_exact(n_in: int) -> None:
    rng = np.random.default_rng(4)
    codes = rng.integers(-127, 128, (50, n_in), dtype=np.int8)
    scale = int8.f32_to_bf16((2.0 ** rng.uniform(-17, 15, (50, int8.n_groups(n_in)))).astype(np.float32))
    assert int8.fits_q8_0(scale).all()
    data = int8.to_q8_0(codes, scale)
    assert data.shape == (50, n_in // 32 * 34)
    assert (int8.from_q8_0(data, n_in) == int8.dequantize(codes, scale)).all()


def test_q8_0_agrees_with_gguf_package() -> None:
    from gguf import quants

    rng = np.random.default_rng(4)
    codes = rng.integers(-127, 128, (8, 576), dtype=np.int8)
    scale = int8.f32_to_bf16(rng.uniform(1e-3, 1, (8, 5)).astype(np.float32))
    theirs = quants.Q8_0.dequantize_rows(int8.to_q8_0(codes, scale))
    assert (theirs == int8.dequantize(codes, scale)).all()


def test_which_scales_fit() -> None:
    """Every bf16 from 2^-17 to 65504 fits float16; below, those with few enough bits."""
    every = np.arange(1, 0x7F80, dtype=np.uint16)
    size = int8.bf16_to_f32(every)
    fits = int8.fits_q8_0(every)
    assert fits[(size >= 2.0**-17) & (size <= 65504)].all()
    assert not fits[size > 65504].any()
    assert not int8.fits_q8_0(int8.f32_to_bf16(np.array([1.9921875 * 2.0**-18], np.float32))).any()
    assert int8.fits_q8_0(int8.f32_to_bf16(np.array([2.0**-20], np.float32))).all()
