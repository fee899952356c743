"""The checks of a side file, in the order of the table in docs/format.md."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np

from .errors import RidgefillError
from .gguf_reader import TensorInfo, read_gguf
from .gguf_types import BF16, F32, TYPES
from .int8 import GROUP, bf16_to_f32
from .layout import (
    ARCHITECTURE,
    ENCODINGS,
    FINAL_BIAS,
    FINAL_WEIGHT,
    HEAD_ORDERS,
    LAYER_TENSOR,
    MAX_LAYERS,
    MAX_WIDTH,
    SCORE,
    TARGETS,
    VERSION,
    WIDTH_STEP,
    Base,
    Credit,
    Fit,
    Header,
    layer_tensor,
    map_parts,
)


class Checks:
    """One file under test. `warnings` collects what does not refuse, each "<code>: <text>"."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.gguf = read_gguf(path)
        self.warnings: list[str] = []

    def fail(self, code: str, item: str, found: object, allowed: object, hint: str = "") -> RidgefillError:
        return RidgefillError(code, self.gguf.path, item, found, allowed, hint)

    # keys

    def get(self, name: str, kind: str, required: bool = True) -> Any:
        value = self.gguf.keys.get(name)
        if value is None:
            if required:
                raise self.fail("key-missing", name, "no such key", f"a key of kind {kind}")
            return None
        if value.kind != kind:
            raise self.fail("key-type", name, f"kind {value.kind}", f"kind {kind}")
        return value.data

    def word(self, code: str, name: str, allowed: tuple[str, ...]) -> str:
        value: str = self.get(name, "string")
        if value not in allowed:
            raise self.fail(code, name, value, ", ".join(allowed))
        return value

    def number(self, code: str, name: str, low: int, high: int, step: int = 1, required: bool = True) -> Any:
        value = self.get(name, "int", required)
        if value is not None and (not low <= value <= high or value % step):
            raise self.fail(code, name, value, f"{low} .. {high}" + (f", a multiple of {step}" if step > 1 else ""))
        return value

    def header(self, base: Base | None) -> Header:
        """All keys and the tensor table; `base` holds the keys of the model to compare with."""
        found = self.gguf.keys.get("general.architecture")
        if found is None or found.kind != "string" or found.data != ARCHITECTURE:
            what = "no such key" if found is None else found.data
            raise self.fail(
                "not-ridgefill", "general.architecture", what, ARCHITECTURE, "this is another kind of GGUF file"
            )
        self.number("version", "ridgefill.version", VERSION, VERSION)
        encoding = self.word("encoding", "ridgefill.encoding", ENCODINGS)
        target = self.word("target", "ridgefill.target", TARGETS)
        self.number("group-size", "ridgefill.group_size", GROUP, GROUP)
        own = self.base(base)
        split = self.number("split-range", "ridgefill.split", 1, own.block_count - 1)
        width = own.embedding_length
        n_in = self.number("source-width", "ridgefill.source_width", WIDTH_STEP, MAX_WIDTH, WIDTH_STEP)
        if n_in % width:
            raise self.fail("source-width", "ridgefill.source_width", n_in, f"a multiple of embedding_length {width}")
        n_out = self.number("target-width", "ridgefill.target_width", WIDTH_STEP, MAX_WIDTH, WIDTH_STEP)
        layers = self.tensors(encoding, own, split, n_in, n_out)
        return Header(
            own, split, n_in, n_out, target, encoding, layers, self.credit(), self.fit(), GROUP,
            self.get("ridgefill.state.head_order", "string", False) or "",
            self.get("ridgefill.manifest", "string", False) or "",
        )  # fmt: skip

    def base(self, model: Base | None) -> Base:
        prefix = "ridgefill.base."
        own = Base(
            self.get(prefix + "architecture", "string"),
            self.number("base-layers", prefix + "block_count", 2, MAX_LAYERS),
            self.number("base-width", prefix + "embedding_length", WIDTH_STEP, MAX_WIDTH, WIDTH_STEP),
            self.number("base-vocab", prefix + "vocab_size", 1, 1 << 31, required=False),
            self.get(prefix + "name", "string", False),
            self.get(prefix + "tokenizer_sha256", "string", False),
        )
        digest = own.tokenizer_sha256
        if model is not None:
            for code, field in (
                ("base-architecture", "architecture"),
                ("base-layers", "block_count"),
                ("base-width", "embedding_length"),
                ("base-vocab", "vocab_size"),
                ("tokenizer", "tokenizer_sha256"),
            ):
                mine, theirs = getattr(own, field), getattr(model, field)
                if mine is not None and theirs is not None and mine != theirs:
                    hint = "the side file was made for another model"
                    raise self.fail(code, prefix + field, mine, f"{theirs} (the model's)", hint)
            if own.name and model.name and own.name != model.name:
                self.warnings.append(f"base-name: made for {own.name!r}, the model is {model.name!r}")
        if digest is None:
            self.warnings.append("tokenizer-unchecked: the file has no tokenizer hash")
        elif not re.fullmatch("[0-9a-f]{64}", digest):
            raise self.fail("tokenizer", prefix + "tokenizer_sha256", digest, "64 hex digits")
        if own.vocab_size is None:
            self.warnings.append("vocab-unchecked: the file has no vocabulary size")
        return own

    def credit(self) -> Credit:
        return Credit(
            *(self.get(f"general.{key}", "string", False) or "" for key in ("name", "author", "license", "doi"))
        )

    def fit(self) -> Fit:
        def array(name: str, kind: str) -> tuple[Any, ...]:
            data = self.get("ridgefill.fit." + name, kind, False)
            return () if data is None else tuple(data.tolist())

        def one(name: str, kind: str) -> Any:
            return self.get("ridgefill.fit." + name, kind, False)

        return Fit(
            rows=one("rows", "int"),
            head=one("head", "int"),
            layers=array("layers", "ints"),
            lambdas=array("lambda", "floats"),
            cosine=array("cosine", "floats"),
            r2=array("r2", "floats"),
            condition=array("condition", "floats"),
            text_sha256=one("text_sha256", "string") or "",
            context=one("context", "int"),
            stride=one("stride", "int"),
            prior=one("prior", "string") or "",
            held_rows=one("held_rows", "int"),
            dropped_rows=one("dropped_rows", "int"),
            chat_share=one("chat_share", "float"),
        )

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
            if (data == 0x80).any():
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
