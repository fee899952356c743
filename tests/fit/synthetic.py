"""Rows made from token ids instead of a model: x is a random vector per token, y a fixed noisy map of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

N_IN, WIDTHS, VOCAB = 64, (64, 64, 64), 256


class SyntheticRows:
    """Stands in for Capture. `stop_after` windows it raises KeyboardInterrupt, as a user does."""

    layers = (5, 6, 7)
    n_in = N_IN
    widths = WIDTHS
    frame: tuple[list[int], list[int]] = ([1], [])
    chat_frame: tuple[list[int], list[int]] = ([1, 2, 3], [4, 5])

    def __init__(self, stop_after: int = 1 << 30, noise: float = 0.3) -> None:
        rng = np.random.default_rng(0)
        self.table = (rng.normal(size=(VOCAB, N_IN)) * np.geomspace(3, 0.1, N_IN) + 2).astype(np.float32)
        self.maps = [rng.normal(size=(N_IN, w)).astype(np.float32) / 8 for w in WIDTHS]
        self.noise = noise
        self.left = stop_after
        self.seen = 0

    def tokenize(self, text: str) -> list[int]:
        return list(text.encode())

    def run(self, ids: Sequence[int]) -> tuple[np.ndarray, list[np.ndarray]]:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        self.seen += 1
        rng = np.random.default_rng(sum(ids) + len(ids))
        x = self.table[np.array(ids)] + rng.normal(size=(len(ids), N_IN)).astype(np.float32)
        x[:16] *= 100  # attention sinks: must not enter the sums
        ys = [x @ m + self.noise * rng.normal(size=(len(x), m.shape[1])).astype(np.float32) for m in self.maps]
        return x.astype(np.float32), [y.astype(np.float32) for y in ys]
