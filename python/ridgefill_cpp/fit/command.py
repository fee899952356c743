"""`ridgefill fit`: a side file from a model's GGUF and some text."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import anchors
from ..base import base_of_gguf
from ..encode import InexactScale
from ..errors import RidgefillError, UsageError
from ..gguf_reader import read_gguf
from ..gguf_writer import Tensor, refuse_overwrite
from ..layout import ENCODINGS, TARGETS, Base, Credit, Fit, Header, layer_tensor, map_parts
from ..sidefile import write_sidefile
from .blas import limit_blas, usable_cpus
from .job import Job, Result, Settings
from .ridge import PRIORS
from .solve import LAMBDAS, Solution, solve
from .stdlib import stdlib_texts
from .texts import Document, load_documents, split_held_out, text_sha256

FEW_ROWS = 20  # rows per input, under which a warning says so


@dataclass(frozen=True)
class Choices:
    """What the solve and the file depend on beyond the sums; a resumed fit may change all of it."""

    lambdas: tuple[float, ...] = LAMBDAS
    prior: str = "zero"
    per_layer: bool = False
    encoding: str = "i8"
    credit: Credit = field(default_factory=Credit)
    threads: int = 0
    force: bool = False
    progress: bool = False


@dataclass(frozen=True)
class Fingerprints:
    """What the side file says of its model."""

    base: Base
    anchors: tuple[str, ...] = ()
    encodings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    header: Header
    solution: Solution
    result: Result
    warnings: list[str]


def fit(
    model: Path,
    train: list[Document],
    held: list[Document],
    output: Path,
    settings: Settings,
    choices: Choices = Choices(),
    work: Path | None = None,
) -> Report:
    """Captures, fits and writes the side file. `work`: a folder that keeps the sums and can be gone on with."""
    from .capture import Capture

    refuse_overwrite(output, choices.force)
    gguf = read_gguf(model, model=True)
    base = base_of_gguf(gguf)
    if not 1 <= settings.split < base.block_count - 1:
        raise RidgefillError("split-range", model, "--split", settings.split, f"1 .. {base.block_count - 2}")
    threads = choices.threads or usable_cpus()
    limit_blas(threads)
    layers = range(settings.split + 1, base.block_count)
    identity = {
        "model_bytes": model.stat().st_size,
        "base": [base.architecture, base.block_count, base.tokenizer_sha256],
    }
    identity |= {"train_sha256": text_sha256(train), "held_sha256": text_sha256(held)}
    with _folder(work) as folder:
        with Capture(model, settings.split, settings.target, layers, settings.context, threads) as rows:
            result = Job(rows, settings, Path(folder), identity).run(train, held, choices.progress)
        prints = Fingerprints(
            base, anchors.anchors(gguf, settings.split), anchors.encodings(gguf, settings.split, layers.stop)
        )
        return finish(prints, result, list(layers), output, settings, choices, text_sha256(train))


def _folder(work: Path | None) -> AbstractContextManager[Any]:
    if work is None:
        return tempfile.TemporaryDirectory(prefix="ridgefill-fit-")
    work.mkdir(parents=True, exist_ok=True)
    return nullcontext(work)


def finish(
    model: Fingerprints | Base,
    result: Result,
    layers: list[int],
    output: Path,
    settings: Settings,
    choices: Choices,
    digest: str,
) -> Report:
    """Solves, encodes and writes. Raises RidgefillError when there is too little to fit on."""
    model = Fingerprints(model) if isinstance(model, Base) else model
    n_in, widths = result.sums.n_in, result.sums.widths
    if not result.held.rows:
        raise RidgefillError("held-out", output, "held-out rows", 0, "at least 1", "give more or longer texts")
    if choices.prior == "identity" and (settings.target != "layer_input" or set(widths) != {n_in}):
        raise UsageError(
            "--prior identity: the source and the targets are different things", "use --target layer_input"
        )
    warnings = notes(result, n_in)
    try:
        solution = solve(
            result.sums,
            result.held,
            layers,
            choices.lambdas,
            choices.encoding,
            choices.prior,
            choices.per_layer,
            choices.progress,
        )
    except InexactScale as error:
        raise RidgefillError(
            "scale-f16", output, "scale", f"{error.value:.3g}", "float16 numbers", "use --type i8"
        ) from None
    except ValueError as error:
        raise RidgefillError("rows", output, "rows", str(error), "rows that differ") from None
    header = Header(
        base=model.base,
        anchors=model.anchors,
        encodings=model.encodings,
        split=settings.split,
        source_width=n_in,
        target_width=widths[0],
        target=settings.target,
        encoding=choices.encoding,
        layers=tuple(layers),
        credit=replace(choices.credit, name=choices.credit.name or default_name(model.base, settings)),
        fit=Fit(
            rows=result.sums.n_rows,
            head=settings.head,
            layers=tuple(layers),
            lambdas=tuple(m.lam for m in solution.maps),
            cosine=tuple(m.score.cosine for m in solution.maps),
            r2=tuple(m.score.r2 for m in solution.maps),
            condition=tuple(m.condition for m in solution.maps),
            text_sha256=digest,
            context=settings.context,
            stride=settings.stride,
            prior=choices.prior,
            held_rows=result.held.rows,
            dropped_rows=result.dropped,
            chat_share=settings.chat_share or None,
        ),
    )
    tensors = []
    for m in solution.maps:
        for part, (kind, ne) in map_parts(choices.encoding, n_in, widths[0]).items():
            tensors.append(Tensor(layer_tensor(m.layer, part), kind, ne, lambda data=m.parts[part]: [data]))  # type: ignore[misc]
    write_sidefile(output, header, tensors, choices.force)
    return Report(header, solution, result, warnings)


def default_name(base: Base, settings: Settings) -> str:
    return f"{base.name or base.architecture} ridgefill S{settings.split}"


def notes(result: Result, n_in: int) -> list[str]:
    warnings = []
    if result.sums.n_rows < FEW_ROWS * n_in:
        warnings.append(
            f"few-rows: {result.sums.n_rows} rows for {n_in} inputs; at least {FEW_ROWS * n_in} are advised"
        )
    if result.dropped:
        warnings.append(f"dropped-rows: {result.dropped} rows with NaN or infinity were left out")
    return warnings


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
    add("--split", type=_count(1), required=True, metavar="S", help="first layer whose bulk rows are filled")
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
    add("--threads", type=_count(0), default=0, metavar="N", help="CPU threads (default: 0, all usable)")
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
        split=args.split,
        target=args.target,
        context=args.ctx,
        head=args.head,
        stride=args.stride,
        max_rows=args.max_rows,
        held_rows=args.held_rows,
        chat_share=args.chat_share,
        seed=args.seed,
    )
    choices = Choices(
        lambdas=args.lambdas,
        prior=args.prior,
        per_layer=args.per_layer,
        encoding=args.type,
        credit=Credit(args.name, args.author, args.license),
        threads=args.threads,
        force=args.force,
        progress=True,
    )
    report = fit(args.model, train, held, args.output, settings, choices, args.resume)
    if args.json:
        print(json.dumps(as_json(report, args.output), indent=1))
    else:
        print_report(report)
        print(args.output)
    for warning in report.warnings:
        print(f"ridgefill: {warning}", file=sys.stderr)
    return 0
