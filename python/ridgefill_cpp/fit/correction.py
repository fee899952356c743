"""The constant that is added to a recurrent state at the end of a filled bulk: C = mean of (exact - filled).

States are [heads, V, K] after the same chunk of the same prompt, run exactly and filled without a correction. Sums are
float64. Published states have their heads grouped by key head, llama.cpp has them tiled: `tiled` and `grouped` convert.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..gguf_types import F32 as GGML_F32
from ..gguf_writer import Tensor
from ..layout import layer_tensor
from ..rewrite import write_copy
from ..sidefile import SideFile, checked_header

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
MIN_PROMPTS, MIN_ENDS = 13, 50  # of the published fit


@dataclass(frozen=True)
class ChunkEnd:
    """What two states must share to be compared: which prompt and chunk, and the chunk's last position."""

    first: int  # first position of the chunk
    chunk: str  # hash of the chunk's token ids
    last: int


@dataclass
class StateSums:
    """Sums of one layer over chunk ends."""

    total: F64  # sum of exact - filled
    energy: float = 0.0  # sum of |exact - filled|^2
    exact: float = 0.0  # sum of |exact|^2
    count: int = 0

    def add(self, exact: F32, filled: F32) -> None:
        difference = exact.astype(np.float64) - filled
        self.total += difference
        self.energy += float(np.square(difference).sum())
        self.exact += float(np.square(exact, dtype=np.float64).sum())
        self.count += 1

    @property
    def constant(self) -> F32:
        """C, float32 [heads, V, K]."""
        result: F32 = (self.total / self.count).astype(np.float32)
        return result

    @property
    def relative_error(self) -> float:
        """sqrt(sum |exact - filled|^2 / sum |exact|^2): the size of what is to be corrected."""
        return float(np.sqrt(self.energy / self.exact)) if self.exact else 0.0

    def left_over(self, alpha: float) -> float:
        """Share of the error energy that alpha * C leaves, on the ends that C was fitted on."""
        removed = float(np.square(self.total).sum()) / self.count
        return 1 + (alpha * alpha - 2 * alpha) * removed / self.energy if self.energy else 1.0

    def left_over_by(self, constant: F32, alpha: float) -> float:
        """Share of these ends' error energy that alpha times a constant fitted elsewhere leaves."""
        if not self.energy:
            return 1.0
        c = constant.astype(np.float64)
        change = alpha * alpha * self.count * np.square(c).sum() - 2 * alpha * (c * self.total).sum()
        return float(1 + change / self.energy)


class CorrectionFit:
    """Pairs exact and filled states by chunk end and sums them per layer."""

    def __init__(self) -> None:
        self.layers: dict[int, StateSums] = {}
        self.prompts: set[str] = set()
        self._waiting: dict[tuple[str, ChunkEnd, int], F32] = {}
        self.n_bad = 0  # pairs with NaN or infinity, left out

    def exact(self, prompt: str, end: ChunkEnd, layer: int, state: F32) -> None:
        """An exact state, kept until its filled counterpart comes."""
        self._waiting[prompt, end, layer] = state.astype(np.float32, copy=True)

    def filled(self, prompt: str, end: ChunkEnd, layer: int, state: F32) -> bool:
        """A filled state; returns whether there was an exact one of the same chunk end."""
        exact = self._waiting.pop((prompt, end, layer), None)
        if exact is None or exact.shape != state.shape:
            return False
        if not (np.isfinite(exact).all() and np.isfinite(state).all()):
            self.n_bad += 1
            return False
        if layer not in self.layers:
            self.layers[layer] = StateSums(np.zeros(exact.shape))
        self.layers[layer].add(exact, state)
        self.prompts.add(prompt)
        return True

    @property
    def n_unpaired(self) -> int:
        return len(self._waiting)

    def warnings(self) -> list[str]:
        ends = min((sums.count for sums in self.layers.values()), default=0)
        found = []
        if len(self.prompts) < MIN_PROMPTS or ends < MIN_ENDS:
            wanted = f"at least {MIN_PROMPTS} and {MIN_ENDS} are advised"
            found.append(f"few-states: {len(self.prompts)} prompts and {ends} chunk ends; {wanted}")
        if self.n_unpaired or self.n_bad:
            found.append(f"states-left-out: {self.n_unpaired} without a counterpart, {self.n_bad} with NaN or infinity")
        return found


def tiled_index(n_heads: int, n_key_heads: int) -> npt.NDArray[np.intp]:
    """index[p] = grouped head at tiled place p: grouped h = k * r + i is tiled p = i * n_key_heads + k."""
    if n_key_heads < 1 or n_heads % n_key_heads:
        raise ValueError(f"heads: found {n_heads} for {n_key_heads} key heads, allowed a multiple")
    index: npt.NDArray[np.intp] = np.arange(n_heads).reshape(n_key_heads, -1).T.reshape(-1)
    return index


def tiled(state: F32, n_key_heads: int) -> F32:
    """A published state [heads, V, K] in llama.cpp's order of heads."""
    return state[tiled_index(len(state), n_key_heads)]


def grouped(state: F32, n_key_heads: int) -> F32:
    """The way back."""
    return state[np.argsort(tiled_index(len(state), n_key_heads))]


class Applied:
    """The bookkeeping of one sequence and layer when C is added and taken off again; the reference for the runtime.

    order in a late layer: undo, scan, update of the share, apply. A scale of 0 adds nothing, so that bits stay.
    """

    def __init__(self, n_heads: int) -> None:
        self.scale = np.zeros(n_heads, np.float32)
        self.share_n = np.zeros(n_heads)  # N and D of rho: filled and all weight still in the state, per head
        self.share_d = np.zeros(n_heads)

    def undo(self, state: F32, constant: F32) -> None:
        used = self.scale != 0
        state[used] -= self.scale[used, None, None] * constant[used]
        self.scale[:] = 0

    def scanned(self, log_decay: F64, filled: npt.NDArray[np.bool_]) -> None:
        """Rows of a scan: log_decay [rows, heads] is g, `filled` [rows] says which rows came from predictions."""
        for g, mask in zip(log_decay, filled, strict=True):
            decay = np.exp(g)
            self.share_d = decay * self.share_d + 1
            self.share_n = decay * self.share_n + mask

    @property
    def rho(self) -> F64:
        """Share of the state's memory that came from filled rows, per head; 1 before any row."""
        share = np.divide(self.share_n, self.share_d, out=np.ones_like(self.share_n), where=self.share_d > 0)
        result: F64 = np.clip(np.nan_to_num(share, nan=0.0), 0, 1)
        return result

    def apply(self, state: F32, constant: F32, alpha: float, quality: bool = False) -> None:
        scale = np.full(len(self.scale), alpha, np.float32) * (self.rho.astype(np.float32) if quality else 1)
        used = scale != 0
        state[used] += scale[used, None, None] * constant[used]
        self.scale = scale


def write_correction(
    side: SideFile, output: Path, constants: Mapping[int, F32], order: str, force: bool = False
) -> None:
    """A copy of a side file with the constant of each recurrent late layer; `order` of the heads: tiled or grouped."""
    header = replace(side.header, head_order=order)
    tensors = []
    for layer, constant in sorted(constants.items()):
        data = np.ascontiguousarray(constant, dtype=np.float32)
        tensors.append(Tensor(layer_tensor(layer, "state"), GGML_F32, data.shape[::-1], partial(list, [data])))
    write_copy(side, output, checked_header(output, header), tensors, force)
