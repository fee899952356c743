"""From sums and held-out rows to encoded maps: lambda by held-out cosine, then the scores of what is really stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .. import encode, int8
from ..progress import Progress
from .held import HeldView, Score
from .ridge import RidgeSums

LAMBDAS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)


@dataclass(frozen=True)
class LayerMap:
    """One layer's map as it is written; `score` was taken from these very tensors."""

    layer: int
    lam: float
    score: Score
    condition: float
    parts: encode.Parts


@dataclass(frozen=True)
class Solution:
    maps: list[LayerMap]
    profile: dict[float, float]  # lambda -> held-out cosine, mean over layers


def solve(
    sums: RidgeSums,
    held: HeldView,
    layers: Sequence[int],
    lambdas: Sequence[float],
    encoding: str = "i8",
    prior: str = "zero",
    per_layer: bool = False,
    progress: bool = False,
) -> Solution:
    """One lambda for all layers, the best on the mean held-out cosine; `per_layer`: the best of each layer."""
    solver = sums.decompose()
    grid = np.zeros((len(layers), len(lambdas)))
    with Progress("solve", 2 * len(layers), "maps", progress) as bar:
        for i in range(len(layers)):
            maps = [solver.solve(i, lam, prior) for lam in lambdas]
            scores = held.scores(i, [(w.astype(np.float32), b.astype(np.float32)) for w, b in maps])
            grid[i] = [score.cosine for score in scores]
            bar.add(1)
        best = int(np.argmax(grid.mean(axis=0)))
        chosen = np.argmax(grid, axis=1) if per_layer else np.full(len(layers), best)
        result = []
        for i, layer in enumerate(layers):
            lam = lambdas[int(chosen[i])]
            weight, bias = solver.solve(i, lam, prior)
            bits = int8.f32_to_bf16(weight.astype(np.float32))
            parts = encode.from_bf16(bits, bias.astype(np.float32), encoding)
            (score,) = held.scores(i, [(encode.value_of(parts, sums.n_in), parts["bias"])])
            result.append(LayerMap(layer, lam, score, solver.condition(lam), parts))
            bar.add(1)
    profile = dict(zip(lambdas, grid.mean(axis=0).tolist(), strict=True))
    return Solution(result, profile)
