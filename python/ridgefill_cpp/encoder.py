"""The tensors of a side file from a source, checked on the way: codes, scales, weights, biases, states, scores."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from . import encode, int8
from .errors import RidgefillError
from .gguf_types import BF16, F32
from .gguf_writer import Buffer, Tensor
from .int8 import I8, U16
from .layout import FINAL_BIAS, FINAL_WEIGHT, SCORE, layer_tensor, map_parts
from .source import Source


class Encoder:
    """The tensors of a source in one encoding, one map in memory at a time. `notes` fills while they are written."""

    def __init__(self, source: Source, encoding: str) -> None:
        self.source = source
        self.encoding = encoding
        self.notes: list[str] = []
        self._layer = -1
        self._parts: dict[str, npt.NDArray[Any]] = {}

    def tensors(self) -> Iterator[Tensor]:
        source = self.source
        parts = map_parts(self.encoding, source.n_in, source.n_out)
        for layer in source.layers:
            for part, (kind, ne) in parts.items():
                copied = part != "bias" and source.form == self.encoding == "i8"
                data = partial(self._copied if copied else self._part, layer, part)
                yield Tensor(layer_tensor(layer, part), kind, ne, data)
            if layer in source.states:
                entry = source.states[layer]
                yield Tensor(layer_tensor(layer, "state"), F32, entry.shape[::-1], partial(self._state, layer))
        if source.scores:
            yield Tensor(SCORE, F32, source.scores["score"].shape, self._score)
        if source.has_final:
            yield Tensor(FINAL_WEIGHT, BF16, (source.n_in, source.n_in), self._final_weight)
            yield Tensor(FINAL_BIAS, F32, (source.n_in,), self._final_bias)

    def _part(self, layer: int, part: str) -> Iterator[Buffer]:
        if layer != self._layer:
            self._parts = self._encode(layer)
            self._layer = layer
        yield self._parts.pop(part)

    def _encode(self, layer: int) -> dict[str, npt.NDArray[Any]]:
        bias = self.source.bias(layer)
        if not np.isfinite(bias).all():
            raise self.bad("bias-value", layer, "bias", "NaN or infinity", "finite numbers")
        try:
            if self.source.form == "i8":
                if self.encoding == "bf16":
                    self._note("bf16-rounded: codes times scale were rounded to bf16")
                parts = encode.from_codes(*self._published(layer), bias, self.encoding)
                self._check_weight(layer, parts)
                return parts
            weight = self.source.weight(layer)
            self._check_weight(layer, {"weight": weight})
            if self.encoding == "bf16":
                return encode.from_bf16(weight, bias, "bf16")
            codes, scale = int8.quantize(weight)
            worst = int8.worst_error(weight, codes, scale)
            self.notes.append(f"int8-error: layer {layer}: largest error {worst:.4%} of the largest weight")
            return encode.from_codes(codes, scale, bias, self.encoding)
        except encode.InexactScale as error:
            hint = "use --type i8, which keeps every scale"
            wanted = "scales that float16 holds exactly"
            raise self.bad("scale-f16", layer, "scale", f"{error.value:.3g}", wanted, hint) from None

    def _copied(self, layer: int, part: str) -> Iterator[Buffer]:
        """Codes or scale as they are in the source, checked on the way."""
        for piece in self.source.pieces(layer, part):
            if part == "codes":
                self._check_codes(layer, piece.view(np.int8))
            else:
                self._check_scale(layer, piece.view(np.uint16))
            yield piece

    def _published(self, layer: int) -> tuple[I8, U16]:
        codes, scale = self.source.codes(layer)
        self._check_codes(layer, codes)
        self._check_scale(layer, scale)
        return codes, scale

    def _check_weight(self, layer: int, parts: encode.Parts) -> None:
        bits = parts.get("weight")
        if bits is not None and bits.dtype == np.uint16 and ((bits & 0x7F80) == 0x7F80).any():
            raise self.bad("weight-value", layer, "weight", "NaN or infinity", "finite numbers")

    def _check_codes(self, layer: int, codes: I8) -> None:
        if codes.min() == -128:
            raise self.bad("code-value", layer, "codes", -128, "-127 .. 127")

    def _check_scale(self, layer: int, scale: U16) -> None:
        if (scale - np.uint16(1) >= 0x7F7F).any():
            found = "a scale that is NaN, infinite, zero or negative"
            raise self.bad("scale-value", layer, "scale", found, "finite numbers above 0")

    def _state(self, layer: int) -> Iterator[Buffer]:
        for piece in self.source.states[layer].pieces():
            if not np.isfinite(piece.view(np.float32)).all():
                raise self.bad("state-value", layer, "state", "NaN or infinity", "finite numbers")
            yield piece

    def _score(self) -> Iterator[Buffer]:
        tables = {name: entry.rows() for name, entry in self.source.scores.items()}
        controls = [tables[name] for name in ("score_none", "score_all") if name in tables]
        if controls and (not (controls[0] == -np.inf).all() or controls[1].any()):
            what = "other values in score_none or score_all"
            raise RidgefillError("score-value", self.source.path, "score", what, "-inf and 0 throughout")
        if not (tables["score"] < np.inf).all():
            raise RidgefillError("score-value", self.source.path, "score", "NaN or +inf", "finite numbers and -inf")
        yield tables["score"]

    def _final_weight(self) -> Iterator[Buffer]:
        for rows in self.source.final_weight():
            if ((rows & 0x7F80) == 0x7F80).any():
                raise RidgefillError("weight-value", self.source.path, "final", "NaN or infinity", "finite numbers")
            yield rows

    def _final_bias(self) -> Iterator[Buffer]:
        bias = self.source.final_bias()
        if not np.isfinite(bias).all():
            raise RidgefillError("bias-value", self.source.path, "final", "NaN or infinity", "finite numbers")
        yield bias

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def bad(self, code: str, layer: int, part: str, found: object, allowed: object, hint: str = "") -> RidgefillError:
        return RidgefillError(code, self.source.path, f"layer {layer} {part}", found, allowed, hint)
