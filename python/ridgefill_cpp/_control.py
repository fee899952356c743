"""The fill of one context's sequence 0: which call is running, what it asks for, and which cached rows were filled.

Knows the context as a pointer and positions as numbers. `llama.py` joins it to llama-cpp-python's class.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from . import _capi
from ._projector import Projector, check_mode, check_rows, mode_name, reason_name
from ._status import RidgefillCounts, RidgefillStatus

T = TypeVar("T")
_SEQ = 0  # the class keeps everything in one sequence


@dataclass(frozen=True)
class Call:
    """What the running call asked for; None inherits the object's default."""

    mode: int | None = None
    tail: int | None = None
    generating: bool = False  # evals are announced by generate(), so decode steps are not prompts
    completing: bool = False  # a state that does not fit is a cache miss, not an error


class StateMissError(KeyError):
    """A cached state that the running completion may not use: counts as a cache miss."""


class Control:
    def __init__(self, ctx: Any, projector: Projector | None, params: _capi.llama_ridgefill_params) -> None:
        """projector: attached to ctx already, or None: every method then is cheap and changes nothing."""
        self.ctx = ctx
        self.projector = projector
        self.defaults = params
        self.refused: str | None = None  # why the side file was, when the object serves exactly instead
        self.exact_because = ""  # why every row is exact whatever the mode: its outputs are visible, or a LoRA is on
        self._call = Call()
        self._new_prompt = False

    @property
    def active(self) -> bool:
        return self.projector is not None

    # calls

    def merged(self, mode: object = None, tail: object = None, **flags: bool) -> Call:
        """The running call with these overrides; ValueError for a bad mode or tail."""
        call = self._call
        if mode is not None:
            call = replace(call, mode=check_mode(mode))
        if tail is not None:
            call = replace(call, tail=check_rows("ridgefill_tail", tail, 1))
        return replace(call, **flags)

    @contextmanager
    def during(self, call: Call) -> Iterator[None]:
        before, self._call = self._call, call
        try:
            yield
        finally:
            self._call = before

    def steps(self, iterator: Iterator[T], **flags: bool) -> Iterator[T]:
        """Yields from `iterator` with the present overrides in force while it works, and only then."""
        call = self.merged(**flags)

        def run() -> Iterator[T]:
            try:
                while True:
                    with self.during(call):
                        try:
                            item = next(iterator)
                        except StopIteration:
                            return
                    yield item
            finally:
                close: Callable[[], None] | None = getattr(iterator, "close", None)
                if close is not None:
                    with self.during(call):
                        close()

        return run()

    def params(self) -> _capi.llama_ridgefill_params:
        """The parameters of the running call."""
        base, call = self.defaults, self._call
        mode = base.mode if call.mode is None else call.mode
        tail = base.n_tail if call.tail is None else call.tail
        return _capi.llama_ridgefill_params(mode, tail, base.n_head, base.n_min_bulk, base.select, base.share)

    # prompts

    @contextmanager
    def new_prompt(self) -> Iterator[None]:
        """The next eval inside is a whole prompt, whatever its length."""
        self._new_prompt = True
        try:
            yield
        finally:
            self._new_prompt = False

    def reusable(self, n_match: int, n_prompt: int) -> int:
        """How many of the first n_match cached rows a prompt of n_prompt rows may keep in the running call's mode."""
        if not self.active:
            return n_match
        params = self.params()
        cold = _capi.llama_ridgefill_plan_for(self.ctx, 0, n_prompt, ctypes.byref(params))
        if self.exact_because or cold.reason != _capi.REASON_NONE:
            params.mode = _capi.MODE_OFF  # it would run exact on its own, so it reuses exact rows only
        filled = _capi.llama_ridgefill_filled(self.ctx, _SEQ)
        return int(_capi.llama_ridgefill_reusable(filled, params, n_match, n_prompt))

    def require_continuable(self, n_past: int) -> None:
        """ValueError when the running call is exact but continues after rows that were filled."""
        begin, end = self.filled()
        if begin < min(end, n_past) and not self._may_use_filled(mode := self._filled_mode()):
            raise ValueError(
                f"ridgefill_mode: found {mode_name(self.params().mode)!r} after rows {begin}..{end - 1} that were "
                f"filled, allowed {mode_name(mode)!r}\n"
                "hint: call reset() first, or pass the whole prompt with reset=True"
            )

    def before_eval(self, n_past: int, n_tokens: int) -> _capi.llama_ridgefill_plan | None:
        """Announces a prompt of n_tokens rows after n_past cached ones; None when the rows are decode steps."""
        self.cut(n_past)
        if self._call.generating:
            if not self._new_prompt:
                return None
            self._new_prompt = False
        elif n_tokens <= 1:
            return None
        else:
            self.require_continuable(n_past)
        params = self.params()
        return _capi.llama_ridgefill_prompt(self.ctx, _SEQ, n_past, n_past + n_tokens, ctypes.byref(params))

    def _may_use_filled(self, mode: int) -> bool:
        """May the running call continue after rows that were filled in `mode`?"""
        return self.active and not self.exact_because and self.params().mode == mode

    def _filled_mode(self) -> int:
        return int(_capi.llama_ridgefill_filled(self.ctx, _SEQ).mode)

    # marks

    def filled(self) -> tuple[int, int]:
        """The interval of cached rows that contains all filled ones; (0, 0) when none was filled."""
        if not self.active:
            return 0, 0
        interval = _capi.llama_ridgefill_filled(self.ctx, _SEQ)
        return (interval.begin, interval.end) if interval.begin < interval.end else (0, 0)

    def cut(self, n_past: int) -> None:
        """Rows from n_past on are leaving the cache."""
        if self.active:
            _capi.llama_ridgefill_cut(self.ctx, _SEQ, n_past)

    def _set_filled(self, begin: int, end: int, mode: int) -> None:
        if self.active:
            interval = (
                _capi.llama_ridgefill_interval(begin, end, mode) if begin < end else _capi.llama_ridgefill_interval()
            )
            _capi.llama_ridgefill_set_filled(self.ctx, _SEQ, interval)

    def mark(self, n_tokens: int) -> dict[str, Any]:
        """What a saved state of n_tokens rows carries."""
        begin, end = self.filled()
        end = min(end, n_tokens)
        if self.projector is None or begin >= end:
            return {"identity": None, "mode": "off", "begin": 0, "end": 0}
        return {"identity": self.projector.identity, "mode": mode_name(self._filled_mode()), "begin": begin, "end": end}

    def check_mark(self, mark: dict[str, Any] | None, n_tokens: int) -> tuple[int, int]:
        """The filled interval of a state to be loaded. ValueError (a cache miss inside a completion) if not ours.

        mark None: a state of stock llama-cpp-python, or of this class before marks: every row is exact.
        """
        if mark is None:
            return 0, 0
        try:
            begin, end, identity, mode = int(mark["begin"]), int(mark["end"]), mark["identity"], mark["mode"]
        except (KeyError, TypeError, ValueError):
            begin, end, identity, mode = -1, -1, None, None
        if not 0 <= begin <= end <= n_tokens:
            raise ValueError(f"state: found the ridgefill mark {mark!r}, allowed rows 0 <= begin <= end <= {n_tokens}")
        if begin == end:
            return 0, 0
        ours = self.projector.identity if self.projector is not None else None
        # rows filled in quality mode were chosen for another prompt's tail, so no call may take them over
        if identity == ours and mode == "speed" and self._may_use_filled(_capi.MODE_SPEED):
            return begin, end
        here = self.exact_because or f"mode {mode_name(self.params().mode)!r}" if self.active else "no side file"
        message = (
            f"state: found rows {begin}..{end - 1} filled in mode {mode!r} by projector {_short(identity)}, "
            f"allowed here: exact rows, or mode 'speed' with projector {_short(ours)} (this object: {here})"
        )
        raise StateMissError(message) if self._call.completing else ValueError(message)

    def restore(self, interval: tuple[int, int]) -> None:
        self._set_filled(*interval, _capi.MODE_SPEED)

    # report

    def status(self) -> RidgefillStatus:
        params, projector = self.defaults, self.projector
        if projector is None:
            return RidgefillStatus("off", params.n_tail, params.n_head, params.n_min_bulk, refused=self.refused)
        return RidgefillStatus(
            mode=mode_name(params.mode),
            tail=params.n_tail,
            head=params.n_head,
            min_bulk=params.n_min_bulk,
            identity=projector.identity,
            name=projector.name,
            path=projector.path,
            split=projector.split,
            n_maps=projector.n_maps,
            target=projector.target,
            native=projector.native,
            share=round(params.share, 6),  # a float of the C API
            select=_capi.SELECTS[params.select],
            warnings=projector.warnings,
            last=read_counts(self.ctx),
        )


def read_counts(ctx: Any, seq: int = _SEQ) -> RidgefillCounts:
    """The counts of the last announced prompt of `seq`."""
    counts = _capi.llama_ridgefill_get_counts(ctx, seq)
    return RidgefillCounts(
        mode_name(counts.mode), counts.n_filled, counts.n_exact, counts.n_selected, reason_name(counts.reason)
    )


def _short(identity: object) -> str:
    return f"{str(identity)[:12]}" if identity else "none"
