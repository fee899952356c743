"""`ridgefill correct`: fits the correction of recurrent states and adds it to a side file.

Each document's first rows are run exactly and filled; the mean difference of the states at the chunk ends becomes the
constant of each recurrent late layer. Held-out documents say what it removes elsewhere.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base import base_of
from ..errors import RidgefillError, UsageError
from ..gguf_writer import refuse_overwrite
from ..progress import Progress
from ..sidefile import open_sidefile
from .correction import CorrectionFit, write_correction
from .texts import Document, load_documents, split_held_out


@dataclass(frozen=True)
class LayerReport:
    layer: int
    ends: int  # pairs of states
    error: float  # sqrt of error energy over state energy, on the held-out ends
    left: float  # share of the error energy that the constant leaves, on the ends it was fitted on
    held_left: float  # on the held-out ends


@dataclass(frozen=True)
class Report:
    prompts: int
    held_prompts: int
    layers: tuple[LayerReport, ...]
    left: float  # of the energy of all layers, held out
    warnings: tuple[str, ...]


def correct(
    model: Path,
    side: Path,
    train: Sequence[Document],
    held: Sequence[Document],
    output: Path,
    rows: int = 2048,
    chunk: int = 512,
    head: int = 16,
    threads: int | None = None,
    gpu_layers: int = 0,
    force: bool = False,
    progress: bool = False,
) -> Report:
    """Writes a copy of `side` with one constant per recurrent late layer."""
    from .states import StateCapture  # the native libraries, which the command line's help does not need

    if rows < chunk or chunk < 64 or chunk % 64 or head >= chunk:
        raise ValueError(f"rows {rows}, chunk {chunk}, head {head}: allowed multiples of 64, head < chunk <= rows")
    refuse_overwrite(output, force)
    file = open_sidefile(side, base_of(model))
    with StateCapture(model, side, rows, chunk, head, threads, gpu_layers) as capture:
        fit, test = (
            _pairs(capture, documents, what, progress) for documents, what in ((train, "states"), (held, "held out"))
        )
        order = "tiled"  # as the model's own file has them
    for name, sums in (("texts", fit), ("held-out texts", test)):
        if not sums.layers:
            raise RidgefillError("no-text", name, "", f"no document of {rows} tokens or more", "at least one")
    constants = {layer: sums.constant for layer, sums in fit.layers.items()}
    write_correction(file, output, constants, order, force)
    layers = tuple(
        LayerReport(
            layer,
            sums.count,
            test.layers[layer].relative_error,
            sums.left_over(1.0),
            test.layers[layer].left_over_by(constants[layer], 1.0),
        )
        for layer, sums in sorted(fit.layers.items())
    )
    energy = sum(sums.energy for sums in test.layers.values())
    left = sum(report.held_left * test.layers[report.layer].energy for report in layers) / energy if energy else 1.0
    return Report(len(fit.prompts), len(test.prompts), layers, left, tuple(fit.warnings()))


def _pairs(capture: Any, documents: Iterable[Document], what: str, progress: bool) -> CorrectionFit:
    fit = CorrectionFit()
    windows = []
    for document in documents:
        ids = capture.session.tokenize(document.text)[: capture.rows]
        if len(ids) == capture.rows:
            windows.append((document.name, ids))
    with Progress(what, len(windows), "documents", progress) as bar:
        for name, ids in windows:
            for end, states in capture.run(ids, False):
                for layer, state in states.items():
                    fit.exact(name, end, layer, state)
            for end, states in capture.run(ids, True):
                for layer, state in states.items():
                    fit.filled(name, end, layer, state)
            bar.add(1)
    return fit


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "correct",
        help="add the correction of recurrent states",
        description="Runs each document exactly and filled, and adds to a side file the mean difference of the "
        "recurrent late layers' states. Serving adds it once, behind the filled rows.",
    )
    add = parser.add_argument
    add("-m", "--model", type=Path, required=True, metavar="MODEL", help="the model's GGUF")
    add("-p", "--projector", type=Path, required=True, metavar="FILE", help="the side file to copy")
    add("-f", "--file", type=Path, nargs="+", required=True, metavar="TEXT", help="texts, folders of them, or JSONL")
    add("-o", "--output", type=Path, required=True, metavar="FILE", help="side file to write")
    add("--rows", type=int, default=2048, metavar="N", help="rows of a document that are run (default: 2048)")
    add("--chunk", type=int, default=512, metavar="N", help="states are compared every N rows (default: 512)")
    add("--head", type=int, default=16, metavar="N", help="first rows that run exactly (default: 16)")
    add("--docs", type=int, default=64, metavar="N", help="at most so many documents (default: 64)")
    add("--held-out", type=float, default=0.2, metavar="SHARE", help="share of the text to hold out (default: 0.2)")
    add("--seed", type=int, default=0, metavar="N", help="which documents are held out (default: 0)")
    add("--threads", type=int, default=0, metavar="N", help="CPU threads (default: 0, all usable)")
    add("-ngl", "--gpu-layers", type=int, default=0, metavar="N", help="layers on the GPU (default: 0)")
    add("--json", action="store_true", help="print one JSON object")
    add("--force", action="store_true", help="replace an existing output")


def run(args: argparse.Namespace) -> int:
    for name, value, least in (("--docs", args.docs, 2), ("--head", args.head, 0), ("--threads", args.threads, 0)):
        if value < least:
            raise UsageError(f"{name}: found {value}, allowed {least} or more")
    if not 0 < args.held_out < 1:
        raise UsageError(f"--held-out: found {args.held_out}, allowed numbers between 0 and 1")
    if args.chunk < 64 or args.chunk % 64 or not args.head < args.chunk <= args.rows:
        raise UsageError(
            f"--rows {args.rows}, --chunk {args.chunk}, --head {args.head}: allowed a chunk that is a multiple of 64, "
            "above the head and at most the rows"
        )
    documents = load_documents(args.file)
    stride = max(1, len(documents) // args.docs)  # evenly over what was given
    train, held = split_held_out(documents[::stride][: args.docs], args.held_out, args.seed)
    report = correct(
        args.model,
        args.projector,
        train,
        held,
        args.output,
        args.rows,
        args.chunk,
        args.head,
        args.threads or None,
        args.gpu_layers,
        args.force,
        progress=True,
    )
    if args.json:
        print(json.dumps(as_json(report), indent=1))
    else:
        print_report(report)
        print(args.output)
    for warning in report.warnings:
        print(f"ridgefill: {warning}", file=sys.stderr)
    return 0


def as_json(report: Report) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(report)


def print_report(report: Report) -> None:
    print(f"documents {report.prompts}  held-out documents {report.held_prompts}")
    print("layer  ends   error  energy left  held out")
    for layer in report.layers:
        print(f"{layer.layer:5} {layer.ends:5}  {layer.error:6.3f}  {layer.left:11.3f}  {layer.held_left:8.3f}")
    print(f" all                              {report.left:8.3f}")
