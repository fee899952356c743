"""`--split auto`: fits several splits in one pass, measures what each costs, takes the fastest that is good enough.

The rule: of the splits tried, the lowest whose mean tail loss is at most `max_loss`; when none is, the one that loses
least. A lower split fills more layers, so it is faster and loses more.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..base import base_of
from ..errors import RidgefillError
from ..gguf_writer import refuse_overwrite, replacing
from .blas import usable_cpus
from .job import Settings
from .run import Choices, Report, fit_splits
from .texts import Document
from .vocabulary import Vocabulary

FRACTIONS = (1 / 3, 1 / 2, 2 / 3, 5 / 6)  # of the layers
IDEAL_PROMPT = 8192  # rows of the prompt that the speed ideal is given for
DOCUMENT_TAILS = 5  # a held-out document is measured on so many tails of its tokens


@dataclass(frozen=True)
class Auto:
    max_loss: float = 0.05  # nats per token
    tail: int = 512
    documents: int = 10


@dataclass(frozen=True)
class Row:
    """One split: stock over fill by FLOPs at IDEAL_PROMPT rows (None where not counted), cosine, tail loss."""

    split: int
    ideal: float | None
    cosine: float
    loss: float


@dataclass(frozen=True)
class Choice:
    split: int
    report: Report
    rows: list[Row]
    good: bool  # whether it is within max_loss


def candidates(layers: int) -> list[int]:
    """Splits to try, ascending: a third, half, two thirds and five sixths of the layers."""
    return sorted({min(max(1, round(layers * fraction)), layers - 2) for fraction in FRACTIONS if layers > 2})


def pick(rows: Sequence[Row], max_loss: float) -> tuple[int, bool]:
    """(split, whether it is good enough) by the rule above."""
    good = [row.split for row in rows if row.loss <= max_loss]
    return (min(good), True) if good else (min(rows, key=lambda row: row.loss).split, False)


def choose(
    model: Path,
    train: list[Document],
    held: list[Document],
    output: Path,
    settings: Settings,
    choices: Choices,
    auto: Auto,
    work: Path | None = None,
) -> Choice:
    """Fits, measures, and writes the chosen side file only."""
    refuse_overwrite(output, choices.force)
    splits = candidates(base_of(model).block_count)
    if not splits:
        raise RidgefillError("split-range", model, "--split auto", "too few layers", "3 layers or more")
    _require_long(model, held, DOCUMENT_TAILS * auto.tail)
    with tempfile.TemporaryDirectory(prefix="ridgefill-auto-") if work is None else nullcontext(work) as folder:
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        files = {split: place / f"S{split}.gguf" for split in splits}
        reports = fit_splits(model, train, held, files, settings, replace(choices, force=True), place)
        losses = _losses(model, files, held, settings, choices, auto)
        rows = [Row(s, _ideal(model, s, auto, settings), mean_cosine(reports[s]), losses[s]) for s in splits]
        split, good = pick(rows, auto.max_loss)
        with replacing(output, choices.force) as file, open(files[split], "rb") as best:
            shutil.copyfileobj(best, file)
    return Choice(split, reports[split], rows, good)


def _require_long(model: Path, held: list[Document], tokens: int) -> None:
    """Refuses before the long work what the measurement after it would refuse."""
    with Vocabulary(model) as vocabulary:
        longest = max((len(vocabulary.tokenize(document.text)) for document in held), default=0)
    if longest < tokens:
        hint = "give longer texts, or a shorter --tail"
        raise RidgefillError("no-text", model, "--split auto", f"held-out text of {longest} tokens", tokens, hint)


def mean_cosine(report: Report) -> float:
    maps = report.solution.maps
    return sum(m.score.cosine for m in maps) / len(maps)


def _losses(
    model: Path, files: dict[int, Path], held: list[Document], settings: Settings, choices: Choices, auto: Auto
) -> dict[int, float]:
    from ..evaluate import tail_loss

    report = tail_loss(
        model,
        {str(split): file for split, file in files.items()},
        [document.text for document in held],
        tokens=DOCUMENT_TAILS * auto.tail,
        tail=auto.tail,
        head=settings.head,
        documents=auto.documents,
        modes=("fill",),
        threads=choices.threads or usable_cpus(),
    )
    return {split: _of(report, split) for split in files}


def _of(report: Any, split: int) -> float:
    return float(report.arm("fill", str(split)).loss)


def _ideal(model: Path, split: int, auto: Auto, settings: Settings) -> float | None:
    from ..flops import dims_of, ratio_ideal

    try:
        return ratio_ideal(dims_of(model), IDEAL_PROMPT, auto.tail, settings.head, split)
    except ValueError:
        return None


def print_choice(choice: Choice, auto: Auto) -> None:
    print(f"split   ideal at {IDEAL_PROMPT}  held-out cosine  tail loss")
    for row in choice.rows:
        ideal = "-" if row.ideal is None else f"{row.ideal:.2f}"
        mark = "  <- chosen" if row.split == choice.split else ""
        print(f"{row.split:5}  {ideal:>14}  {row.cosine:15.4f}  {row.loss:+9.3f}{mark}")
    within = f"within {auto.max_loss:g} nats"
    print(f"rule: lowest split {within}" if choice.good else f"rule: least loss, as none is {within}")
