"""`ridgefill inspect`: what a side file holds, whether it fits a model, and whether it equals its source."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import encode
from .errors import RidgefillError
from .folder import sha256_of
from .gguf_reader import read_gguf
from .layout import FINAL_BIAS, FINAL_WEIGHT, SCORE, layer_tensor
from .progress import Progress
from .sidefile import SideFile, header_keys, open_sidefile
from .source import Source, open_source

PER_LAYER = ("lambda", "cosine", "r2", "condition")
LONG = ("ridgefill.manifest", "ridgefill.base.anchors", "ridgefill.base.encodings")
HIDDEN = (*LONG, "ridgefill.fit.layers", *(f"ridgefill.fit.{name}" for name in PER_LAYER))


def describe(side: SideFile) -> dict[str, Any]:
    """Plain values: keys, one row per layer, the file's size and sha256."""
    header = side.header
    keys = {key.name: key.value for key in header_keys(header) if key.name not in HIDDEN}
    fit: dict[int, dict[str, Any]] = {layer: {} for layer in header.fit.layers}
    arrays = (header.fit.lambdas, header.fit.cosine, header.fit.r2, header.fit.condition)
    for name, values in zip(PER_LAYER, arrays, strict=True):
        for layer, value in zip(header.fit.layers, values, strict=False):
            fit[layer][name] = float(f"{value:.6g}")
    layers = []
    for layer in header.layers:
        state = side.has(layer_tensor(layer, "state"))
        own: dict[str, Any] = {"layer": layer, "used": layer > header.split, "state": state}
        layers.append(own | fit.get(layer, {}))
    return {
        "file": side.path.name,
        "bytes": side.gguf.size,
        "sha256": sha256_of(side.path),
        "keys": keys,
        "layers": layers,
        "score": side.has_score,
        "final": side.has_final,
    }


def prove(side: SideFile, source: Source, progress: bool = False) -> int:
    """Compares every tensor with the source, after encoding it as the side file is; returns how many are equal.

    Raises RidgefillError (source-differs) at the first tensor that is not.
    """
    header = side.header
    if tuple(source.layers) != header.layers or (source.n_in, source.n_out) != (
        header.source_width,
        header.target_width,
    ):
        raise RidgefillError(
            "source-differs", side.path, "dimensions",
            f"layers {list(header.layers)}, {header.target_width} x {header.source_width}",
            f"layers {list(source.layers)}, {source.n_out} x {source.n_in}",
        )  # fmt: skip
    equal = 0
    with Progress("compare", len(source.layers), unit="maps", shown=progress) as bar:
        for layer in source.layers:
            for part, data in expected_parts(source, layer, header.encoding).items():
                equal += _same(side, layer_tensor(layer, part), data)
            bar.add(1)
    for layer, entry in source.states.items():
        equal += _same(side, layer_tensor(layer, "state"), entry.rows())
    if source.scores:
        equal += _same(side, SCORE, source.scores["score"].rows())
    if source.has_final:
        equal += _same(side, FINAL_WEIGHT, np.concatenate(list(source.final_weight())))
        equal += _same(side, FINAL_BIAS, source.final_bias())
    source.verified()
    if equal != len(side.gguf.tensors):
        raise RidgefillError("source-differs", side.path, "tensors", len(side.gguf.tensors), f"{equal}, as the source")
    return equal


def expected_parts(source: Source, layer: int, encoding: str) -> dict[str, npt.NDArray[Any]]:
    bias = source.bias(layer)
    if source.form == "i8":
        return encode.from_codes(*source.codes(layer), bias, encoding)
    return encode.from_bf16(source.weight(layer), bias, encoding)


def _same(side: SideFile, name: str, wanted: npt.NDArray[Any]) -> int:
    found = side.array(name) if side.has(name) else None
    if found is None or found.shape != wanted.shape or found.tobytes() != wanted.tobytes():
        what = "no such tensor" if found is None else "other values"
        raise RidgefillError("source-differs", side.path, name, what, "the source's values, byte for byte")
    return 1


def print_text(facts: dict[str, Any]) -> None:
    print(f"file     {facts['file']}\nbytes    {facts['bytes']}\nsha256   {facts['sha256']}")
    width = max(map(len, facts["keys"]))
    for name, value in facts["keys"].items():
        print(f"{name:{width}}  {value}")
    extra = [name for name in ("score", "final") if facts[name]]
    if extra:
        print(f"{'also':{width}}  {', '.join(extra)}")
    columns = [name for name in PER_LAYER if any(name in row for row in facts["layers"])]
    print("layer  used  state" + "".join(f"  {name:>9}" for name in columns))
    for row in facts["layers"]:
        marks = f"{row['layer']:5}  {'yes' if row['used'] else 'no':4}  {'yes' if row['state'] else 'no':5}"
        numbers = "".join(f"  {row[name]:>9.5g}" if name in row else f"  {'-':>9}" for name in columns)
        print((marks + numbers).rstrip())


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "inspect",
        help="show and check a side file",
        description="Checks a side file and shows its keys and layers; with --base against a model, with --source "
        "tensor by tensor against the projector it was made from.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the side file")
    parser.add_argument("--base", type=Path, metavar="MODEL", help="the model's GGUF to check against")
    parser.add_argument("--source", type=Path, metavar="FOLDER|FILE", help="prove that the file equals this projector")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    side = open_sidefile(args.file, model=read_gguf(args.base, model=True) if args.base else None)
    facts = describe(side)
    if args.source:
        facts["equal_tensors"] = prove(side, open_source(args.source), progress=True)
    if args.base:
        facts["fits"] = args.base.name
    if args.json:
        print(json.dumps(facts, indent=1, ensure_ascii=False))
    else:
        print_text(facts)
        if args.base:
            print(f"fits {args.base.name}")
        if args.source:
            print(f"equals {args.source.name}: {facts['equal_tensors']} tensors")
    for warning in side.warnings:
        print(f"ridgefill: {warning}", file=sys.stderr)
    return 0
