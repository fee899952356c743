"""Number forms of the maps: bfloat16 bits, the int8 rule, and its exact transcription to Q8_0.

The int8 rule, for each output row and each group of 128 inputs (the last group may be short), in float32:
amax = max |w|; s = bf16(amax / 127), or 1 for a group of zeros; code = clamp(round_half_even(w / s), -127, 127).
The division is by the rounded scale, so |w / s| can pass 127: hence the clamp. |w - code * s| <= s / 2 unless clamped.
A group whose scale would round to zero (amax under about 5.8e-39) counts as a group of zeros.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

GROUP = 128  # inputs per scale
BLOCK = 32  # inputs per scale of Q8_0; every input width is a multiple of it
Q8_0_BYTES = 2 + BLOCK

U16 = npt.NDArray[np.uint16]
F32 = npt.NDArray[np.float32]
I8 = npt.NDArray[np.int8]
U8 = npt.NDArray[np.uint8]


def bf16_to_f32(bits: U16) -> F32:
    """Exact value of bfloat16 bits, any shape."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(value: F32) -> U16:
    """bfloat16 bits, round to nearest, ties to even; NaN stays NaN."""
    value = np.ascontiguousarray(value, dtype=np.float32)
    bits = value.view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
    nan = np.isnan(value)
    if nan.any():
        rounded = np.where(nan, np.uint16(0x7FC0), rounded)
    return rounded


def n_groups(n_in: int) -> int:
    return -(-n_in // GROUP)


def quantize(weight: U16, rows_per_step: int = 256) -> tuple[I8, U16]:
    """codes int8 [n_out, n_in] and scale bf16 bits [n_out, ceil(n_in / 128)] of a bf16 weight [n_out, n_in].

    All weights must be finite. Memory beyond the result stays at a few float32 copies of `rows_per_step` rows.
    """
    n_out, n_in = weight.shape
    codes = np.empty((n_out, n_in), np.int8)
    scale = np.empty((n_out, n_groups(n_in)), np.uint16)
    for begin in range(0, n_out, rows_per_step):
        rows = slice(begin, min(begin + rows_per_step, n_out))
        _quantize_rows(bf16_to_f32(weight[rows]), codes[rows], scale[rows])
    return codes, scale


def _quantize_rows(w: F32, codes: I8, scale: U16) -> None:
    n_rows, n_in = w.shape
    starts = np.arange(0, n_in, GROUP)
    amax = np.maximum.reduceat(np.abs(w), starts, axis=1)
    bits = f32_to_bf16(np.divide(amax, 127, dtype=np.float32))
    bits[bits == 0] = np.uint16(0x3F80)  # 1.0
    scale[:] = bits
    s = bf16_to_f32(bits)
    whole = n_in - n_in % GROUP
    if whole:
        q = w[:, :whole].reshape(n_rows, -1, GROUP) / s[:, : whole // GROUP, None]
        codes[:, :whole] = _to_codes(q).reshape(n_rows, whole)
    if whole < n_in:
        codes[:, whole:] = _to_codes(w[:, whole:] / s[:, -1:])


def _to_codes(q: F32) -> I8:
    np.rint(q, out=q)
    np.clip(q, -127, 127, out=q)
    return q.astype(np.int8)


def spread(scale: F32, n_in: int) -> F32:
    """Scales [n_out, groups] repeated to one per input [n_out, n_in]."""
    return np.repeat(scale, GROUP, axis=1)[:, :n_in]


def dequantize(codes: I8, scale: U16) -> F32:
    """code * scale in float32 [n_out, n_in], exact (7 and 8 significant bits) but for infinity past float32's range."""
    with np.errstate(over="ignore"):
        return codes.astype(np.float32) * spread(bf16_to_f32(scale), codes.shape[1])


def worst_error(weight: U16, codes: I8, scale: U16, rows_per_step: int = 256) -> float:
    """max |w - code * scale| over max |w|; 0 for a map of zeros."""
    worst = peak = 0.0
    for begin in range(0, weight.shape[0], rows_per_step):
        rows = slice(begin, begin + rows_per_step)
        w = bf16_to_f32(weight[rows])
        peak = max(peak, float(np.abs(w).max(initial=0)))
        worst = max(worst, float(np.abs(w - dequantize(codes[rows], scale[rows])).max(initial=0)))
    return worst / peak if peak else 0.0


def fits_q8_0(scale: U16) -> npt.NDArray[np.bool_]:
    """Which scales float16 holds exactly: all from 2^-17 to 65504, and powers of two and the like below."""
    value = bf16_to_f32(scale)
    with np.errstate(over="ignore"):
        return value.astype(np.float16).astype(np.float32) == value


def to_q8_0(codes: I8, scale: U16) -> U8:
    """Bytes of the Q8_0 tensor [n_out, n_in / 32 * 34]: codes copied, each scale repeated for its four blocks.

    Exact where `fits_q8_0` holds; n_in is a multiple of 32.
    """
    n_out, n_in = codes.shape
    blocks = n_in // BLOCK
    out = np.empty((n_out, blocks, Q8_0_BYTES), np.uint8)
    with np.errstate(over="ignore"):
        half = bf16_to_f32(scale).astype("<f2")
    per_block = np.ascontiguousarray(np.repeat(half, GROUP // BLOCK, axis=1)[:, :blocks])
    out[:, :, :2] = per_block.view(np.uint8).reshape(n_out, blocks, 2)
    out[:, :, 2:] = codes.view(np.uint8).reshape(n_out, blocks, BLOCK)
    return out.reshape(n_out, blocks * Q8_0_BYTES)


def from_q8_0(data: U8, n_in: int) -> F32:
    """float32 values [n_out, n_in] of Q8_0 bytes [n_out, n_in / 32 * 34]."""
    n_out = data.shape[0]
    blocks = data.reshape(n_out, n_in // BLOCK, Q8_0_BYTES)
    half = np.ascontiguousarray(blocks[:, :, :2]).view("<f2").astype(np.float32)
    codes = blocks[:, :, 2:].view(np.int8).astype(np.float32)
    return (codes * half).reshape(n_out, n_in)
