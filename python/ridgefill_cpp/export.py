"""`ridgefill export`: a side file back into a published folder (format 1), byte-reproducible.

The manifest's member `gguf` keeps the side file's own keys, so that converting the folder again gives the same file.
Biases become bf16: exact for a file that was converted, rounded for one that was fitted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from . import int8
from .errors import RidgefillError
from .folder import FORMAT, MANIFEST, sha256_of
from .int8 import GROUP, U16
from .layout import FINAL_BIAS, FINAL_WEIGHT, SCORE, Header, layer_tensor
from .progress import Progress
from .safetensors_io import NewTensor, write_safetensors
from .sidefile import SideFile, header_keys, open_sidefile
from .source_side import codes_of_q8_0

METADATA_FORMAT = "ridgefill-projector-1"
KEPT_APART = ("ridgefill.manifest",)


def export(path: Path, output: Path, force: bool = False, progress: bool = False) -> list[str]:
    """Writes the folder; returns notes. The folder takes its name only when it is complete."""
    side = open_sidefile(path)
    header = side.header
    if header.source_width % GROUP:
        wanted = f"a multiple of {GROUP}, as the published form has whole groups only"
        raise RidgefillError("export-width", path, "ridgefill.source_width", header.source_width, wanted)
    _refuse_folder(output, force)
    temporary = output.with_name(f".{output.name}.{os.getpid()}.part")
    temporary.mkdir()
    try:
        notes = _write(side, temporary, progress)
        if output.exists():
            shutil.rmtree(output)
        os.replace(temporary, output)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return notes


def _refuse_folder(output: Path, force: bool) -> None:
    if not output.parent.is_dir():
        raise RidgefillError("no-folder", output, "output", "no such folder", "an existing folder")
    if not os.path.lexists(output) or (output.is_dir() and not any(output.iterdir())):
        return
    if not force:
        hint = "add --force to replace it"
        raise RidgefillError("output-exists", output, "output", "an existing folder", "a new name", hint)
    if not (output / MANIFEST).is_file():
        found = f"something without {MANIFEST}"
        raise RidgefillError("output-exists", output, "output", found, "a projector folder or a new name")


def _write(side: SideFile, folder: Path, progress: bool) -> list[str]:
    header = side.header
    form = "bf16" if header.encoding == "bf16" else "i8"
    metadata = _metadata(header)
    notes: list[str] = []
    files: dict[str, str] = {}

    def add(name: str, tensors: list[NewTensor]) -> None:
        write_safetensors(folder / name, metadata, tensors)
        files[name] = sha256_of(folder / name)

    maps = {}
    with Progress("write", len(header.layers), "maps", progress) as bar:
        for layer in header.layers:
            maps[str(layer)] = name = f"{'proj8' if form == 'i8' else 'proj'}.L{layer}.safetensors"
            add(name, _map_tensors(side, layer, form, notes))
            bar.add(1)
    states = [_tensor(f"st.{i}", "F32", side.array(layer_tensor(i, "state"))) for i in side.states]
    if states:
        add("correction.safetensors", states)
    if side.has_score:
        add("rowsel.safetensors", score_tensors(side.array(SCORE)))
    if side.has_final:
        bias = _bf16_bias(side, FINAL_BIAS, notes)
        add("final.safetensors", [_lazy(side, "final.weight", FINAL_WEIGHT), _tensor("final.bias", "BF16", bias)])
    manifest = _manifest(side, form, maps, files)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if header.layers[0] != header.split:
        notes.append(f"no-split-map: layer {header.split} has no map; readers other than this one may want one")
    return notes


def _metadata(header: Header) -> dict[str, str]:
    credit = header.credit
    rows = {"format": METADATA_FORMAT, "name": credit.name, "authors": credit.author}
    rows |= {"license": credit.license, "doi": credit.doi}
    return {key: value for key, value in rows.items() if value}


def _tensor(name: str, dtype: str, data: np.ndarray[Any, Any]) -> NewTensor:
    return NewTensor(name, dtype, data.shape, lambda: [data])


def _lazy(side: SideFile, name: str, source: str) -> NewTensor:
    chunks: Callable[[], Any] = lambda: side.gguf.chunks(source)  # noqa: E731
    return NewTensor(name, "BF16", side.gguf.tensors[source].ne[::-1], chunks)


def _map_tensors(side: SideFile, layer: int, form: str, notes: list[str]) -> list[NewTensor]:
    bias = _tensor(f"proj.{layer}.bias", "BF16", _bf16_bias(side, layer_tensor(layer, "bias"), notes))
    if form == "bf16":
        return [_tensor(f"proj.{layer}.weight", "BF16", side.array(layer_tensor(layer, "weight"))), bias]
    if side.header.encoding == "i8":
        codes, scale = (side.array(layer_tensor(layer, part)) for part in ("codes", "scale"))
    else:
        codes, scale = codes_of_q8_0(side, layer)
    return [_tensor(f"proj.{layer}.codes", "I8", codes), _tensor(f"proj.{layer}.scale", "BF16", scale), bias]


def _bf16_bias(side: SideFile, name: str, notes: list[str]) -> U16:
    bias = side.array(name)
    bits = int8.f32_to_bf16(bias)
    if not (int8.bf16_to_f32(bits) == bias).all():
        note = "bias-rounded: the published form has bf16 biases"
        notes += [note] if note not in notes else []
    return bits


def score_tensors(score: np.ndarray[Any, Any]) -> list[NewTensor]:
    """The published score table and its two controls, which select nothing and everything."""
    return [
        _tensor("score", "F32", score),
        _tensor("score_none", "F32", np.full_like(score, -np.inf)),
        _tensor("score_all", "F32", np.zeros_like(score)),
    ]


def _manifest(side: SideFile, form: str, maps: dict[str, str], files: dict[str, str]) -> dict[str, Any]:
    header = side.header
    kept = json.loads(header.manifest) if header.manifest else _new_manifest(header)
    projector = {"dtype": form, "layout": "i8_row128" if form == "i8" else "plain_nk"}
    projector |= {"encoding": "i8*bf16[1x128]"} if form == "i8" else {}
    keys = {key.name: key.value for key in header_keys(header) if key.name not in KEPT_APART}
    return {
        **kept,
        "projector": {**projector, "files": maps},
        "gguf": {**keys, "manifest": bool(header.manifest)},
        "files": dict(sorted(files.items())),
    }


def _new_manifest(header: Header) -> dict[str, Any]:
    """For a file that was fitted here, and so has no manifest to go back to."""
    base, credit = header.base, header.credit
    meta = {"n_layers": base.block_count, "n_embd": base.embedding_length, "n_vocab": base.vocab_size}
    return {
        "format": FORMAT,
        **({"name": credit.name} if credit.name else {}),
        "authors": [credit.author] if credit.author else [],
        **({"license": credit.license} if credit.license else {}),
        **({"doi": credit.doi} if credit.doi else {}),
        "adapter": base.architecture,
        "model": {
            "arch_id": base.architecture,
            "meta": {key: str(value) for key, value in meta.items() if value is not None},
            **({"name": base.name} if base.name else {}),
        },
        "split": header.split,
        "stream_width": header.source_width,
        "block_in_width": header.target_width,
        "layers": {str(layer): "late" for layer in header.layers},
    }


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "export",
        help="write a side file as a published folder",
        description="Writes a folder in the published form (ridgefill.json, one safetensors file per map). The same "
        "side file gives the same bytes, and converting the folder gives the side file back.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the side file")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER", help="folder to write")
    parser.add_argument("--force", action="store_true", help="replace an existing projector folder")


def run(args: argparse.Namespace) -> int:
    for note in export(args.file, args.output, args.force, progress=True):
        print(f"ridgefill: {note}", file=sys.stderr)
    print(args.output)
    return 0
