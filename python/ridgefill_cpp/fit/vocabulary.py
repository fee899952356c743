"""A model's tokenizer alone, without its weights."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from ..errors import RidgefillError


class Vocabulary:
    """A context manager around a model loaded for its vocabulary only."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        from .. import _capi  # noqa: F401  (checks that the library is ours)
        from .._llama_cpp import llama_cpp
        from .._llama_cpp._logger import set_verbose

        set_verbose(False)
        llama_cpp.llama_backend_init()
        self.path = os.fspath(path)
        self._base = llama_cpp
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self._model: Any = llama_cpp.llama_model_load_from_file(os.fsencode(self.path), params)
        if not self._model:
            raise RidgefillError("not-a-model", self.path, "", "no vocabulary", "a model's GGUF")
        self.vocab = llama_cpp.llama_model_get_vocab(self._model)

    def __enter__(self) -> Vocabulary:
        return self

    def __exit__(self, *_: object) -> None:
        if self._model:
            self._base.llama_model_free(self._model)
            self._model = None

    def tokenize(self, text: str, special: bool = False) -> list[int]:
        """Token ids without the model's leading and trailing tokens; `special`: parse special tokens in the text."""
        return tokenize(self._base, self.vocab, text, special)


def tokenize(base: Any, vocab: Any, text: str, special: bool) -> list[int]:
    """The same on a vocabulary of llama.cpp; one token per byte at most."""
    data = text.encode("utf-8", "replace")
    ids = (ctypes.c_int32 * (len(data) + 8))()
    n = base.llama_tokenize(vocab, data, len(data), ids, len(ids), False, special)
    if n < 0:
        raise RidgefillError("tokenize", "", "text", f"{-n} tokens", f"at most {len(ids)}")
    return list(ids[:n])
