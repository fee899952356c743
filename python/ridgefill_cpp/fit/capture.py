"""Rows for the fit from a model's own GGUF: source and targets of every row of a window, with the fill off."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import RidgefillError
from .vocabulary import tokenize

F32 = npt.NDArray[np.float32]
SENTINEL = "\u2983document\u2984"  # stands for the document while a chat template is rendered
ERR_LEN = 2048


class Capture:
    """One model and one context that keep the rows of each decoded window. A context manager.

    Rows come as views that are valid until the next window. n_in is the width of the stream entering layer `split`.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        split: int,
        target: str,
        layers: Sequence[int],
        n_ctx: int,
        threads: int | None = None,
        gpu_layers: int = 0,
    ) -> None:
        from .. import _capi
        from .._session import Session

        self.layers = tuple(layers)
        self.n_ctx = n_ctx
        self._capi = _capi
        self._session = Session(model_path, n_ctx, threads=threads, n_batch=n_ctx, gpu_layers=gpu_layers)
        wanted = (ctypes.c_int32 * (len(self.layers) + 1))(-1, *self.layers)
        err = ctypes.create_string_buffer(ERR_LEN)
        which = _capi.TARGETS.index(target)
        if not _capi.llama_ridgefill_capture(self._session._ctx, split, which, wanted, len(wanted), err, ERR_LEN):
            self.close()
            reason = err.value.decode("utf-8", "replace")
            raise RidgefillError(
                "capture", Path(model_path), "", reason, "an architecture whose layers can be captured"
            )
        x, ys = self.run(self.tokenize("a")[:1] or [0])
        self.n_in = x.shape[1]
        self.widths = tuple(y.shape[1] for y in ys)

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._session.close()

    def tokenize(self, text: str, special: bool = False) -> list[int]:
        """Token ids without the model's leading and trailing tokens; `special`: parse special tokens in the text."""
        from .._llama_cpp import llama_cpp

        return tokenize(llama_cpp, self._session._vocab, text, special)

    @property
    def frame(self) -> tuple[list[int], list[int]]:
        """Tokens before and after a plain window: what the model's tokenizer adds in front, and nothing."""
        from .._llama_cpp import llama_cpp

        bos = llama_cpp.llama_vocab_bos(self._session._vocab)
        return ([bos] if llama_cpp.llama_vocab_get_add_bos(self._session._vocab) and bos >= 0 else []), []

    @property
    def chat_frame(self) -> tuple[list[int], list[int]]:
        """Tokens before and after a window that is a user turn of the model's own chat template."""
        from .chat import render

        text = render(self._session._model, SENTINEL)
        before, found, after = text.partition(SENTINEL)
        if not found:
            what = "a template that changes or drops the user's text"
            raise RidgefillError("chat-template", self._session.model_path, "tokenizer.chat_template", what, "another")
        lead = self.frame[0]
        first = self.tokenize(before, special=True)
        return (first if first[: len(lead)] == lead else lead + first), self.tokenize(after, special=True)

    def run(self, ids: Sequence[int] | npt.NDArray[np.int32]) -> tuple[F32, list[F32]]:
        """Decodes one window from an empty cache, no row with an output. x [rows, n_in], one y [rows, n_out] each."""
        for _ in self._session.decode(ids, range(0)):
            pass
        x, *ys = (self._rows(i, len(ids)) for i in range(len(self.layers) + 1))
        return x, ys

    def _rows(self, index: int, wanted: int) -> F32:
        n_rows, width = ctypes.c_int32(), ctypes.c_int32()
        ctx: Any = self._session._ctx
        data = self._capi.llama_ridgefill_captured(ctx, index, ctypes.byref(n_rows), ctypes.byref(width))
        if not data or n_rows.value != wanted:
            raise RidgefillError("capture", self._session.model_path, "", f"{n_rows.value} rows", f"{wanted} rows")
        return np.ctypeslib.as_array(data, shape=(n_rows.value, width.value))
