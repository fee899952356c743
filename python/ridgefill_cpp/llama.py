"""`Llama`: llama-cpp-python's class with the late layers filled for the bulk of long prompts.

Everything of the base class works as there. What this file adds: the side file's life, the announcement of prompts,
which cached rows may be reused, and marks on saved states. Rows whose output a user can see are never filled: with
`logits_all`, a draft model (which implies it) or `embedding`, every row runs exactly; so it does under a LoRA, which
the maps do not know.
"""

from __future__ import annotations

import difflib
import inspect
import os
import warnings
from collections.abc import Generator, Iterator, Sequence
from typing import Any, cast

import numpy as np

from . import _capi
from ._control import Control
from ._llama_cpp import Llama as _BaseLlama
from ._llama_cpp import LlamaState
from ._projector import Projector, check_alpha, check_placement, detach, make_params, require_file
from ._status import RidgefillStatus

_INIT = [
    name
    for name, parameter in inspect.signature(_BaseLlama.__init__).parameters.items()
    if name not in ("self", "model_path") and parameter.kind is not inspect.Parameter.VAR_KEYWORD
]
_GENERATE = inspect.signature(_BaseLlama.generate)
_OWN = (
    "ridgefill",
    *(f"ridgefill_{name}" for name in ("mode", "tail", "head", "min_bulk", "share", "select", "alpha", "strict")),
)


class Llama(_BaseLlama):
    """llama-cpp-python's Llama, with a RidgeFill side file.

    Args, besides those of the base class:
        ridgefill: Path of the side file; None serves exactly as the base class does.
        ridgefill_mode: "speed" (fill the bulk of long prompts), "quality" (fill it, then run the rows exactly that the
            end of the prompt attends to), "off", or "plumb" (a test of the plan: equals exact).
        ridgefill_tail: Rows at the end of a prompt that run exactly, 1 or more.
        ridgefill_head: Rows at the beginning of a sequence that run exactly, 0 or more.
        ridgefill_min_bulk: Fewer rows to fill than this: the prompt runs exactly, 0 or more.
        ridgefill_share: Quality mode: the share of the bulk that runs exactly, 0 to 1.
        ridgefill_select: Quality mode: which rows: "attention" (both of the next), "spans" (around what the question
            attends to), "rows" (what the whole tail attends to), "class" (by the side file's score table), or the
            controls "random" and "all".
        ridgefill_alpha: Scale of the side file's correction of recurrent states, 0 to 1; 0 adds nothing.
        ridgefill_placement: "device" (maps on the device of their layer) or "host" (in host memory, copied to the
            device for each use, for cards whose memory is full).
        ridgefill_strict: False: a refused side file is a warning and the object serves exactly.

    Calls that take a prompt (the object itself, create_completion, create_chat_completion, generate, eval) accept
    ridgefill_mode and ridgefill_tail for that call. `llm.ridgefill` says what is loaded and what the last call did.

    Raises:
        TypeError: an unknown keyword.  FileNotFoundError: no side file.  ValueError: the side file was refused (the
        loader's sentence says why), or a mode or number of rows is not allowed.
    """

    n_tokens: int
    input_ids: Any

    def __init__(
        self,
        model_path: str,
        *,
        ridgefill: str | os.PathLike[str] | None = None,
        ridgefill_mode: str = "speed",
        ridgefill_tail: int = 2048,
        ridgefill_head: int = 16,
        ridgefill_min_bulk: int = 1024,
        ridgefill_share: float = 0.13,
        ridgefill_select: str = "attention",
        ridgefill_alpha: float = 1.0,
        ridgefill_placement: str = "device",
        ridgefill_strict: bool = True,
        **kwargs: Any,
    ) -> None:
        _refuse_unknown(kwargs)
        params = make_params(
            ridgefill_mode, ridgefill_tail, ridgefill_head, ridgefill_min_bulk, ridgefill_select, ridgefill_share
        )
        check_alpha("ridgefill_alpha", ridgefill_alpha)
        check_placement("ridgefill_placement", ridgefill_placement)
        if ridgefill is not None:
            require_file(ridgefill)
        self._ridgefill_args = {
            "ridgefill": ridgefill,
            "ridgefill_mode": ridgefill_mode,
            "ridgefill_tail": ridgefill_tail,
            "ridgefill_head": ridgefill_head,
            "ridgefill_min_bulk": ridgefill_min_bulk,
            "ridgefill_share": ridgefill_share,
            "ridgefill_select": ridgefill_select,
            "ridgefill_alpha": ridgefill_alpha,
            "ridgefill_placement": ridgefill_placement,
            "ridgefill_strict": ridgefill_strict,
        }
        self._control = Control(None, None, params)
        super().__init__(os.fspath(model_path), **kwargs)
        if ridgefill is not None:
            self._attach(ridgefill, params, ridgefill_strict)

    @property
    def ridgefill(self) -> RidgefillStatus:
        """What is loaded, the defaults, and the counts of the last prompt; a snapshot."""
        return self._control.status()

    # calls

    def __call__(
        self, *args: Any, ridgefill_mode: str | None = None, ridgefill_tail: int | None = None, **kwargs: Any
    ) -> Any:
        with self._control.during(self._control.merged(ridgefill_mode, ridgefill_tail)):
            return super().__call__(*args, **kwargs)

    def create_completion(
        self, *args: Any, ridgefill_mode: str | None = None, ridgefill_tail: int | None = None, **kwargs: Any
    ) -> Any:
        """As in the base class; ridgefill_mode and ridgefill_tail hold for this call, streaming included."""
        with self._control.during(self._control.merged(ridgefill_mode, ridgefill_tail)):
            return super().create_completion(*args, **kwargs)

    def create_chat_completion(
        self, *args: Any, ridgefill_mode: str | None = None, ridgefill_tail: int | None = None, **kwargs: Any
    ) -> Any:
        """As in the base class; ridgefill_mode and ridgefill_tail hold for this call, streaming included."""
        with self._control.during(self._control.merged(ridgefill_mode, ridgefill_tail)):
            result = super().create_chat_completion(*args, **kwargs)
            # a handler may start its completion when the stream is first read
            return self._control.steps(result) if isinstance(result, Iterator) else result

    def _create_completion(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        return self._control.steps(super()._create_completion(*args, **kwargs), completing=True)

    def generate(
        self,
        tokens: Sequence[int],
        *args: Any,
        ridgefill_mode: str | None = None,
        ridgefill_tail: int | None = None,
        **kwargs: Any,
    ) -> Generator[int, Sequence[int] | None, None]:
        """As in the base class. The cached prefix is reused as far as the mode allows.

        Raises ValueError at the first token when reset is False, the mode is exact and cached rows were filled.
        """
        bound = _GENERATE.bind(self, tokens, *args, **kwargs)  # an unknown keyword is an error here, not later
        bound.apply_defaults()
        call = self._control.merged(ridgefill_mode, ridgefill_tail, generating=True)
        return self._generate(call, list(tokens), bool(bound.arguments["reset"]), super().generate(*bound.args[1:]))

    def _generate(self, call: Any, prompt: list[int], reset: bool, inner: Any) -> Generator[int, Any, None]:
        control = self._control
        try:
            with control.during(call), control.new_prompt():
                self._forget_unusable(prompt, reset)
                token = next(inner, None)
            while token is not None:
                sent = yield token
                with control.during(call):
                    try:
                        token = inner.send(sent)
                    except StopIteration:
                        return
        finally:
            inner.close()

    def eval(self, tokens: Sequence[int], ridgefill_mode: str | None = None, ridgefill_tail: int | None = None) -> None:
        """As in the base class. Two or more tokens count as one whole prompt, a single one as a decode step."""
        control = self._control
        with control.during(control.merged(ridgefill_mode, ridgefill_tail)):
            plan = control.before_eval(self.n_tokens, len(tokens)) if control.active else None
            if plan is None or plan.reason != _capi.REASON_NONE or control.exact_because:
                super().eval(tokens)
            else:
                self._eval_planned(tokens, plan)

    def reset(self) -> None:
        super().reset()
        self._control.cut(0)

    # states

    def save_state(self) -> LlamaState:
        """As in the base class; the state carries which of its rows were filled, and by which projector."""
        state = super().save_state()
        state.ridgefill = self._control.mark(self.n_tokens)
        return state

    def load_state(self, state: LlamaState) -> None:
        """As in the base class. ValueError if the state has filled rows and this object may not use them."""
        interval = self._control.check_mark(getattr(state, "ridgefill", None), state.n_tokens)
        super().load_state(state)
        self._control.restore(interval)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **self._ridgefill_args}

    def close(self) -> None:
        if hasattr(self, "_stack"):  # an __init__ that refused its arguments has none
            super().close()

    # the base class's inside: _ctx, _model, _batch, _logits_all, input_ids, n_tokens, _requires_eval

    def _attach(self, path: str | os.PathLike[str], params: _capi.llama_ridgefill_params, strict: bool) -> None:
        context = self._ctx
        try:
            placement = cast(str, self._ridgefill_args["ridgefill_placement"])
            projector = Projector(self._model.model, path, placement)
            # freed with the model, whoever closes it: after the context, before the model itself
            self._model._exit_stack.callback(_close_then_free, context, projector)
            projector.attach(context.ctx, params)
            _capi.llama_ridgefill_set_alpha(context.ctx, cast(float, self._ridgefill_args["ridgefill_alpha"]))
        except ValueError as error:
            if strict:
                self.close()
                raise
            detach(context.ctx)
            self._control.refused = str(error)
            warnings.warn(f"ridgefill: serving exactly: {error}", RuntimeWarning, stacklevel=3)
            return
        self._control = Control(context.ctx, projector, params)
        if self._logits_all or self.context_params.embeddings:
            self._control.exact_because = "every row's output is visible: logits_all, a draft model or embedding"
        elif self._lora_adapter is not None:
            self._control.exact_because = "a LoRA, which the maps were not fitted with"

    def _forget_unusable(self, prompt: list[int], reset: bool) -> None:
        """Shortens the cached prefix to what the running call may reuse, before the base class matches it."""
        control = self._control
        if not control.active or self.n_tokens == 0:
            return
        if not reset:
            control.require_continuable(self.n_tokens)
            return
        n = min(self.n_tokens, len(prompt))
        differs = np.flatnonzero(self.input_ids[:n] != np.asarray(prompt[:n], dtype=self.input_ids.dtype))
        n_match = int(differs[0]) if differs.size else n
        n_keep = control.reusable(n_match, len(prompt))
        if n_keep < n_match:
            self.n_tokens = n_keep
            self._requires_eval = True

    def _eval_planned(self, tokens: Sequence[int], plan: _capi.llama_ridgefill_plan) -> None:
        """Decodes a planned prompt, asking for the last row's output only: a bulk row with an output would be exact."""
        first, end = self.n_tokens, self.n_tokens + len(tokens)
        self._ctx.kv_cache_seq_rm(-1, first, -1)
        for begin, stop in batches(first, end, (plan.bulk_begin, plan.bulk_end), self.n_batch):
            rows = tokens[begin - first : stop - first]
            self._batch.set_batch(batch=rows, n_past=begin, logits_all=False)
            self._batch.batch.logits[len(rows) - 1] = stop == end
            self._ctx.decode(self._batch)
            self.input_ids[begin:stop] = rows
            self.n_tokens = stop
        self._requires_eval = False


def batches(begin: int, end: int, cuts: Sequence[int], size: int) -> Iterator[tuple[int, int]]:
    """[begin, end) in pieces of at most `size` rows that also end at each position in `cuts`."""
    while begin < end:
        stop = min([begin + size, end, *(cut for cut in cuts if cut > begin)])
        yield begin, stop
        begin = stop


def _close_then_free(context: Any, projector: Projector) -> None:
    context.close()
    projector.free()


def _refuse_unknown(kwargs: dict[str, Any]) -> None:
    for name in kwargs:
        if name not in _INIT:
            close = difflib.get_close_matches(name, [*_OWN, *_INIT], n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"Llama() got an unexpected keyword argument {name!r}{hint}")
