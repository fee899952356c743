"""One bf16 map as the tensors of a side file, in any encoding."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from . import int8
from .int8 import F32, I8, U16

Parts = dict[str, npt.NDArray[Any]]


class InexactScale(ValueError):
    """A scale that float16 cannot hold; `value` is the smallest one."""

    def __init__(self, value: float) -> None:
        self.value = value
        super().__init__(f"scale {value:.3g} is no float16 number")


def from_bf16(weight: U16, bias: F32, encoding: str) -> Parts:
    """Tensors by part name. Raises InexactScale for q8_0 when a scale would be rounded."""
    if encoding == "bf16":
        return {"weight": weight, "bias": bias}
    return from_codes(*int8.quantize(weight), bias, encoding)


def from_codes(codes: I8, scale: U16, bias: F32, encoding: str) -> Parts:
    """The same from codes and scale: i8 and q8_0 lose nothing, bf16 rounds code times scale."""
    if encoding == "i8":
        return {"codes": codes, "scale": scale, "bias": bias}
    if encoding == "bf16":
        return {"weight": int8.f32_to_bf16(int8.dequantize(codes, scale)), "bias": bias}
    inexact = ~int8.fits_q8_0(scale)
    if inexact.any():
        raise InexactScale(float(int8.bf16_to_f32(scale[inexact]).min()))
    return {"weight": int8.to_q8_0(codes, scale), "bias": bias}


def value_of(parts: Parts, n_in: int) -> F32:
    """What the tensors state, float32 [n_out, n_in]."""
    if "codes" in parts:
        return int8.dequantize(parts["codes"], parts["scale"])
    weight = parts["weight"]
    return int8.from_q8_0(weight, n_in) if weight.dtype == np.uint8 else int8.bf16_to_f32(weight)
