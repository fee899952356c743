"""A loaded side file and the parameters of a fill, with Python's errors; knows models and contexts as pointers only."""

from __future__ import annotations

import ctypes
import errno
import os
from itertools import count, takewhile
from typing import Any

from . import _capi
from .errors import RidgefillError

_ERR_LEN = 2048
_INT32_MAX = 2**31 - 1


class RefusedError(RidgefillError):
    """A side file or a context that the library refused; the message is its sentence "<code>: ..."."""

    def __init__(self, sentence: str) -> None:
        self.code = sentence.partition(":")[0]
        self.hint = ""
        ValueError.__init__(self, sentence)


class Projector:
    """The maps of one side file on the devices of their layers. Free it after its contexts and before its model."""

    def __init__(self, model: Any, path: str | os.PathLike[str], placement: str = "device") -> None:
        """model: llama_model pointer. FileNotFoundError without a file; RefusedError with the loader's."""
        self.path = os.fspath(path)
        self._pointer: int | None = None
        require_file(self.path)
        err = ctypes.create_string_buffer(_ERR_LEN)
        place = check_placement("placement", placement)
        self._pointer = _capi.llama_ridgefill_load(model, os.fsencode(self.path), place, err, _ERR_LEN)
        if not self._pointer:
            raise RefusedError(_text(err.value) or f"refused: {self.path}: the loader gave no reason")
        self.identity = _text(_capi.llama_ridgefill_identity(self._pointer))
        self.name = _text(_capi.llama_ridgefill_name(self._pointer))
        self.split = int(_capi.llama_ridgefill_split(self._pointer))
        self.n_maps = int(_capi.llama_ridgefill_n_maps(self._pointer))
        self.n_states = int(_capi.llama_ridgefill_n_states(self._pointer))
        self.size = int(_capi.llama_ridgefill_size(self._pointer))
        self.host_size = int(_capi.llama_ridgefill_host_size(self._pointer))
        self.target = _capi.TARGETS[_capi.llama_ridgefill_target_of(self._pointer)]
        self.native = bool(_capi.llama_ridgefill_native(self._pointer))
        texts = (_capi.llama_ridgefill_warning(self._pointer, i) for i in count())
        self.warnings = tuple(map(_text, takewhile(lambda text: text is not None, texts)))

    def attach(self, ctx: Any, params: _capi.llama_ridgefill_params) -> None:
        """Attach to the llama_context `ctx` with its default parameters. RefusedError when it declines."""
        if self._pointer is None:
            raise ValueError(f"{self.path}: the projector was freed")
        err = ctypes.create_string_buffer(_ERR_LEN)
        if not _capi.llama_ridgefill_attach(ctx, self._pointer, params, err, _ERR_LEN):
            raise RefusedError(_text(err.value) or f"refused: {self.path}: the context gave no reason")

    def free(self) -> None:
        """Frees the maps; a second call does nothing."""
        if self._pointer is not None:
            pointer, self._pointer = self._pointer, None
            _capi.llama_ridgefill_free(pointer)


def require_file(path: str | os.PathLike[str]) -> None:
    if not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))


def detach(ctx: Any) -> None:
    """Take whatever projector is attached off the context; it serves exact from then on."""
    err = ctypes.create_string_buffer(_ERR_LEN)
    _capi.llama_ridgefill_attach(ctx, None, _capi.llama_ridgefill_default_params(), err, _ERR_LEN)


def make_params(
    mode: object,
    tail: object,
    head: object,
    min_bulk: object,
    select: object = "attention",
    share: object = 0.13,
) -> _capi.llama_ridgefill_params:
    """Checked parameters. ValueError names the argument, the value found and the values allowed."""
    params = _capi.llama_ridgefill_params()
    if select not in _capi.SELECTS:
        raise ValueError(f"ridgefill_select: found {select!r}, allowed {', '.join(map(repr, _capi.SELECTS))}")
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
        raise ValueError(f"ridgefill_share: found {share!r}, allowed a number from 0 to 1")
    params.select = _capi.SELECTS.index(select)
    params.share = float(share)
    params.mode = check_mode(mode)
    params.n_tail = check_rows("ridgefill_tail", tail, 1)
    params.n_head = check_rows("ridgefill_head", head, 0)
    params.n_min_bulk = check_rows("ridgefill_min_bulk", min_bulk, 0)
    return params


def check_mode(mode: object) -> int:
    if mode not in _capi.MODES:
        raise ValueError(f"ridgefill_mode: found {mode!r}, allowed {', '.join(map(repr, _capi.MODES))}")
    return _capi.MODES.index(mode)


def check_rows(name: str, rows: object, least: int) -> int:
    if isinstance(rows, bool) or not isinstance(rows, int) or not least <= rows <= _INT32_MAX:
        raise ValueError(f"{name}: found {rows!r}, allowed a whole number of rows from {least} to {_INT32_MAX}")
    return rows


def check_alpha(name: str, alpha: object) -> float:
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0 <= alpha <= 1:
        raise ValueError(f"{name}: found {alpha!r}, allowed numbers from 0 to 1")
    return float(alpha)


def check_placement(name: str, placement: object) -> int:
    if placement not in _capi.PLACEMENTS:
        raise ValueError(f"{name}: found {placement!r}, allowed {', '.join(map(repr, _capi.PLACEMENTS))}")
    return _capi.PLACEMENTS.index(placement)


def mode_name(mode: int) -> str:
    return _text(_capi.llama_ridgefill_mode_name(mode))


def reason_name(reason: int) -> str:
    return _text(_capi.llama_ridgefill_reason_name(reason))


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", errors="replace")
