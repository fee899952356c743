"""What the fill gains: time to the first token's logits, exact and filled by turns, in one process and one library.

Each length is a cold prompt of real text. t_stock is the mode off of the same binary, which equals upstream.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .errors import RidgefillError, UsageError
from .fit.stdlib import stdlib_texts
from .fit.texts import load_documents
from .flops import Dims, dims_of, ratio_ideal
from .modes import parse_quality


@dataclass(frozen=True)
class Row:
    """One length. Times are medians in milliseconds; losses are in nats, None unless measured."""

    n_prompt: int
    split: int
    tail: int
    t_stock_ms: float
    t_fill_ms: float
    ratio: float
    ratio_ideal: float | None
    n_filled: int
    n_exact: int
    loss: float | None = None
    loss_identity: float | None = None
    loss_dropped: float | None = None
    mode: str = "speed"
    n_selected: int = 0


def bench(
    model: str | os.PathLike[str],
    projector: str | os.PathLike[str],
    text: str,
    lengths: Sequence[int],
    *,
    tail: int = 512,
    head: int = 16,
    reps: int = 3,
    threads: int | None = None,
    n_batch: int = 2048,
    n_ubatch: int = 512,
    gpu_layers: int = 0,
    modes: Sequence[str] = ("speed",),
    progress: Callable[[int, str, float], object] = lambda *_: None,
) -> list[Row]:
    """One row per length and mode ("speed", "quality", "quality:SELECT:SHARE").

    RidgefillError when the text has fewer tokens than the longest length, or nothing was filled.
    """
    from ._projector import make_params
    from ._session import Session

    most = max(lengths)
    with Session(model, most, threads=threads, n_batch=n_batch, n_ubatch=n_ubatch, gpu_layers=gpu_layers) as session:
        ids = session.tokenize(text)
        if len(ids) < most:
            raise RidgefillError("no-text", "prompt", "", f"{len(ids)} tokens", f"{most} or more, the longest length")
        loaded = session.load(projector)
        off = make_params("off", tail, head, 0)
        fills = {}
        for mode in modes:
            quality = parse_quality(mode)
            fills[mode] = make_params("quality" if quality else mode, tail, head, 0, *(quality or ()))
        session.attach(loaded, off)

        def once(n: int, params: Any, name: str) -> float:
            begin = time.perf_counter()
            for _ in session.decode(ids[:n], range(n - 1, n), params=params):
                pass
            ms = 1000 * (time.perf_counter() - begin)
            progress(n, name, ms)
            return ms

        once(min(most, 64), off, "warm-up")  # first touch of weights and buffers
        dims = _dims(model)
        rows = []
        for n in lengths:
            stock: list[float] = []
            filled: dict[str, list[float]] = {mode: [] for mode in fills}
            done = {}
            for _ in range(reps):
                stock.append(once(n, off, "off"))
                for mode, params in fills.items():
                    filled[mode].append(once(n, params, mode))
                    done[mode] = counts = session.counts()
                    if not counts.n_filled:
                        raise RidgefillError("not-filled", projector, f"length {n}", counts.reason, "filled rows")
            t_stock = statistics.median(stock)
            for mode, counts in done.items():
                chosen = counts.n_selected
                ideal = None if dims is None else ratio_ideal(dims, n, tail, head, loaded.split, selected=chosen)
                t_fill = statistics.median(filled[mode])
                rows.append(
                    Row(
                        *(n, loaded.split, tail, t_stock, t_fill, t_stock / t_fill, ideal),
                        *(counts.n_filled, counts.n_exact),
                        mode=mode,
                        n_selected=chosen,
                    )
                )
        return rows


def _dims(model: str | os.PathLike[str]) -> Dims | None:
    try:
        return dims_of(model)
    except ValueError as error:
        print(f"bench: no FLOP ideal: {error}", file=sys.stderr)
        return None


def table(rows: Sequence[Row]) -> str:
    lines = ["prompt split  tail  filled  exact   off ms  fill ms  ratio  ideal  mode"]
    for row in rows:
        ideal = f"{row.ratio_ideal:>7.2f}" if row.ratio_ideal is not None else f"{'-':>7}"
        lines.append(
            f"{row.n_prompt:>6}{row.split:>6}{row.tail:>6}{row.n_filled:>8}{row.n_exact:>7}"
            f"{row.t_stock_ms:>9.0f}{row.t_fill_ms:>9.0f}{row.ratio:>7.2f}{ideal}  {row.mode}"
        )
    return "\n".join(lines)


def write_json(path: str | os.PathLike[str], rows: Sequence[Row]) -> None:
    Path(path).write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


# command


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "bench",
        help="measure what the fill gains",
        description="Time to the first token's logits, exact and filled by turns, medians.",
    )
    parser.add_argument("-m", "--model", required=True, help="model GGUF")
    parser.add_argument("-p", "--projector", required=True, help="side file")
    parser.add_argument(
        *("-f", "--file"),
        type=Path,
        nargs="+",
        default=[],
        metavar="TEXT",
        help="prompt (default: the standard library)",
    )
    parser.add_argument("--lengths", default="2048,4096", help="prompt lengths in tokens (default 2048,4096)")
    parser.add_argument("--tail", type=int, default=512, help="rows at the end that run exactly (default 512)")
    parser.add_argument("--head", type=int, default=16, help="rows at the beginning that run exactly (default 16)")
    parser.add_argument(
        "--modes", default="speed", help="speed, quality, quality:SELECT:SHARE with commas (default speed)"
    )
    parser.add_argument("--reps", type=int, default=3, help="repetitions (default 3)")
    parser.add_argument("-t", "--threads", type=int, default=None, help="CPU threads (default all)")
    parser.add_argument("-b", "--batch-size", type=int, default=2048, help="rows per batch (default 2048)")
    parser.add_argument("-ub", "--ubatch-size", type=int, default=512, help="rows per micro-batch (default 512)")
    parser.add_argument("-ngl", "--gpu-layers", type=int, default=0, help="layers on the GPU (default 0)")
    parser.add_argument("--json", metavar="PATH", default=None, help="write the rows as JSON too")
    return parser


def run(args: argparse.Namespace) -> int:
    try:
        lengths = [int(part) for part in args.lengths.split(",")]
    except ValueError:
        raise UsageError(f"--lengths: found {args.lengths!r}, allowed whole numbers with commas") from None
    if min(lengths) <= args.tail + args.head or args.tail < 1 or args.head < 0:
        raise UsageError(f"--lengths: found {min(lengths)}, allowed more than tail + head = {args.tail + args.head}")
    if args.reps < 1:
        raise UsageError(f"--reps: found {args.reps}, allowed 1 or more")
    modes = args.modes.split(",")
    for mode in modes:
        if mode != "speed" and parse_quality(mode) is None:
            raise UsageError(f"--modes: found {mode!r}, allowed speed, quality, quality:SELECT:SHARE")
    rows = bench(
        args.model,
        args.projector,
        "\n\n".join(document.text for document in load_documents(args.file)) if args.file else default_text(),
        lengths,
        tail=args.tail,
        head=args.head,
        reps=args.reps,
        threads=args.threads,
        n_batch=args.batch_size,
        n_ubatch=args.ubatch_size,
        gpu_layers=args.gpu_layers,
        modes=modes,
        progress=say_progress,
    )
    print(table(rows))
    if args.json:
        write_json(args.json, rows)
    return 0


def say_progress(n_prompt: int, name: str, ms: float) -> None:
    print(f"{n_prompt:>7} {name:<22}{ms:>9.0f} ms", file=sys.stderr, flush=True)


def default_text() -> str:
    """Prose that every Python has: what `ridgefill fit --stdlib` leaves out."""
    return "\n\n".join(document.text for document in stdlib_texts()[1])
