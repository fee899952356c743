"""GGUF value and tensor types: the numbers of the format, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

STRING, ARRAY = 8, 9


@dataclass(frozen=True)
class Scalar:
    kind: str
    dtype: np.dtype[Any]


SCALARS = {
    0: Scalar("int", np.dtype("u1")),
    1: Scalar("int", np.dtype("i1")),
    2: Scalar("int", np.dtype("<u2")),
    3: Scalar("int", np.dtype("<i2")),
    4: Scalar("int", np.dtype("<u4")),
    5: Scalar("int", np.dtype("<i4")),
    6: Scalar("float", np.dtype("<f4")),
    7: Scalar("bool", np.dtype("u1")),
    10: Scalar("int", np.dtype("<u8")),
    11: Scalar("int", np.dtype("<i8")),
    12: Scalar("float", np.dtype("<f8")),
}
U32, F32_VALUE, U64 = 4, 6, 10


@dataclass(frozen=True)
class Value:
    """kind: int, float, bool, string, or ints, floats, bools (numpy arrays), strings (list of bytes)."""

    kind: str
    data: Any


@dataclass(frozen=True)
class Block:
    name: str
    elements: int
    bytes: int


F32, F16, Q8_0, Q4_K, I8, BF16 = 0, 1, 8, 12, 24, 30

# ggml tensor types that occur in files: elements and bytes of one block
TYPES = {
    0: Block("F32", 1, 4),
    1: Block("F16", 1, 2),
    2: Block("Q4_0", 32, 18),
    3: Block("Q4_1", 32, 20),
    6: Block("Q5_0", 32, 22),
    7: Block("Q5_1", 32, 24),
    8: Block("Q8_0", 32, 34),
    10: Block("Q2_K", 256, 84),
    11: Block("Q3_K", 256, 110),
    12: Block("Q4_K", 256, 144),
    13: Block("Q5_K", 256, 176),
    14: Block("Q6_K", 256, 210),
    16: Block("IQ2_XXS", 256, 66),
    17: Block("IQ2_XS", 256, 74),
    18: Block("IQ3_XXS", 256, 98),
    19: Block("IQ1_S", 256, 50),
    20: Block("IQ4_NL", 32, 18),
    21: Block("IQ3_S", 256, 110),
    22: Block("IQ2_S", 256, 82),
    23: Block("IQ4_XS", 256, 136),
    24: Block("I8", 1, 1),
    25: Block("I16", 1, 2),
    26: Block("I32", 1, 4),
    27: Block("I64", 1, 8),
    28: Block("F64", 1, 8),
    29: Block("IQ1_M", 256, 56),
    30: Block("BF16", 1, 2),
    34: Block("TQ1_0", 256, 54),
    35: Block("TQ2_0", 256, 66),
    39: Block("MXFP4", 32, 17),
    40: Block("NVFP4", 64, 36),
    41: Block("Q1_0", 128, 18),
}
