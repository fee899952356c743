"""The checks of a side file's tensors and their values, in the order of the table in docs/format.md."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np

from .gguf_reader import TensorInfo, read_gguf
from .gguf_types import BF16, F32, TYPES
from .int8 import bf16_to_f32
from .key_checks import KeyChecks
from .layout import (
    FINAL_BIAS,
    FINAL_WEIGHT,
    HEAD_ORDERS,
    LAYER_TENSOR,
    SCORE,
    Base,
    Header,
    layer_tensor,
    map_parts,
)


class Checks(KeyChecks):
    """One file under test."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.gguf = read_gguf(path)
        super().__init__(self.gguf.path, self.gguf.keys)

    def header(self, base: Base | None) -> Header:
        """All keys and the tensor table; `base` holds the keys of the model to compare with."""
        keys = super().header(base)
        layers = self.tensors(keys.encoding, keys.base, keys.split, keys.source_width, keys.target_width)
        return replace(keys, layers=layers)

    # tensors

    def tensors(self, encoding: str, base: Base, split: int, n_in: int, n_out: int) -> tuple[int, ...]:
        parts = map_parts(encoding, n_in, n_out)
        layers: dict[int, list[str]] = {}
        for name in self.gguf.tensors:
            match = LAYER_TENSOR.fullmatch(name)
            if match and (match[2] in parts or match[2] == "state"):
                layers.setdefault(int(match[1]), []).append(match[2])
            elif name not in (SCORE, FINAL_WEIGHT, FINAL_BIAS):
                raise self.fail("tensor-unknown", name, "the name", f"names of encoding {encoding}, see docs/format.md")
        for layer in layers:
            if not split <= layer < base.block_count:
                raise self.fail(
                    "layer-range", layer_tensor(layer, layers[layer][0]), layer, f"{split} .. {base.block_count - 1}"
                )
        if self.gguf.twice:
            raise self.fail("layer-twice", self.gguf.twice[0], "the name twice", "each tensor once")
        mapped = {layer: [part for part in found if part in parts] for layer, found in layers.items()}
        for layer in range(split + 1, base.block_count):
            if not mapped.get(layer):
                what = ", ".join(map(str, sorted(n for n, found in mapped.items() if found))) or "none"
                raise self.fail(
                    "layer-missing", f"blk.{layer}", f"maps of layers {what}", f"{split + 1} .. {base.block_count - 1}"
                )
        for layer, found in sorted(mapped.items()):
            for part in parts if found else ():
                if part not in found:
                    raise self.fail(
                        "tensor-missing", layer_tensor(layer, part), "no such tensor", "all of " + ", ".join(parts)
                    )
        if (FINAL_WEIGHT in self.gguf.tensors) != (FINAL_BIAS in self.gguf.tensors):
            raise self.fail("tensor-missing", "ridgefill.final", "one of weight, bias", "both or none")
        self.shapes(parts, base, n_in)
        return tuple(sorted(layer for layer, found in mapped.items() if found))

    def shapes(self, parts: dict[str, tuple[int, tuple[int, ...]]], base: Base, n_in: int) -> None:
        fixed = {FINAL_WEIGHT: (BF16, (n_in, n_in)), FINAL_BIAS: (F32, (n_in,))}
        state_shape: tuple[int, ...] | None = None
        for name, info in self.gguf.tensors.items():
            match = LAYER_TENSOR.fullmatch(name)
            if match and match[2] == "state":
                state_shape = state_shape or info.ne
                self.shape(info, F32, state_shape, len(info.ne) == 3)
                order = self.get("ridgefill.state.head_order", "string")
                if order not in HEAD_ORDERS:
                    raise self.fail("state-order", "ridgefill.state.head_order", order, ", ".join(HEAD_ORDERS))
                kind = (base.layer_kinds or "")[int(match[1]) : int(match[1]) + 1]
                if kind not in ("", "r"):
                    raise self.fail("state-layer", name, f"layer kind {kind!r}", "'r', a recurrent layer")
            elif match:
                self.shape(info, *parts[match[2]])
            elif name == SCORE:
                self.shape(info, F32, info.ne if base.vocab_size is None else (base.vocab_size,), len(info.ne) == 1)
            else:
                self.shape(info, *fixed[name])

    def shape(self, info: TensorInfo, kind: int, ne: tuple[int, ...], rank_ok: bool = True) -> None:
        if info.type != kind:
            raise self.fail("tensor-type", info.name, info.type_name, TYPES[kind].name)
        if info.ne != ne or not rank_ok:
            raise self.fail("tensor-shape", info.name, list(info.ne), list(ne) if rank_ok else "another rank")

    # values

    def values(self, header: Header) -> None:
        """Every number of the maps: one pass over the file in pieces of a few MiB."""
        for name in self.gguf.tensors:
            part = name.rpartition(".")[2]
            for piece in self.gguf.chunks(name):
                self.piece(name, part, header.encoding, piece)

    def piece(self, name: str, part: str, encoding: str, data: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        if part == "codes":
            if data.view(np.int8).min() == -128:
                raise self.fail("code-value", name, -128, "-127 .. 127")
        elif part == "scale":
            bits = data.view(np.uint16)
            if (bits - np.uint16(1) >= 0x7F7F).any():  # 1 .. 0x7F7F are the positive finite numbers
                bad = bf16_to_f32(bits[bits - np.uint16(1) >= 0x7F7F][:1])[0]
                raise self.fail("scale-value", name, bad, "a finite number above 0")
        elif part in ("bias", "state"):
            values = data.view(np.float32)
            if not np.isfinite(values).all():
                code = "bias-value" if part == "bias" else "state-value"
                raise self.fail(code, name, values[~np.isfinite(values)][0], "finite numbers")
        elif part == "score":
            if not (data.view(np.float32) < np.inf).all():
                raise self.fail("score-value", name, "NaN or +inf", "finite numbers and -inf")
        elif encoding == "bf16" or name == FINAL_WEIGHT:
            if ((data.view(np.uint16) & 0x7F80) == 0x7F80).any():
                raise self.fail("weight-value", name, "NaN or infinity", "finite numbers")
        elif encoding == "q8_0":
            blocks = data.reshape(-1, 34)
            half = np.ascontiguousarray(blocks[:, :2]).view(np.float16)
            if not np.isfinite(half).all():
                raise self.fail("weight-value", name, "a scale of NaN or infinity", "finite numbers")
