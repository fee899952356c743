"""A side file as a source: to give it another encoding, or the keys of its model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import RidgefillError
from .int8 import BLOCK, F32, GROUP, I8, Q8_0_BYTES, U16, bf16_to_f32, f32_to_bf16
from .layout import FINAL_BIAS, FINAL_WEIGHT, SCORE, layer_tensor
from .sidefile import SideFile
from .source import ROWS_PER_STEP, Source, Stored


@dataclass(frozen=True)
class SideTensor:
    """One tensor of an open side file."""

    side: SideFile
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.side.gguf.tensors[self.name].ne[::-1]

    def rows(self) -> npt.NDArray[Any]:
        return self.side.array(self.name)

    def pieces(self) -> Iterator[npt.NDArray[np.uint8]]:
        return self.side.gguf.chunks(self.name)


@dataclass
class SideSource(Source):
    side: SideFile | None = None

    @property
    def _side(self) -> SideFile:
        assert self.side is not None
        return self.side

    def pieces(self, layer: int, part: str) -> Iterator[npt.NDArray[np.uint8]]:
        if self._side.header.encoding == "i8":
            return self._side.gguf.chunks(layer_tensor(layer, part))
        return super().pieces(layer, part)

    def codes(self, layer: int) -> tuple[I8, U16]:
        if self.form == "bf16":
            return super().codes(layer)
        if self._side.header.encoding == "q8_0":
            return codes_of_q8_0(self._side, layer)
        return self._side.array(layer_tensor(layer, "codes")), self._side.array(layer_tensor(layer, "scale"))

    def weight(self, layer: int) -> U16:
        return self._side.array(layer_tensor(layer, "weight"))

    def bias(self, layer: int) -> F32:
        return self._side.bias(layer)

    @property
    def has_final(self) -> bool:
        return self._side.has_final

    def final_weight(self) -> Iterator[U16]:
        row = 2 * self.n_in
        for begin in range(0, self.n_in, ROWS_PER_STEP):
            count = min(ROWS_PER_STEP, self.n_in - begin)
            yield self._side.gguf.read(FINAL_WEIGHT, begin * row, count * row).view(np.uint16).reshape(count, self.n_in)

    def final_bias(self) -> F32:
        bias: F32 = self._side.array(FINAL_BIAS)
        return bias


def side_source(side: SideFile) -> SideSource:
    header = side.header
    states: dict[int, Stored] = {i: SideTensor(side, layer_tensor(i, "state")) for i in side.states}
    return SideSource(
        path=side.path,
        form="bf16" if header.encoding == "bf16" else "i8",
        split=header.split,
        layers=range(header.layers[0], header.layers[-1] + 1),
        n_in=header.source_width,
        n_out=header.target_width,
        credit=header.credit,
        states=states,
        scores={"score": SideTensor(side, SCORE)} if side.has_score else {},
        known=header,
        side=side,
    )


def codes_of_q8_0(side: SideFile, layer: int) -> tuple[I8, U16]:
    """Codes and bf16 scale of a Q8_0 map that was transcribed; refuses one that was quantised anew."""
    name = layer_tensor(layer, "weight")
    data = side.array(name)
    blocks = data.reshape(len(data), -1, Q8_0_BYTES)
    half = np.ascontiguousarray(blocks[:, :, :2]).view("<f2").astype(np.float32)[:, :, 0]
    scale = f32_to_bf16(half[:, :: GROUP // BLOCK])
    wanted = np.repeat(bf16_to_f32(scale), GROUP // BLOCK, axis=1)[:, : half.shape[1]]
    if not (wanted == half).all():
        allowed = f"one bf16 scale per {GROUP} inputs"
        raise RidgefillError("export-q8_0", side.path, name, "scales per 32 inputs", allowed)
    codes = np.ascontiguousarray(blocks[:, :, 2:]).view(np.int8).reshape(len(data), -1)
    if (codes == -128).any():
        raise RidgefillError("code-value", side.path, name, -128, "-127 .. 127")
    return codes, scale
