"""The side file: reading with every check of docs/format.md, and deterministic writing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import anchors, int8
from .base import base_of_gguf
from .gguf_reader import GgufFile
from .gguf_types import Value
from .gguf_writer import Key, Tensor, write_gguf
from .key_checks import KeyChecks
from .layout import ARCHITECTURE, FINAL_WEIGHT, SCORE, VERSION, Base, Header, layer_tensor
from .sidefile_checks import Checks

F32 = npt.NDArray[np.float32]


class SideFile:
    """An open side file that passed its checks. Tensors are read when asked for; nothing stays in memory."""

    def __init__(self, gguf: GgufFile, header: Header, warnings: list[str]) -> None:
        self.gguf = gguf
        self.header = header
        self.warnings = warnings

    @property
    def path(self) -> Path:
        return self.gguf.path

    def has(self, name: str) -> bool:
        return name in self.gguf.tensors

    def array(self, name: str) -> npt.NDArray[Any]:
        """A tensor as rows of values: int8, bf16 bits (uint16), float32, or raw Q8_0 bytes."""
        info = self.gguf.tensors[name]
        forms: dict[str, Any] = {"I8": np.int8, "BF16": np.uint16, "F32": np.float32}
        data = self.gguf.read(name)
        if info.type_name == "Q8_0":
            return data.reshape(info.ne[1], -1)
        return data.view(forms[info.type_name]).reshape(info.ne[::-1])

    def weight(self, layer: int) -> F32:
        """The map's matrix as the file states it, float32 [n_out, n_in]."""
        encoding = self.header.encoding
        if encoding == "i8":
            return int8.dequantize(self.array(layer_tensor(layer, "codes")), self.array(layer_tensor(layer, "scale")))
        data = self.array(layer_tensor(layer, "weight"))
        if encoding == "q8_0":
            return int8.from_q8_0(data, self.header.source_width)
        return int8.bf16_to_f32(data)

    def bias(self, layer: int) -> F32:
        """float32 [n_out]"""
        data: F32 = self.array(layer_tensor(layer, "bias"))
        return data

    @property
    def states(self) -> tuple[int, ...]:
        """Layers with a state correction, ascending."""
        last = self.header.base.block_count
        return tuple(i for i in range(self.header.split, last) if self.has(layer_tensor(i, "state")))

    @property
    def has_score(self) -> bool:
        return self.has(SCORE)

    @property
    def has_final(self) -> bool:
        return self.has(FINAL_WEIGHT)


def open_sidefile(
    path: str | os.PathLike[str], base: Base | None = None, values: bool = True, model: GgufFile | None = None
) -> SideFile:
    """Reads and checks a side file, against the model's keys too when `base` or `model` is given.

    values=False leaves the tensors' data unread. Raises RidgefillError at the first defect; what differs mildly from
    `model` becomes a warning.
    """
    checks = Checks(path)
    header = checks.header(base_of_gguf(model) if model is not None else base)
    if values:
        checks.values(header)
    if model is not None:
        checks.warnings += anchors.compare(header, model)
    return SideFile(checks.gguf, header, checks.warnings)


def header_keys(header: Header) -> list[Key]:
    """The keys in file order; a value that is not known leaves its key out."""
    base, credit, fit = header.base, header.credit, header.fit
    rows: list[tuple[str, str, object]] = [
        ("general.architecture", "str", ARCHITECTURE),
        ("general.name", "str", credit.name or None),
        ("general.author", "str", credit.author or None),
        ("general.license", "str", credit.license or None),
        ("general.doi", "str", credit.doi or None),
        ("ridgefill.version", "u32", VERSION),
        ("ridgefill.base.architecture", "str", base.architecture),
        ("ridgefill.base.name", "str", base.name or None),
        ("ridgefill.base.block_count", "u32", base.block_count),
        ("ridgefill.base.embedding_length", "u32", base.embedding_length),
        ("ridgefill.base.vocab_size", "u32", base.vocab_size),
        ("ridgefill.base.tokenizer_sha256", "str", base.tokenizer_sha256),
        ("ridgefill.base.layer_kinds", "str", base.layer_kinds),
        ("ridgefill.base.anchors", "str[]", header.anchors or None),
        ("ridgefill.base.encodings", "str[]", header.encodings or None),
        ("ridgefill.split", "u32", header.split),
        ("ridgefill.source_width", "u32", header.source_width),
        ("ridgefill.target_width", "u32", header.target_width),
        ("ridgefill.target", "str", header.target),
        ("ridgefill.group_size", "u32", header.group_size),
        ("ridgefill.encoding", "str", header.encoding),
        ("ridgefill.fit.rows", "u64", fit.rows),
        ("ridgefill.fit.head", "u32", fit.head),
        ("ridgefill.fit.layers", "u32[]", fit.layers or None),
        ("ridgefill.fit.lambda", "f32[]", fit.lambdas or None),
        ("ridgefill.fit.cosine", "f32[]", fit.cosine or None),
        ("ridgefill.fit.r2", "f32[]", fit.r2 or None),
        ("ridgefill.fit.condition", "f32[]", fit.condition or None),
        ("ridgefill.fit.text_sha256", "str", fit.text_sha256 or None),
        ("ridgefill.fit.context", "u32", fit.context),
        ("ridgefill.fit.stride", "u32", fit.stride),
        ("ridgefill.fit.prior", "str", fit.prior or None),
        ("ridgefill.fit.held_rows", "u64", fit.held_rows),
        ("ridgefill.fit.dropped_rows", "u64", fit.dropped_rows),
        ("ridgefill.fit.chat_share", "f32", fit.chat_share),
        ("ridgefill.fit.weights", "str", fit.weights or None),
        ("ridgefill.state.head_order", "str", header.head_order or None),
        ("ridgefill.manifest", "str", header.manifest or None),
    ]
    return [Key(name, form, value) for name, form, value in rows if value is not None]


def write_sidefile(
    path: str | os.PathLike[str],
    header: Header,
    tensors: Iterable[Tensor],
    force: bool = False,
    step: Callable[[int], object] = lambda n_bytes: None,
    before_rename: Callable[[], object] = lambda: None,
) -> None:
    """Writes keys and tensors in the order given, aside and then renamed."""
    write_gguf(path, header_keys(header), tensors, force, step, before_rename)


def checked_header(path: str | os.PathLike[str], header: Header) -> Header:
    """The header as a reader would see it; refuses with RidgefillError what a reader would refuse."""
    read = KeyChecks(path, {key.name: as_value(key.form, key.value) for key in header_keys(header)}).header(None)
    return replace(read, layers=header.layers)


def as_value(form: str, value: Any) -> Value:
    """A key's value as the reader gives it back (f32 rounds)."""
    kinds = {"str": "string", "u32": "int", "u64": "int", "f32": "float"}
    kind = kinds[form.removesuffix("[]")]
    if form == "str[]":
        return Value("strings", [text.encode() for text in value])
    if form.endswith("[]"):
        return Value(kind + "s", np.array(value, np.float32 if kind == "float" else np.int64))
    return Value(kind, float(np.float32(value)) if kind == "float" else value)
