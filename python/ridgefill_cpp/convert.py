"""`ridgefill convert`: a published projector folder or safetensors file becomes a side file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import anchors, encode, fingerprint, int8
from .base import base_of_gguf
from .errors import RidgefillError, UsageError
from .folder import MANIFEST
from .gguf_reader import GgufFile, read_gguf
from .gguf_types import BF16, F32, Value
from .gguf_writer import Buffer, Tensor, refuse_overwrite
from .int8 import I8, U16
from .key_checks import KeyChecks
from .layout import ENCODINGS, FINAL_BIAS, FINAL_WEIGHT, SCORE, TARGETS, Base, Header, layer_tensor, map_parts
from .progress import Progress
from .sidefile import checked_header, write_sidefile
from .source import Source, open_source

# members of a manifest that describe its files or come from an export
FILE_MEMBERS = ("files", "projector", "rebuilt_from", "gguf")


@dataclass(frozen=True)
class Options:
    encoding: str = "i8"
    target: str = ""  # empty: block_input
    base: Path | None = None  # the model's GGUF
    architecture: str = ""  # without base: the model's general.architecture
    force: bool = False
    progress: bool = False


def convert(source_path: Path, output: Path, options: Options) -> list[str]:
    """Writes the side file; returns warnings. Raises RidgefillError, and then leaves no output behind."""
    refuse_overwrite(output, options.force)
    source = open_source(source_path)
    try:
        header, warnings = make_header(source, options)
        header = checked_header(source_path, header)
        encoder = Encoder(source, options.encoding)
        tensors = list(encoder.tensors())
        with Progress("convert", sum(t.n_bytes for t in tensors), "MB", options.progress) as bar:
            write_sidefile(output, header, tensors, options.force, bar.add, source.verified)
    except RidgefillError:
        source.verified()  # a damaged file is the better reason
        raise
    return warnings + encoder.notes


def make_header(source: Source, options: Options) -> tuple[Header, list[str]]:
    """The keys of the side file, and one warning per fact that is assumed or unchecked."""
    model = read_gguf(options.base, model=True) if options.base else None
    exported = source.known or exported_keys(source)
    base, warnings = describe_base(source, model, options, exported)
    header = Header(
        base=base,
        split=source.split,
        source_width=source.n_in,
        target_width=source.n_out,
        target=options.target or (exported.target if exported else "block_input"),
        encoding=options.encoding,
        layers=tuple(source.layers),
        credit=source.credit,
        anchors=anchors.anchors(model, source.split) if model else (),
        encodings=anchors.encodings(model, source.split, base.block_count) if model else (),
        head_order="grouped" if source.states else "",
        manifest=kept_manifest(source.manifest),
    )
    if exported:
        kept = exported.manifest
        if source.known is None:
            kept = header.manifest if source.manifest["gguf"].get("manifest") is True else ""
        order = exported.head_order if source.states else ""
        if model is None:
            header = replace(header, anchors=exported.anchors, encodings=exported.encodings)
        header = replace(header, credit=exported.credit, fit=exported.fit, head_order=order, manifest=kept)
    if not options.target and not source.manifest and not exported:
        warnings.append("target-assumed: block_input; the file does not say, --target layer_input is the other choice")
    return header, warnings


def exported_keys(source: Source) -> Header | None:
    """The keys that `ridgefill export` left in the manifest of a folder, checked as a side file's are."""
    block = source.manifest.get("gguf")
    if block is None:
        return None
    at = source.path / MANIFEST
    if not isinstance(block, dict):
        raise RidgefillError("manifest", at, "gguf", type(block).__name__, "an object of keys")
    values = {name: value for name, value in ((n, json_value(v)) for n, v in block.items()) if value is not None}
    return KeyChecks(at, values).header(None)


def json_value(value: Any) -> Value | None:
    """A JSON value as a GGUF key's value; None for a kind that no key has."""
    if isinstance(value, str):
        return Value("string", value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Value("int" if isinstance(value, int) else "float", value)
    if isinstance(value, list) and value and all(isinstance(v, str) for v in value):
        return Value("strings", [v.encode("utf-8", "replace") for v in value])
    if isinstance(value, list) and value and all(type(v) in (int, float) for v in value):
        whole = all(type(v) is int and abs(v) < 1 << 62 for v in value)
        return Value("ints", np.array(value, np.int64)) if whole else Value("floats", np.array(value, np.float32))
    return None


def describe_base(
    source: Source, model: GgufFile | None, options: Options, exported: Header | None
) -> tuple[Base, list[str]]:
    """The base keys: the model's where it is given, else what the source says; with one warning per unchecked fact."""
    last, at = source.layers[-1], source.path
    if model is not None:
        base = base_of_gguf(model)
        warnings = fingerprint.compare(source.manifest, source.path / MANIFEST, model) if source.manifest else []
        if last != base.block_count - 1:
            wanted = f"{base.block_count - 1} (the model's)"
            raise RidgefillError("base-layers", at, "last layer with a map", last, wanted, fingerprint.HINT)
        if source.n_in % base.embedding_length:
            wanted = f"a multiple of {base.embedding_length} (the model's)"
            raise RidgefillError("base-width", at, "source width", source.n_in, wanted, fingerprint.HINT)
        return base, warnings
    if exported:
        return exported.base, []
    block = source.manifest.get("model", {})
    meta = block.get("meta", {}) if isinstance(block, dict) else {}
    adapter = source.manifest.get("adapter")
    architecture = options.architecture or (adapter if isinstance(adapter, str) else "")
    if not architecture:
        hint = "add --base MODEL.gguf, or --arch NAME to leave the tokenizer unchecked"
        raise UsageError("the model's architecture is not known from this projector", hint)

    def fact(key: str, default: int | None) -> Any:
        text = str(meta.get(key, "")) if isinstance(meta, dict) else ""
        return int(text) if text.isdecimal() and len(text) < 10 else default

    name = block.get("name") if isinstance(block, dict) else None
    name = name if isinstance(name, str) else None
    base = Base(architecture, last + 1, fact("n_embd", source.n_out), fact("n_vocab", None), name)
    return base, ["base-unchecked: without --base, dimensions are the projector's and the tokenizer is not checked"]


def kept_manifest(manifest: dict[str, Any]) -> str:
    """The manifest without what depends on the files, as canonical JSON; empty for none."""
    if not manifest:
        return ""
    kept = {key: value for key, value in manifest.items() if key not in FILE_MEMBERS}
    return json.dumps(kept, separators=(",", ":"), ensure_ascii=False)


class Encoder:
    """The tensors of a source in one encoding, one map in memory at a time. `notes` fills while they are written."""

    def __init__(self, source: Source, encoding: str) -> None:
        self.source = source
        self.encoding = encoding
        self.notes: list[str] = []
        self._layer = -1
        self._parts: dict[str, npt.NDArray[Any]] = {}

    def tensors(self) -> Iterator[Tensor]:
        source = self.source
        parts = map_parts(self.encoding, source.n_in, source.n_out)
        for layer in source.layers:
            for part, (kind, ne) in parts.items():
                copied = part != "bias" and source.form == self.encoding == "i8"
                data = partial(self._copied if copied else self._part, layer, part)
                yield Tensor(layer_tensor(layer, part), kind, ne, data)
            if layer in source.states:
                entry = source.states[layer]
                yield Tensor(layer_tensor(layer, "state"), F32, entry.shape[::-1], partial(self._state, layer))
        if source.scores:
            yield Tensor(SCORE, F32, source.scores["score"].shape, self._score)
        if source.has_final:
            yield Tensor(FINAL_WEIGHT, BF16, (source.n_in, source.n_in), source.final_weight)
            yield Tensor(FINAL_BIAS, F32, (source.n_in,), lambda: [source.final_bias()])

    def _part(self, layer: int, part: str) -> Iterator[Buffer]:
        if layer != self._layer:
            self._parts = self._encode(layer)
            self._layer = layer
        yield self._parts.pop(part)

    def _encode(self, layer: int) -> dict[str, npt.NDArray[Any]]:
        bias = self.source.bias(layer)
        if not np.isfinite(bias).all():
            raise self.bad("bias-value", layer, "bias", "NaN or infinity", "finite numbers")
        try:
            if self.source.form == "i8":
                if self.encoding == "bf16":
                    self._note("bf16-rounded: codes times scale were rounded to bf16")
                parts = encode.from_codes(*self._published(layer), bias, self.encoding)
                self._check_weight(layer, parts)
                return parts
            weight = self.source.weight(layer)
            self._check_weight(layer, {"weight": weight})
            if self.encoding == "bf16":
                return encode.from_bf16(weight, bias, "bf16")
            codes, scale = int8.quantize(weight)
            worst = int8.worst_error(weight, codes, scale)
            self.notes.append(f"int8-error: layer {layer}: largest error {worst:.4%} of the largest weight")
            return encode.from_codes(codes, scale, bias, self.encoding)
        except encode.InexactScale as error:
            hint = "use --type i8, which keeps every scale"
            wanted = "scales that float16 holds exactly"
            raise self.bad("scale-f16", layer, "scale", f"{error.value:.3g}", wanted, hint) from None

    def _copied(self, layer: int, part: str) -> Iterator[Buffer]:
        """Codes or scale as they are in the source, checked on the way."""
        for piece in self.source.pieces(layer, part):
            if part == "codes":
                self._check_codes(layer, piece.view(np.int8))
            else:
                self._check_scale(layer, piece.view(np.uint16))
            yield piece

    def _published(self, layer: int) -> tuple[I8, U16]:
        codes, scale = self.source.codes(layer)
        self._check_codes(layer, codes)
        self._check_scale(layer, scale)
        return codes, scale

    def _check_weight(self, layer: int, parts: encode.Parts) -> None:
        bits = parts.get("weight")
        if bits is not None and bits.dtype == np.uint16 and ((bits & 0x7F80) == 0x7F80).any():
            raise self.bad("weight-value", layer, "weight", "NaN or infinity", "finite numbers")

    def _check_codes(self, layer: int, codes: I8) -> None:
        if codes.min() == -128:
            raise self.bad("code-value", layer, "codes", -128, "-127 .. 127")

    def _check_scale(self, layer: int, scale: U16) -> None:
        if (scale - np.uint16(1) >= 0x7F7F).any():
            found = "a scale that is NaN, infinite, zero or negative"
            raise self.bad("scale-value", layer, "scale", found, "finite numbers above 0")

    def _state(self, layer: int) -> Iterator[Buffer]:
        for piece in self.source.states[layer].pieces():
            if not np.isfinite(piece.view(np.float32)).all():
                raise self.bad("state-value", layer, "state", "NaN or infinity", "finite numbers")
            yield piece

    def _score(self) -> Iterator[Buffer]:
        tables = {name: entry.rows() for name, entry in self.source.scores.items()}
        controls = [tables[name] for name in ("score_none", "score_all") if name in tables]
        if controls and (not (controls[0] == -np.inf).all() or controls[1].any()):
            what = "other values in score_none or score_all"
            raise RidgefillError("score-value", self.source.path, "score", what, "-inf and 0 throughout")
        if not (tables["score"] < np.inf).all():
            raise RidgefillError("score-value", self.source.path, "score", "NaN or +inf", "finite numbers and -inf")
        yield tables["score"]

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def bad(self, code: str, layer: int, part: str, found: object, allowed: object, hint: str = "") -> RidgefillError:
        return RidgefillError(code, self.source.path, f"layer {layer} {part}", found, allowed, hint)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "convert",
        help="make a side file from a published projector",
        description="Makes a GGUF side file from a published projector folder (ridgefill.json), from one safetensors file "
        "with layer.<L> tensors, or from another side file. Conversion of an int8 folder loses nothing.",
    )
    parser.add_argument(
        "source", type=Path, metavar="FOLDER|FILE", help="the projector: a folder, a safetensors file or a side file"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="side file to write")
    parser.add_argument("--base", type=Path, metavar="MODEL", help="the model's GGUF, to check against")
    parser.add_argument("--arch", default="", metavar="NAME", help="without --base: the model's general.architecture")
    parser.add_argument("--type", choices=ENCODINGS, default="i8", help="encoding of the maps (default: i8)")
    parser.add_argument("--target", choices=TARGETS, default="", help="what the maps predict (default: block_input)")
    parser.add_argument("--force", action="store_true", help="replace an existing output")


def run(args: argparse.Namespace) -> int:
    options = Options(args.type, args.target, args.base, args.arch, args.force, progress=True)
    for warning in convert(args.source, args.output, options):
        print(f"ridgefill: {warning}", file=sys.stderr)
    print(args.output)
    return 0
