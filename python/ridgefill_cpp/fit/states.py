"""Recurrent states at chunk ends of one window, exact and filled, for the fit of the correction."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from .. import _capi
from .._projector import Projector, make_params
from .._session import Session
from ..base import int_key
from ..errors import RidgefillError
from ..gguf_reader import GgufFile, read_gguf
from .correction import ChunkEnd

F32 = npt.NDArray[np.float32]


class StateCapture:
    """One model, one context and a side file. A context manager.

    Chunks end at multiples of `chunk`: there a bulk may end too, so the states are those that a correction is added to.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        side: str | os.PathLike[str],
        rows: int,
        chunk: int = 512,
        head: int = 16,
        threads: int | None = None,
        gpu_layers: int = 0,
    ) -> None:
        self.rows, self.chunk, self.head = rows, chunk, head
        self.session = Session(model, rows + 1, threads=threads, gpu_layers=gpu_layers)
        try:
            self.projector: Projector = self.session.load(side)
            gguf = read_gguf(model, model=True)
            self.layers = self._recurrent_layers(gguf)
            self.shape = state_shape(gguf)
        except BaseException:
            self.session.close()
            raise

    def __enter__(self) -> StateCapture:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    @property
    def ends(self) -> range:
        """Positions where a chunk ends: rows before them have been decoded."""
        return range(self.chunk, self.rows + 1, self.chunk)

    def run(self, ids: Sequence[int], filled: bool) -> Iterator[tuple[ChunkEnd, dict[int, F32]]]:
        """The states at each chunk end of `rows` tokens, [heads, V, K] by layer; filled: without any correction."""
        session, last = self.session, self.ends[-1]
        params = make_params("speed" if filled else "off", 1, self.head, 0)
        session.attach(self.projector if filled else None, params)
        session.set_alpha(0.0)
        for end in session.prefill(ids[:last], last + 1, (self.head, *self.ends)):
            if end in self.ends:
                digest = hashlib.sha256(np.asarray(ids[end - self.chunk : end], "<i4").tobytes()).hexdigest()
                states = {layer: session.state(layer).reshape(self.shape) for layer in self.layers}
                yield ChunkEnd(end - self.chunk, digest, end - 1), states
        if filled and (counts := session.counts()).n_filled != last - self.head:
            raise RuntimeError(f"{counts}: allowed {last - self.head} filled rows")

    def _recurrent_layers(self, gguf: GgufFile) -> tuple[int, ...]:
        """Late layers that have a state, found by asking after one exact row."""
        self.session.attach(None, _capi.llama_ridgefill_default_params())
        for _ in self.session.prefill([0], 2, ()):
            pass
        late = range(self.projector.split + 1, self.projector.split + 1 + self.projector.n_maps)
        layers = tuple(layer for layer in late if self.session.state(layer).size)
        if not layers:
            raise RidgefillError("no-states", gguf.path, "late layers", "no recurrent one", "at least one")
        return layers


def state_shape(gguf: GgufFile) -> tuple[int, int, int]:
    """(heads, V, K) of a gated delta net, from the model's keys."""
    architecture = str(gguf.keys["general.architecture"].data)
    heads, inner, k = (
        int_key(gguf, f"{architecture}.ssm.{name}", 1, 1 << 20)
        for name in ("time_step_rank", "inner_size", "state_size")
    )
    if inner % heads:
        raise RidgefillError("model-key", gguf.path, f"{architecture}.ssm.inner_size", inner, f"a multiple of {heads}")
    return heads, inner // heads, k
