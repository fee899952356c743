"""One model and one context for measuring: decode a prompt exactly or filled, and read the logits of chosen rows."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _capi
from ._control import read_counts
from ._llama_cpp import llama_cpp as _base
from ._llama_cpp._logger import set_verbose
from ._projector import Projector, detach, require_file
from ._status import RidgefillCounts
from .errors import RidgefillError

F32 = npt.NDArray[np.float32]
LOGITS_BYTES = 128 << 20  # what one batch of output rows may take


class Session:
    """A context manager. Memory: the model, one context of n_ctx rows, and at most LOGITS_BYTES of logits."""

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        n_ctx: int,
        *,
        threads: int | None = None,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        gpu_layers: int = 0,
        verbose: bool = False,
    ) -> None:
        """n_ctx: rows of the longest prompt. threads: None means one per CPU this process may use."""
        require_file(model_path)
        set_verbose(verbose)
        _base.llama_backend_init()
        self.model_path = os.fspath(model_path)
        self._model: Any = None
        self._ctx: Any = None
        self._projectors: list[Projector] = []
        params = _base.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        self._model = _base.llama_model_load_from_file(os.fsencode(self.model_path), params)
        if not self._model:
            raise RidgefillError("no-model", self.model_path, "", "a file that cannot be loaded", "a model's GGUF")
        self._vocab = _base.llama_model_get_vocab(self._model)
        self.n_vocab = int(_base.llama_vocab_n_tokens(self._vocab))
        self.threads = threads or usable_cpus()
        self.n_batch = min(n_batch, n_ctx)
        self._new_context(n_ctx, n_ubatch)
        self._batch = _base.llama_batch_init(self.n_batch, 0, 1)

    def _new_context(self, n_ctx: int, n_ubatch: int) -> None:
        params = _base.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = self.n_batch
        params.n_ubatch = min(n_ubatch, self.n_batch)
        params.n_seq_max = 1
        params.n_threads = params.n_threads_batch = self.threads
        params.flash_attn_type = _base.LLAMA_FLASH_ATTN_TYPE_AUTO
        self._ctx = _base.llama_init_from_model(self._model, params)
        if not self._ctx:
            self.close()
            raise RidgefillError("no-context", self.model_path, "rows", n_ctx, "a context that fits into memory")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees context, projectors and model, in that order."""
        if self._ctx:
            _base.llama_free(self._ctx)
            self._ctx = None
            if hasattr(self, "_batch"):
                _base.llama_batch_free(self._batch)
        for projector in self._projectors:
            projector.free()
        self._projectors.clear()
        if self._model:
            _base.llama_model_free(self._model)
            self._model = None

    def load(self, path: str | os.PathLike[str], placement: str = "device") -> Projector:
        """A side file for this model; it stays loaded until close(). Errors as in `Projector`."""
        projector = Projector(self._model, path, placement)
        self._projectors.append(projector)
        return projector

    def tokenize(self, text: str) -> list[int]:
        """Token ids with the model's own leading token, if it has one; special tokens in the text stay plain text."""
        data = text.encode("utf-8", errors="replace")
        size = len(data) + 2
        ids = (ctypes.c_int32 * size)()
        n = _base.llama_tokenize(self._vocab, data, len(data), ids, size, True, False)
        if n < 0:
            raise ValueError(f"a text of {len(data)} bytes cannot be tokenised")
        return list(ids[:n])

    def attach(self, projector: Projector | None, params: _capi.llama_ridgefill_params) -> None:
        if projector is None:
            detach(self._ctx)
        else:
            projector.attach(self._ctx, params)

    def decode(
        self,
        ids: Sequence[int] | npt.NDArray[np.int32],
        outputs: range,
        cuts: Iterable[int] = (),
        params: Any = None,
        n_prompt: int | None = None,
    ) -> Iterator[tuple[int, F32]]:
        """Decodes a whole prompt after clearing the cache; yields (first row, logits F32 [n_rows, n_vocab]).

        outputs: the rows whose logits are wanted. cuts: positions where a batch must end. params: parameters of the
        announced prompt, None for those of the attached projector. n_prompt: rows of the prompt, the others are decode
        steps (None: all are the prompt). The logits are valid until the next step.
        """
        self._begin(n_prompt or len(ids), params)
        tokens = np.asarray(ids, dtype=np.int32)
        for begin, end in self._pieces(len(ids), outputs, [*cuts, n_prompt or len(ids)]):
            wanted = range(max(begin, outputs.start), min(end, outputs.stop))
            self._decode_batch(tokens[begin:end], begin, wanted)
            if wanted:
                logits = _base.llama_get_logits(self._ctx)  # waits for the result
                flat = np.ctypeslib.as_array(logits, shape=(len(wanted) * self.n_vocab,))
                yield wanted.start, flat.reshape(-1, self.n_vocab)

    def prefill(self, ids: Sequence[int], n_prompt: int, cuts: Iterable[int] = ()) -> Iterator[int]:
        """Decodes the first rows of a prompt of n_prompt rows, none with an output; yields the number of rows done.

        Like decode() otherwise: it clears the cache first, and a batch ends at each of `cuts`.
        """
        self._begin(n_prompt, None)
        tokens = np.asarray(ids, dtype=np.int32)
        for begin, end in self._pieces(len(ids), range(0), cuts):
            self._decode_batch(tokens[begin:end], begin, range(begin, begin))
            yield end

    def state(self, layer: int) -> F32:
        """The layer's recurrent state after the last row, flat; empty where it has none."""
        count = _capi.llama_ridgefill_state(self._ctx, 0, layer, None, 0)
        values = np.empty(count, np.float32)
        _capi.llama_ridgefill_state(self._ctx, 0, layer, values.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), count)
        return values

    def set_alpha(self, alpha: float) -> None:
        """Scale of the side file's state correction, from the next prompt on."""
        if not _capi.llama_ridgefill_set_alpha(self._ctx, alpha):
            raise ValueError(f"alpha: found {alpha}, allowed 0 .. 1")

    def n_bulk(self, n_prompt: int) -> int:
        """Rows that the attached projector would fill of a prompt of n_prompt rows."""
        plan = _capi.llama_ridgefill_plan_for(self._ctx, 0, n_prompt, None)
        return int(plan.bulk_end - plan.bulk_begin)

    def counts(self) -> RidgefillCounts:
        """Of the last prompt."""
        return read_counts(self._ctx)

    def _pieces(self, n_rows: int, outputs: range, cuts: Iterable[int]) -> Iterator[tuple[int, int]]:
        most = max(1, min(self.n_batch, LOGITS_BYTES // (4 * self.n_vocab)))
        stops = sorted({*cuts, outputs.start, outputs.stop, n_rows})
        begin = 0
        while begin < n_rows:
            size = most if begin in outputs else self.n_batch
            end = min(begin + size, next(stop for stop in stops if stop > begin))
            yield begin, end
            begin = end

    def _begin(self, n_prompt: int, params: Any) -> None:
        """Clears the cache and announces a prompt."""
        _base.llama_memory_clear(_base.llama_get_memory(self._ctx), False)
        _capi.llama_ridgefill_set_filled(self._ctx, 0, _capi.llama_ridgefill_interval())
        _capi.llama_ridgefill_prompt(self._ctx, 0, 0, n_prompt, None if params is None else ctypes.byref(params))

    def _decode_batch(self, tokens: npt.NDArray[np.int32], first: int, wanted: range) -> None:
        self._fill_batch(tokens, first, wanted)
        if (code := _base.llama_decode(self._ctx, self._batch)) != 0:
            last = first + len(tokens) - 1
            raise RuntimeError(f"llama_decode of rows {first}..{last}: found status {code}, allowed 0")

    def _fill_batch(self, tokens: npt.NDArray[np.int32], first: int, wanted: range) -> None:
        n = len(tokens)
        batch = self._batch
        batch.n_tokens = n
        _view(batch.token, n, np.int32)[:] = tokens
        _view(batch.pos, n, np.int32)[:] = np.arange(first, first + n)
        _view(batch.n_seq_id, n, np.int32)[:] = 1
        for i in range(n):
            batch.seq_id[i][0] = 0
        logits = _view(batch.logits, n, np.int8)
        logits[:] = 0
        logits[wanted.start - first : wanted.stop - first] = 1


def _view(pointer: Any, n: int, dtype: Any) -> npt.NDArray[Any]:
    return np.ctypeslib.as_array(pointer, shape=(n,)).view(dtype)


def usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
