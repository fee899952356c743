"""What the fill costs: the loss on a prompt's exact tail, paired with an exact run of the same tokens.

Arms, all scored on the last tail - 1 tokens of each document:
    fill         the bulk filled by the projector (mode speed)
    uncorrected  the same without its correction of recurrent states, where it has one
    quality      as fill, then selected bulk rows run exactly; quality:SELECT:SHARE for others than attention and 0.13
    identity     the bulk filled by the identity (every late layer is given the stream entering the split)
    dropped      no bulk at all: the exact tail is the whole prompt, behind the model's leading token if it has one;
                 dropped:ROWS: the last ROWS rows are
The loss of an arm is its mean negative log-likelihood per token minus that of the exact run, in nats.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from .errors import RidgefillError, UsageError
from .fit.stdlib import stdlib_texts
from .fit.texts import load_documents
from .modes import parse_dropped, parse_quality

# the default; besides: quality, quality:SELECT:SHARE, dropped:ROWS
MODES = ("fill", "uncorrected", "identity", "dropped")


@dataclass(frozen=True)
class Arm:
    """One arm over its documents; low and high are the bootstrap interval of the mean (2.5 %, 97.5 %)."""

    label: str  # the projector's, or "" for dropped
    mode: str
    documents: int
    loss: float
    low: float
    high: float
    median: float
    top1: float  # share of positions where the most likely token is the exact run's
    losses: tuple[float, ...] = field(repr=False)


@dataclass(frozen=True)
class Report:
    tokens: int
    tail: int
    head: int
    documents: int
    exact: float  # nats per token of the exact run
    arms: tuple[Arm, ...]

    def arm(self, mode: str, label: str = "") -> Arm | None:
        """The arm, or None when it did not run; `label` says which projector's, where there are several."""
        return next((arm for arm in self.arms if arm.mode == mode and arm.label in (label, "")), None)


def tail_loss(
    model: str | os.PathLike[str],
    projectors: Mapping[str, str | os.PathLike[str]],
    texts: Iterable[str],
    *,
    tokens: int = 2560,
    tail: int = 512,
    head: int = 16,
    documents: int | None = None,
    modes: Sequence[str] = MODES,
    threads: int | None = None,
    resamples: int = 10_000,
    enough: Callable[[int], bool] = lambda n_done: False,
    progress: Callable[[int, float, Mapping[tuple[str, str], float]], object] = lambda *_: None,
) -> Report:
    """Scores each text of at least `tokens` tokens (its first `tokens`), in the order given, at most `documents`.

    projectors: label -> side file. enough(n) stops early after n documents; progress(n, exact nats, losses) hears of
    each. Memory: the model, one context of `tokens` rows and the projectors, whatever the number of documents.
    Raises ValueError when no text is long enough or tail and head leave no bulk.
    """
    from ._arms import Arms  # the native libraries, which the command line's help does not need
    from ._session import Session

    if tail < 2 or head + tail >= tokens:
        raise ValueError(f"tokens {tokens}, tail {tail}, head {head}: allowed tail >= 2 and head + tail < tokens")
    with tempfile.TemporaryDirectory() as folder, Session(model, tokens, threads=threads) as session:
        arms = Arms(session, tokens, tail, head)
        arms.load(projectors, modes, Path(folder))
        arms.run(texts, documents, enough, progress)
    if not arms.exact:
        raise RidgefillError("no-text", "texts", "", f"no document of {tokens} tokens or more", "at least one")
    done = []
    for (label, mode), losses in arms.losses.items():
        low, high = bootstrap(losses, resamples)
        mean, median, top1 = np.mean(losses), np.median(losses), np.mean(arms.agree[label, mode])
        done.append(Arm(label, mode, len(losses), float(mean), low, high, float(median), float(top1), tuple(losses)))
    return Report(tokens, tail, head, len(arms.exact), float(np.mean(arms.exact)), tuple(done))


def bootstrap(values: Sequence[float], resamples: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """The 2.5 and 97.5 percentiles of the mean over documents drawn with replacement."""
    data = np.asarray(values, np.float64)
    picks = np.random.default_rng(seed).integers(0, len(data), (resamples, len(data)))
    low, high = np.percentile(data[picks].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


# command


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "eval",
        help="measure what the fill costs on held-out text",
        description="Loss on the exact tail of each document against an exact run of the same tokens.",
    )
    parser.add_argument("-m", "--model", required=True, help="model GGUF")
    parser.add_argument("-p", "--projector", required=True, help="side file")
    parser.add_argument(
        *("-f", "--file"), type=Path, nargs="+", default=[], metavar="TEXT", help="held-out texts, folders, or JSONL"
    )
    parser.add_argument(
        "--stdlib", action="store_true", help="use the documents that `ridgefill fit --stdlib` left out"
    )
    parser.add_argument("--tokens", type=int, default=2560, help="tokens of a document (default 2560)")
    parser.add_argument("--tail", type=int, default=512, help="rows at the end that run exactly (default 512)")
    parser.add_argument("--head", type=int, default=16, help="rows at the beginning that run exactly (default 16)")
    parser.add_argument("--docs", type=int, default=None, help="at most so many documents (default all)")
    parser.add_argument(
        "--modes", default=",".join(MODES), help=f"arms beside the exact run (default {','.join(MODES)})"
    )
    parser.add_argument("-t", "--threads", type=int, default=None, help="CPU threads (default all)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def run(args: argparse.Namespace) -> int:
    modes = tuple(mode for mode in args.modes.split(",") if mode)
    for mode in modes:
        if mode not in MODES and parse_quality(mode) is None and parse_dropped(mode, args.tail) is None:
            allowed = f"{', '.join(MODES)}, quality, quality:SELECT:SHARE, dropped:ROWS"
            raise UsageError(f"--modes: found {mode!r}, allowed {allowed}")
    docs = 1 if args.docs is None else args.docs
    for name, value, least in (("--tail", args.tail, 2), ("--head", args.head, 0), ("--docs", docs, 1)):
        if value < least:
            raise UsageError(f"{name}: found {value}, allowed {least} or more")
    if args.tokens <= args.tail + args.head:
        raise UsageError(f"--tokens: found {args.tokens}, allowed more than tail + head = {args.tail + args.head}")
    texts = texts_of(args)
    report = tail_loss(
        args.model,
        {"": args.projector},
        texts,
        tokens=args.tokens,
        tail=args.tail,
        head=args.head,
        documents=args.docs,
        modes=modes,
        threads=args.threads,
        progress=say_progress,
    )
    print(json.dumps(asdict(report), indent=1) if args.json else table(report))
    return 0


def texts_of(args: argparse.Namespace) -> list[str]:
    """The documents that the command line names."""
    if args.stdlib == bool(args.file):
        found = "both -f and --stdlib" if args.stdlib else "neither -f nor --stdlib"
        raise UsageError(f"text: found {found}, allowed one of them")
    documents = stdlib_texts()[1] if args.stdlib else load_documents(args.file)
    return [document.text for document in documents]


def say_progress(n_done: int, exact: float, losses: Mapping[tuple[str, str], float]) -> None:
    parts = [f"{' '.join(filter(None, (label, mode)))} {loss:+.3f}" for (label, mode), loss in losses.items()]
    print(f"document {n_done}: exact {exact:.3f} nats, {', '.join(parts)}", file=sys.stderr, flush=True)


def table(report: Report) -> str:
    lines = [
        f"{report.documents} documents of {report.tokens} tokens, tail {report.tail}, head {report.head}, "
        f"exact {report.exact:.3f} nats per token",
        f"{'arm':<20}{'docs':>5}{'loss':>9}{'95 % interval':>20}{'median':>9}{'top-1':>8}",
    ]
    for arm in report.arms:
        name = " ".join(filter(None, (arm.label, arm.mode)))
        interval = f"{arm.low:+.3f} .. {arm.high:+.3f}"
        lines.append(f"{name:<20}{arm.documents:>5}{arm.loss:>+9.3f}{interval:>20}{arm.median:>+9.3f}{arm.top1:>7.1%}")
    return "\n".join(lines)
