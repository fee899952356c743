"""`ridgefill fit`: a side file from a model's GGUF and some text."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..layout import ENCODINGS, TARGETS, Credit
from .auto import DOCUMENT_TAILS, Auto, choose, print_choice
from .job import Settings
from .ridge import PRIORS
from .run import Choices, Report, finish, fit, fit_splits
from .solve import LAMBDAS
from .stdlib import stdlib_texts
from .texts import load_documents, split_held_out
from .weights import WEIGHTS

__all__ = ["Choices", "Report", "Settings", "add_parser", "finish", "fit", "fit_splits", "run"]


AUTO = Auto()


def print_report(report: Report) -> None:
    fit, maps = report.header.fit, report.solution.maps
    print(f"rows {fit.rows}  held-out rows {fit.held_rows}  split {report.header.split}  target {report.header.target}")
    print("lambda  " + "  ".join(f"{lam:g}: {cosine:.4f}" for lam, cosine in report.solution.profile.items()))
    print("layer    lambda  cosine      R2  condition")
    for m in maps:
        print(f"{m.layer:5}  {m.lam:8g}  {m.score.cosine:.4f}  {m.score.r2:6.4f}  {m.condition:9.3g}")
    cosine, r2 = (sum(getattr(m.score, name) for m in maps) / len(maps) for name in ("cosine", "r2"))
    print(f" mean            {cosine:.4f}  {r2:6.4f}")


def as_json(report: Report, output: Path) -> dict[str, Any]:
    maps = report.solution.maps
    return {
        "file": output.name,
        "rows": report.header.fit.rows,
        "held_rows": report.header.fit.held_rows,
        "profile": [{"lambda": lam, "cosine": cosine} for lam, cosine in report.solution.profile.items()],
        "layers": [
            {"layer": m.layer, "lambda": m.lam, "cosine": m.score.cosine, "r2": m.score.r2, "condition": m.condition}
            for m in maps
        ],
        "cosine": sum(m.score.cosine for m in maps) / len(maps),
    }


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "fit",
        help="fit a side file to a model from text",
        description="Runs the model exactly over the texts, fits one ridge map per late layer and writes a side file. "
        "Documents are the unit of the split into train and held out.",
    )
    add = parser.add_argument
    add("-m", "--model", type=Path, required=True, metavar="MODEL", help="the model's GGUF")
    add("-f", "--file", type=Path, nargs="+", default=[], metavar="TEXT", help="texts, folders of them, or JSONL")
    add("--stdlib", action="store_true", help="use the text that every Python has: language reference and docstrings")
    add("-o", "--output", type=Path, required=True, metavar="FILE", help="side file to write")
    add("--split", type=_splits, required=True, metavar="S", help="first layer that is filled; several S,S; or auto")
    add(
        "--max-loss",
        type=_positive,
        default=AUTO.max_loss,
        metavar="NATS",
        help=f"auto: take the lowest split that loses no more per token (default: {AUTO.max_loss:g})",
    )
    add(
        "--tail",
        type=_count(2),
        default=AUTO.tail,
        metavar="T",
        help=f"auto: rows at the end of {DOCUMENT_TAILS} T that run exactly and are scored (default: {AUTO.tail})",
    )
    add(
        "--docs",
        type=_count(1),
        default=AUTO.documents,
        metavar="N",
        help=f"auto: held-out documents to measure on, at most (default: {AUTO.documents})",
    )
    add("--target", choices=TARGETS, default="layer_input", help="what the maps predict (default: layer_input)")
    add("--ctx", type=_count(64), default=2048, metavar="N", help="rows of a window (default: 2048)")
    add("--head", type=_count(0), default=16, metavar="N", help="first rows of a window to leave out (default: 16)")
    add("--stride", type=_count(1), default=1, metavar="K", help="use every K-th row (default: 1)")
    add("--max-rows", type=_count(0), default=0, metavar="N", help="stop after N rows (default: 0, all)")
    add("--held-out", type=_share, default=0.1, metavar="SHARE", help="share of the text to hold out (default: 0.1)")
    add("--held-rows", type=_count(1), default=4096, metavar="N", help="held-out rows at most (default: 4096)")
    add(
        "--chat-share",
        type=_share0,
        default=0.0,
        metavar="Q",
        help="weight of copies in the chat template (default: 0)",
    )
    add("--lambda", dest="lambdas", type=_lambdas, default=LAMBDAS, metavar="LIST", help="grid, comma separated")
    add("--per-layer", action="store_true", help="choose lambda per layer, not one for all")
    add("--prior", choices=PRIORS, default="zero", help="what the penalty draws a map to (default: zero)")
    add("--type", choices=ENCODINGS, default="i8", help="encoding of the maps (default: i8)")
    add("--resume", type=Path, metavar="DIR", help="work folder: begun if new, gone on with if it holds this fit")
    add(
        "--seed",
        type=_count(0),
        default=0,
        metavar="N",
        help="order of windows and choice of held-out texts (default: 0)",
    )
    add("--name", default="", help="name to store in the file")
    add("--author", default="", help="author to store in the file")
    add("--license", default="", help="licence to store in the file")
    add(
        "--weights",
        choices=WEIGHTS,
        default="auto",
        help="run the model as it is, or a bf16 copy of it (default: auto, what is faster on this processor)",
    )
    add("--threads", type=_count(0), default=0, metavar="N", help="CPU threads (default: 0, all usable)")
    add("-ngl", "--gpu-layers", type=_count(0), default=0, metavar="N", help="layers on the GPU (default: 0)")
    add("--json", action="store_true", help="print one JSON object")
    add("--force", action="store_true", help="replace an existing output")


def _count(least: int) -> Any:
    def parse(text: str) -> int:
        value = int(text)
        if value < least or value >= 1 << 31:
            raise argparse.ArgumentTypeError(f"found {text}, allowed whole numbers from {least}")
        return value

    parse.__name__ = "count"
    return parse


def _splits(text: str) -> tuple[int, ...]:
    """Empty for auto."""
    if text == "auto":
        return ()
    values = tuple(int(part) for part in text.split(","))
    if min(values) < 1 or max(values) >= 1 << 31 or len(set(values)) != len(values):
        raise argparse.ArgumentTypeError(f"found {text}, allowed auto, or whole numbers from 1, comma separated")
    return values


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"found {text}, allowed numbers above 0")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"found {text}, allowed numbers between 0 and 1")
    return value


def _share0(text: str) -> float:
    return 0.0 if float(text) == 0 else _share(text)


def _lambdas(text: str) -> tuple[float, ...]:
    values = tuple(sorted({float(part) for part in text.split(",")}))
    if not all(0 < value < 1e6 for value in values):
        raise argparse.ArgumentTypeError(f"found {text}, allowed numbers above 0, comma separated")
    return values


def run(args: argparse.Namespace) -> int:
    if args.stdlib == bool(args.file):
        found = "both -f and --stdlib" if args.stdlib else "neither -f nor --stdlib"
        raise UsageError(f"text: found {found}, allowed one of them")
    train, held = stdlib_texts() if args.stdlib else split_held_out(load_documents(args.file), args.held_out, args.seed)
    settings = Settings(
        split=args.split[0] if args.split else 0,
        target=args.target,
        context=args.ctx,
        head=args.head,
        stride=args.stride,
        max_rows=args.max_rows,
        held_rows=args.held_rows,
        chat_share=args.chat_share,
        seed=args.seed,
        weights=args.weights,
    )
    choices = Choices(
        lambdas=args.lambdas,
        prior=args.prior,
        per_layer=args.per_layer,
        encoding=args.type,
        credit=Credit(args.name, args.author, args.license),
        threads=args.threads,
        gpu_layers=args.gpu_layers,
        force=args.force,
        progress=True,
    )
    if args.split:
        outputs = names(args.output, args.split)
        reports = fit_splits(args.model, train, held, outputs, settings, choices, args.resume)
    else:
        auto = Auto(max_loss=args.max_loss, tail=args.tail, documents=args.docs)
        choice = choose(args.model, train, held, args.output, settings, choices, auto, args.resume)
        if not args.json:
            print_choice(choice, auto)
        outputs, reports = {choice.split: args.output}, {choice.split: choice.report}
    if args.json:
        objects = [as_json(reports[split], outputs[split]) for split in outputs]
        print(json.dumps(objects[0] if len(objects) == 1 else objects, indent=1))
    for split, output in outputs.items():
        if not args.json:
            print_report(reports[split])
            print(output)
        for warning in reports[split].warnings:
            print(f"ridgefill: {warning}", file=sys.stderr)
    return 0


def names(output: Path, splits: tuple[int, ...]) -> dict[int, Path]:
    """split -> file: the output itself for one split, else with -S<split> before its suffix."""
    if len(splits) == 1:
        return {splits[0]: output}
    return {split: output.with_name(f"{output.stem}-S{split}{output.suffix}") for split in splits}
