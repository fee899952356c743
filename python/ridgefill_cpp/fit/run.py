"""A fit from start to end: capture, solve, encode, write; for one split or several in one pass."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import anchors
from ..base import base_of_gguf
from ..encode import InexactScale
from ..errors import RidgefillError, UsageError
from ..gguf_reader import GgufFile, read_gguf
from ..gguf_writer import Tensor, refuse_overwrite
from ..layout import Base, Credit, Fit, Header, layer_tensor, map_parts
from ..sidefile import write_sidefile
from .blas import limit_blas, usable_cpus
from .job import Job, Result, Settings
from .solve import LAMBDAS, Solution, solve
from .texts import Document, text_sha256
from .weights import chosen, model_file

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
    gpu_layers: int = 0
    force: bool = False
    progress: bool = False


DEFAULTS = Choices()


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
    choices: Choices = DEFAULTS,
    work: Path | None = None,
) -> Report:
    """Captures, fits and writes one side file. `work`: a folder that keeps the sums and can be gone on with."""
    return fit_splits(model, train, held, {settings.split: output}, settings, choices, work)[settings.split]


def fit_splits(
    model: Path,
    train: list[Document],
    held: list[Document],
    outputs: Mapping[int, Path],
    settings: Settings,
    choices: Choices = DEFAULTS,
    work: Path | None = None,
) -> dict[int, Report]:
    """One side file per split of `outputs`; `settings.split` does not count. One pass over the text for layer_input,
    one per split for block_input."""
    for output in outputs.values():
        refuse_overwrite(output, choices.force)
    if choices.prior == "identity" and settings.target != "layer_input":
        raise UsageError("--prior identity: found --target block_input, allowed --target layer_input")
    gguf = read_gguf(model, model=True)
    settings = replace(settings, weights=chosen(settings.weights, gguf, choices.gpu_layers))
    base = base_of_gguf(gguf)
    layers = base.block_count
    for split in outputs:
        if not 1 <= split < layers - 1:
            raise RidgefillError("split-range", model, "--split", split, f"1 .. {layers - 2}")
        if split < base.min_split:
            raise RidgefillError("split-ngram", model, "--split", split, f"{base.min_split} .. {layers - 2}")
    splits = sorted(outputs)
    passes = [splits] if settings.target == "layer_input" else [[split] for split in splits]
    reports = {}
    with _folder(work) as folder:
        for together in passes:
            place = Path(folder) / "-".join(map(str, together)) if len(passes) > 1 else Path(folder)
            place.mkdir(exist_ok=True)
            own = replace(settings, split=together[0])
            for result in _capture(model, gguf, train, held, together, own, choices, place):
                target = outputs[result.split]
                prints = fingerprints(gguf, result.split)
                own = replace(settings, split=result.split)
                digest = text_sha256(train)
                reports[result.split] = finish(prints, result, list(result.layers), target, own, choices, digest)
    return reports


def _capture(
    model: Path,
    gguf: GgufFile,
    train: Sequence[Document],
    held: Sequence[Document],
    splits: Sequence[int],
    settings: Settings,
    choices: Choices,
    folder: Path,
) -> list[Result]:
    from .capture import Capture

    base = base_of_gguf(gguf)
    threads = choices.threads or usable_cpus()
    limit_blas(threads)
    layers = range(splits[0] + 1, base.block_count)
    identity: dict[str, Any] = {
        "model_bytes": gguf.size,
        "base": [base.architecture, base.block_count, base.tokenizer_sha256],
        "train_sha256": text_sha256(train),
        "held_sha256": text_sha256(held),
    }
    with (
        model_file(settings.weights, model, threads) as path,
        Capture(path, splits[0], settings.target, layers, settings.context, threads, choices.gpu_layers) as rows,
    ):
        return Job(rows, settings, folder, identity, splits[1:]).run_all(train, held, choices.progress)


def fingerprints(gguf: GgufFile, split: int) -> Fingerprints:
    base = base_of_gguf(gguf)
    late = anchors.encodings(gguf, split, base.block_count)
    return Fingerprints(base, anchors.anchors(gguf, split), late)


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
    if choices.prior == "identity" and set(widths) != {n_in}:
        raise UsageError(f"--prior identity: found widths {n_in} and {widths[0]}, allowed equal ones")
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
            weights=settings.weights,
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
