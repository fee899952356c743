"""The checks of a side file's keys, in the order of the table in docs/format.md."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from .errors import RidgefillError
from .gguf_types import Value
from .int8 import GROUP
from .layout import (
    ARCHITECTURE,
    ENCODINGS,
    MAX_LAYERS,
    MAX_WIDTH,
    TARGETS,
    VERSION,
    WIDTH_STEP,
    Base,
    Credit,
    Fit,
    Header,
)


class KeyChecks:
    """Keys under test. `warnings` collects what does not refuse, each "<code>: <text>"."""

    def __init__(self, path: str | os.PathLike[str], keys: Mapping[str, Value]) -> None:
        self.path = path
        self.keys = keys
        self.warnings: list[str] = []

    def fail(self, code: str, item: str, found: object, allowed: object, hint: str = "") -> RidgefillError:
        return RidgefillError(code, self.path, item, found, allowed, hint)

    def get(self, name: str, kind: str, required: bool = True) -> Any:
        value = self.keys.get(name)
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
        """Every key but no tensor (`layers` stays empty); `base` holds the keys of the model to compare with."""
        found = self.keys.get("general.architecture")
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
        if base is not None and split < base.min_split:
            allowed = f"{base.min_split} .. {own.block_count - 1}, above the layer that adds n-gram embeddings"
            raise self.fail("split-ngram", "ridgefill.split", split, allowed)
        width = own.embedding_length
        n_in = self.number("source-width", "ridgefill.source_width", WIDTH_STEP, MAX_WIDTH, WIDTH_STEP)
        if n_in % width:
            raise self.fail("source-width", "ridgefill.source_width", n_in, f"a multiple of embedding_length {width}")
        n_out = self.number("target-width", "ridgefill.target_width", WIDTH_STEP, MAX_WIDTH, WIDTH_STEP)
        return Header(
            base=own,
            split=split,
            source_width=n_in,
            target_width=n_out,
            target=target,
            encoding=encoding,
            layers=(),
            credit=self.credit(),
            fit=self.fit(),
            anchors=self.texts("ridgefill.base.anchors"),
            encodings=self.texts("ridgefill.base.encodings"),
            head_order=self.get("ridgefill.state.head_order", "string", False) or "",
            manifest=self.get("ridgefill.manifest", "string", False) or "",
        )

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(text.decode("utf-8", "replace") for text in self.get(name, "strings", False) or ())

    def base(self, model: Base | None) -> Base:
        prefix = "ridgefill.base."
        own = Base(
            self.get(prefix + "architecture", "string"),
            self.number("base-layers", prefix + "block_count", 2, MAX_LAYERS),
            self.number("base-width", prefix + "embedding_length", WIDTH_STEP, MAX_WIDTH, WIDTH_STEP),
            self.number("base-vocab", prefix + "vocab_size", 1, 1 << 31, required=False),
            self.get(prefix + "name", "string", False),
            self.get(prefix + "tokenizer_sha256", "string", False),
            self.get(prefix + "layer_kinds", "string", False),
        )
        digest = own.tokenizer_sha256
        if model is not None:
            for code, field in (
                ("base-architecture", "architecture"),
                ("base-layers", "block_count"),
                ("base-width", "embedding_length"),
                ("layer-kinds", "layer_kinds"),
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
        if model is not None and (own.layer_kinds is None or model.layer_kinds is None):
            which = "file does" if own.layer_kinds is None else "model's keys do"
            self.warnings.append(f"kinds-unchecked: the {which} not say which layers are recurrent")
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
            weights=one("weights", "string") or "",
        )
