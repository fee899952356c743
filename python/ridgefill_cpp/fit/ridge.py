"""Centred ridge regression from streamed sums: y = W x + b with the bias not penalised.

For rows i with weights w_i, source x_i and target y_i, about their weighted means:
C = sum w_i dx dx^T, D = sum w_i dy dx^T, W = D (C + p I)^-1, b = my - W mx, p = lambda * trace(C) / n_in.
With the prior "identity" the penalty draws W to I instead of 0: W = (D + p I) (C + p I)^-1.
C = Q E Q^T is decomposed once and serves every lambda and every layer. Sums are float64 and taken about the mean of the
first rows seen, so that a mean far from zero costs no digits. Memory does not grow with the number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
PRIORS = ("zero", "identity")


class RidgeSums:
    """Weighted sums over rows of one source and several targets; `n_dropped` counts rows with NaN or infinity."""

    def __init__(self, n_in: int, widths: Sequence[int]) -> None:
        self.n_in = n_in
        self.widths = tuple(widths)
        self.n_rows = 0
        self.n_dropped = 0
        self.weight = 0.0
        self.x0: F64 | None = None  # what the sums are taken about
        self.y0: list[F64] = []
        self.sx: F64 = np.zeros(n_in)
        self.sy: list[F64] = [np.zeros(width) for width in self.widths]
        self.sxx: F64 = np.zeros((n_in, n_in))
        self.sxy: list[F64] = [np.zeros((n_in, width)) for width in self.widths]

    def add(self, x: F32, ys: Sequence[F32], weight: float = 1.0) -> None:
        """Adds rows x [rows, n_in] and ys[i] [rows, widths[i]], all with one weight."""
        if not all(np.isfinite(part.sum(dtype=np.float64)) for part in (x, *ys)):
            good = np.isfinite(x).all(axis=1)
            for y in ys:
                good &= np.isfinite(y).all(axis=1)
            self.n_dropped += int((~good).sum())
            x, ys = x[good], [y[good] for y in ys]
        if not len(x):
            return
        if self.x0 is None:
            self.x0 = x.mean(axis=0, dtype=np.float64)
            self.y0 = [y.mean(axis=0, dtype=np.float64) for y in ys]
        dx = x - self.x0
        self.n_rows += len(x)
        self.weight += weight * len(x)
        self.sx += weight * dx.sum(axis=0)
        self.sxx += weight * (dx.T @ dx)
        for i, y in enumerate(ys):
            dy = y - self.y0[i]
            self.sy[i] += weight * dy.sum(axis=0)
            self.sxy[i] += weight * (dx.T @ dy)

    def absorb(self, other: RidgeSums, weight: float = 1.0) -> None:
        """Adds the rows of `other`, their weights multiplied by `weight`."""
        assert (self.n_in, self.widths) == (other.n_in, other.widths)
        self.n_rows += other.n_rows
        self.n_dropped += other.n_dropped
        if other.x0 is None:
            return
        if self.x0 is None:
            self.x0, self.y0 = other.x0.copy(), [y.copy() for y in other.y0]
        # (x - a) = (x - b) + s with s = b - a, for both sources and targets
        s, n = other.x0 - self.x0, other.weight
        outer = np.outer(other.sx, s)
        self.weight += weight * n
        self.sx += weight * (other.sx + n * s)
        self.sxx += weight * (other.sxx + outer + outer.T + n * np.outer(s, s))
        for i in range(len(self.widths)):
            t = other.y0[i] - self.y0[i]
            self.sy[i] += weight * (other.sy[i] + n * t)
            self.sxy[i] += weight * (
                other.sxy[i] + np.outer(other.sx, t) + np.outer(s, other.sy[i]) + n * np.outer(s, t)
            )

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Everything, as named arrays for np.savez; `restored` is the way back."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "counts": np.array([self.n_rows, self.n_dropped, self.x0 is not None], np.int64),
            "weight": np.array([self.weight]),
            "sx": self.sx,
            "sxx": self.sxx,
        }
        for i in range(len(self.widths)):
            arrays |= {f"sy{i}": self.sy[i], f"sxy{i}": self.sxy[i]}
        if self.x0 is not None:
            arrays |= {"x0": self.x0, **{f"y0{i}": y for i, y in enumerate(self.y0)}}
        return arrays

    @classmethod
    def restored(cls, arrays: Mapping[str, npt.NDArray[Any]], n_targets: int) -> RidgeSums:
        sums = cls.__new__(cls)
        sums.n_rows, sums.n_dropped = (int(n) for n in arrays["counts"][:2])
        sums.weight = float(arrays["weight"][0])
        sums.sx, sums.sxx = arrays["sx"], arrays["sxx"]
        sums.sy = [arrays[f"sy{i}"] for i in range(n_targets)]
        sums.sxy = [arrays[f"sxy{i}"] for i in range(n_targets)]
        seen = bool(arrays["counts"][2])
        sums.x0 = arrays["x0"] if seen else None
        sums.y0 = [arrays[f"y0{i}"] for i in range(n_targets)] if seen else []
        sums.n_in, sums.widths = len(sums.sx), tuple(map(len, sums.sy))
        return sums

    def decompose(self) -> Solver:
        """The one eigendecomposition. Raises ValueError when the rows do not vary."""
        if self.x0 is None or self.weight <= 0:
            raise ValueError("no rows")
        mx = self.sx / self.weight
        c = self.sxx - np.outer(self.sx, mx)
        trace = float(np.trace(c))
        if not trace > 0:
            raise ValueError("all rows are equal")
        values, vectors = np.linalg.eigh(c)
        means = [s / self.weight for s in self.sy]
        cross = [sxy.T - np.outer(my, self.sx) for sxy, my in zip(self.sxy, means, strict=True)]
        return Solver(
            np.maximum(values, 0), vectors, trace / self.n_in,
            mx + self.x0, [my + y0 for my, y0 in zip(means, self.y0, strict=True)], cross,
        )  # fmt: skip


@dataclass(frozen=True)
class Solver:
    """C = vectors diag(values) vectors^T about the means; cross[i] is D of target i, [n_out, n_in]."""

    values: F64
    vectors: F64
    mean_diagonal: float
    mx: F64
    my: list[F64]
    cross: list[F64]

    def solve(self, target: int, lam: float, prior: str = "zero") -> tuple[F64, F64]:
        """W [n_out, n_in] and b [n_out] of one target; lam > 0 is relative to the mean diagonal of C."""
        penalty = lam * self.mean_diagonal
        rotated = self.cross[target] @ self.vectors
        if prior == "identity":
            rotated += penalty * self.vectors
        weight = (rotated / (self.values + penalty)) @ self.vectors.T
        return weight, self.my[target] - weight @ self.mx

    def condition(self, lam: float) -> float:
        """Condition number of C + p I."""
        penalty = lam * self.mean_diagonal
        return float((self.values[-1] + penalty) / (self.values[0] + penalty))
