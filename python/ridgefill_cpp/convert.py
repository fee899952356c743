"""`ridgefill convert`: a published projector folder or safetensors file becomes a side file."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from . import anchors, fingerprint
from .base import base_of_gguf
from .encoder import Encoder
from .errors import RidgefillError, UsageError
from .folder import MANIFEST
from .gguf_reader import GgufFile, read_gguf
from .gguf_types import Value
from .gguf_writer import refuse_overwrite
from .key_checks import KeyChecks
from .layout import ENCODINGS, TARGETS, Base, Header
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


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "convert",
        help="make a side file from a published projector",
        description="Makes a GGUF side file from a published projector folder (ridgefill.json), from one safetensors "
        "file with layer.<L> tensors, or from another side file. Conversion of an int8 folder loses nothing.",
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
