"""Held-out rows on disk, one file per tensor, and the scores of a map on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
STEP = 2048  # rows in memory at a time


@dataclass(frozen=True)
class Score:
    """cosine: mean over rows of cosine(predicted, true); r2: 1 - residual over variance about the mean, all columns."""

    cosine: float
    r2: float


class HeldRows:
    """Rows x [n, n_in] and ys[i] [n, widths[i]] in a folder. `rows` is what counts; a longer file is cut on opening."""

    def __init__(self, folder: Path, n_in: int, widths: Sequence[int], rows: int = 0) -> None:
        self.rows = rows
        self.files = [(folder / "held.x", n_in), *((folder / f"held.y{i}", width) for i, width in enumerate(widths))]
        for path, width in self.files:
            with open(path, "ab") as file:
                file.truncate(rows * width * 4)

    def append(self, x: F32, ys: Sequence[F32]) -> int:
        """Adds rows; returns how many were left out for NaN or infinity."""
        good = np.isfinite(x).all(axis=1)
        for y in ys:
            good &= np.isfinite(y).all(axis=1)
        for (path, _), data in zip(self.files, (x, *ys), strict=True):
            with open(path, "ab") as file:
                file.write(np.ascontiguousarray(data[good], dtype=np.float32).data)
        self.rows += int(good.sum())
        return int((~good).sum())

    def piece(self, index: int, begin: int) -> F32:
        """Up to STEP rows of x (index 0) or ys[index - 1], from row `begin`."""
        path, width = self.files[index]
        count = min(STEP, self.rows - begin)
        with open(path, "rb") as file:
            file.seek(begin * width * 4)
            return np.fromfile(file, np.float32, count * width).reshape(count, width)

    def view(self, source: int, targets: Sequence[int]) -> HeldView:
        """The rows as one fit sees them; the numbers count (x, *ys) from 0."""
        return HeldView(self, source, tuple(targets))

    def scores(self, source: int, target: int, maps: Sequence[tuple[F32, F32]]) -> list[Score]:
        """One score per map (W [n_out, n_in], b [n_out]) from one tensor to another; both count (x, *ys) from 0."""
        cosine, residual = np.zeros(len(maps)), np.zeros(len(maps))
        total: F64 = np.zeros(self.files[target][1])
        squares = 0.0
        for begin in range(0, self.rows, STEP):
            x, y = self.piece(source, begin), self.piece(target, begin)
            total += y.sum(axis=0, dtype=np.float64)
            squares += float(np.square(y, dtype=np.float64).sum())
            for i, (weight, bias) in enumerate(maps):
                predicted = x @ weight.T + bias
                cosine[i] += float(row_cosines(predicted, y).sum())
                residual[i] += float(np.square(predicted - y, dtype=np.float64).sum())
        variance = squares - float(total @ total) / max(1, self.rows)
        r2 = 1 - residual / variance if variance > 0 else np.zeros(len(maps))
        return [Score(float(c) / max(1, self.rows), float(r)) for c, r in zip(cosine, r2, strict=True)]


@dataclass(frozen=True)
class HeldView:
    """Held-out rows of one source and its targets."""

    stored: HeldRows
    source: int
    targets: tuple[int, ...]

    @property
    def rows(self) -> int:
        return self.stored.rows

    def scores(self, target: int, maps: Sequence[tuple[F32, F32]]) -> list[Score]:
        """One score per map on target number `target` of this view."""
        return self.stored.scores(self.source, self.targets[target], maps)


def row_cosines(a: F32, b: F32) -> F64:
    """Cosine of each pair of rows; 0 where one of them is zero."""
    dot = np.einsum("ij,ij->i", a, b, dtype=np.float64)
    size = np.sqrt(np.einsum("ij,ij->i", a, a, dtype=np.float64) * np.einsum("ij,ij->i", b, b, dtype=np.float64))
    result: F64 = np.divide(dot, size, out=np.zeros_like(dot), where=size > 0)
    return result
