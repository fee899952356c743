"""ctypes bindings of llama-ridgefill.h; each C declaration stands above its binding.

Knows the C types and nothing else; `_projector` gives them Python's errors. Importing checks that the loaded llama
library is ours and has the ABI this file was written for.
"""
# the decorated stubs only carry a signature
# mypy: disable-error-code="empty-body"

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int32, c_size_t, c_void_p
from typing import Any, TypeVar

from ._llama_cpp import llama_cpp as _base
from .modes import MODES as MODES
from .modes import PLACEMENTS as PLACEMENTS
from .modes import SELECTS as SELECTS

# #define LLAMA_RIDGEFILL_ABI 3
ABI = 3

_F = TypeVar("_F", bound=Callable[..., Any])


def check_abi(lib: ctypes.CDLL) -> None:
    """Raises ImportError unless `lib` is a llama library with RidgeFill calls of this ABI."""
    hint = "hint: rebuild with make build, or reinstall ridgefill-cpp"
    name = getattr(lib, "_name", lib)
    try:
        # LLAMA_API int32_t llama_ridgefill_abi(void);
        abi = lib.llama_ridgefill_abi
    except AttributeError:
        raise ImportError(
            f"ridgefill_cpp: {name}: found a llama library without RidgeFill calls, "
            f"allowed this package's own library\n{hint}"
        ) from None
    abi.argtypes, abi.restype = [], c_int32
    if (found := abi()) != ABI:
        raise ImportError(f"ridgefill_cpp: {name}: found RidgeFill ABI {found}, allowed {ABI}\n{hint}")


_lib: ctypes.CDLL = _base._lib
check_abi(_lib)


def _c(name: str, argtypes: list[Any], restype: Any) -> Callable[[_F], _F]:
    """Gives the C function `name` the typed signature of the decorated stub."""

    def bind(stub: _F) -> _F:
        function = getattr(_lib, name)
        function.argtypes = argtypes
        function.restype = restype
        function.__doc__ = stub.__doc__
        return function

    return bind


# enum llama_ridgefill_mode {
#     LLAMA_RIDGEFILL_MODE_OFF   = 0,
#     LLAMA_RIDGEFILL_MODE_PLUMB = 1,
#     LLAMA_RIDGEFILL_MODE_SPEED = 2,
#     LLAMA_RIDGEFILL_MODE_QUALITY = 3,
# };
MODE_OFF = 0
MODE_PLUMB = 1
MODE_SPEED = 2
MODE_QUALITY = 3

# enum llama_ridgefill_select {
#     LLAMA_RIDGEFILL_SELECT_ATTENTION = 0, _SPANS = 1, _ROWS = 2, _CLASS = 3, _RANDOM = 4, _ALL = 5,
# };

# enum llama_ridgefill_target {
#     LLAMA_RIDGEFILL_TARGET_LAYER_INPUT = 0,
#     LLAMA_RIDGEFILL_TARGET_BLOCK_INPUT = 1,
# };
TARGETS = ("layer_input", "block_input")

# enum llama_ridgefill_reason {
#     LLAMA_RIDGEFILL_REASON_NONE = 0, _NO_PROJECTOR = 1, _OFF = 2, _SHORT = 3, _OUTPUTS = 4, _ADAPTER = 5,
#     _NOT_CAUSAL = 6, _GRAPH = 7, _NO_PLAN = 8, _MEMORY = 9, _NO_TABLE = 10,
# };
REASON_NONE = 0
REASON_NO_PROJECTOR = 1
REASON_OFF = 2
REASON_SHORT = 3
REASON_OUTPUTS = 4
REASON_NO_PLAN = 8


# struct llama_ridgefill_params {
#     enum llama_ridgefill_mode mode;
#     int32_t n_tail;
#     int32_t n_head;
#     int32_t n_min_bulk;
#     enum llama_ridgefill_select select;
#     float   share;
# };
class llama_ridgefill_params(ctypes.Structure):
    mode: int
    n_tail: int
    n_head: int
    n_min_bulk: int
    select: int
    share: float
    _fields_ = [
        ("mode", c_int),
        ("n_tail", c_int32),
        ("n_head", c_int32),
        ("n_min_bulk", c_int32),
        ("select", c_int),
        ("share", c_float),
    ]


# struct llama_ridgefill_plan {
#     enum llama_ridgefill_mode   mode;
#     enum llama_ridgefill_reason reason;
#     llama_pos bulk_begin;
#     llama_pos bulk_end;
# };
class llama_ridgefill_plan(ctypes.Structure):
    mode: int
    reason: int
    bulk_begin: int
    bulk_end: int
    _fields_ = [("mode", c_int), ("reason", c_int), ("bulk_begin", c_int32), ("bulk_end", c_int32)]


# struct llama_ridgefill_counts {
#     enum llama_ridgefill_mode   mode;
#     enum llama_ridgefill_reason reason;
#     int32_t n_filled;
#     int32_t n_exact;
#     int32_t n_selected;
# };
class llama_ridgefill_counts(ctypes.Structure):
    mode: int
    reason: int
    n_filled: int
    n_exact: int
    n_selected: int
    _fields_ = [
        ("mode", c_int),
        ("reason", c_int),
        ("n_filled", c_int32),
        ("n_exact", c_int32),
        ("n_selected", c_int32),
    ]


# struct llama_ridgefill_interval {
#     llama_pos begin;
#     llama_pos end;
#     enum llama_ridgefill_mode mode;
# };
class llama_ridgefill_interval(ctypes.Structure):
    begin: int
    end: int
    mode: int
    _fields_ = [("begin", c_int32), ("end", c_int32), ("mode", c_int)]


# LLAMA_API int32_t llama_ridgefill_abi(void);
@_c("llama_ridgefill_abi", [], c_int32)
def llama_ridgefill_abi() -> int: ...


# LLAMA_API const char * llama_ridgefill_mode_name(enum llama_ridgefill_mode mode);
@_c("llama_ridgefill_mode_name", [c_int], c_char_p)
def llama_ridgefill_mode_name(mode: int, /) -> bytes: ...


# LLAMA_API const char * llama_ridgefill_reason_name(enum llama_ridgefill_reason reason);
@_c("llama_ridgefill_reason_name", [c_int], c_char_p)
def llama_ridgefill_reason_name(reason: int, /) -> bytes: ...


# LLAMA_API const char * llama_ridgefill_select_name(enum llama_ridgefill_select select);
@_c("llama_ridgefill_select_name", [c_int], c_char_p)
def llama_ridgefill_select_name(select: int, /) -> bytes: ...


# LLAMA_API bool llama_ridgefill_mode_parse(const char * text, enum llama_ridgefill_mode * mode);
@_c("llama_ridgefill_mode_parse", [c_char_p, POINTER(c_int)], c_bool)
def llama_ridgefill_mode_parse(text: bytes, mode: Any, /) -> bool: ...


# LLAMA_API bool llama_ridgefill_select_parse(const char * text, enum llama_ridgefill_select * select);
@_c("llama_ridgefill_select_parse", [c_char_p, POINTER(c_int)], c_bool)
def llama_ridgefill_select_parse(text: bytes, select: Any, /) -> bool: ...


# LLAMA_API struct llama_ridgefill_params llama_ridgefill_default_params(void);
@_c("llama_ridgefill_default_params", [], llama_ridgefill_params)
def llama_ridgefill_default_params() -> llama_ridgefill_params: ...


# LLAMA_API struct llama_ridgefill_projector * llama_ridgefill_load(
#         const struct llama_model * model, const char * path, enum llama_ridgefill_placement placement,
#         char * err, size_t err_len);
@_c("llama_ridgefill_load", [c_void_p, c_char_p, c_int, c_char_p, c_size_t], c_void_p)
def llama_ridgefill_load(model: Any, path: bytes, placement: int, err: Any, err_len: int, /) -> int | None: ...


# LLAMA_API void llama_ridgefill_free(struct llama_ridgefill_projector * projector);
@_c("llama_ridgefill_free", [c_void_p], None)
def llama_ridgefill_free(projector: int | None, /) -> None: ...


# LLAMA_API int32_t llama_ridgefill_split(const struct llama_ridgefill_projector * projector);
@_c("llama_ridgefill_split", [c_void_p], c_int32)
def llama_ridgefill_split(projector: int, /) -> int: ...


# LLAMA_API int32_t llama_ridgefill_n_maps(const struct llama_ridgefill_projector * projector);
@_c("llama_ridgefill_n_maps", [c_void_p], c_int32)
def llama_ridgefill_n_maps(projector: int, /) -> int: ...


# LLAMA_API size_t llama_ridgefill_size(const struct llama_ridgefill_projector * projector);
@_c("llama_ridgefill_size", [c_void_p], c_size_t)
def llama_ridgefill_size(projector: int, /) -> int: ...


# LLAMA_API size_t llama_ridgefill_host_size(const struct llama_ridgefill_projector * projector);
@_c("llama_ridgefill_host_size", [c_void_p], c_size_t)
def llama_ridgefill_host_size(projector: int, /) -> int: ...


# LLAMA_API enum llama_ridgefill_target llama_ridgefill_target_of(const struct llama_ridgefill_projector * projector);
@_c("llama_ridgefill_target_of", [c_void_p], c_int)
def llama_ridgefill_target_of(projector: int, /) -> int: ...


# LLAMA_API const char * llama_ridgefill_identity(const struct llama_ridgefill_projector * projector);
@_c("llama_ridgefill_identity", [c_void_p], c_char_p)
def llama_ridgefill_identity(projector: int, /) -> bytes: ...


# LLAMA_API const char * llama_ridgefill_name(const struct llama_ridgefill_projector * projector);
@_c("llama_ridgefill_name", [c_void_p], c_char_p)
def llama_ridgefill_name(projector: int, /) -> bytes: ...


# LLAMA_API bool llama_ridgefill_native(const struct llama_ridgefill_projector * projector);
@_c("llama_ridgefill_native", [c_void_p], c_bool)
def llama_ridgefill_native(projector: int, /) -> bool: ...


# LLAMA_API const char * llama_ridgefill_warning(const struct llama_ridgefill_projector * projector, size_t i);
@_c("llama_ridgefill_warning", [c_void_p, c_size_t], c_char_p)
def llama_ridgefill_warning(projector: int, i: int, /) -> bytes | None: ...


# LLAMA_API bool llama_ridgefill_attach(
#         struct llama_context * ctx, const struct llama_ridgefill_projector * projector,
#         struct llama_ridgefill_params params, char * err, size_t err_len);
@_c("llama_ridgefill_attach", [c_void_p, c_void_p, llama_ridgefill_params, c_char_p, c_size_t], c_bool)
def llama_ridgefill_attach(
    ctx: Any, projector: int | None, params: llama_ridgefill_params, err: Any, err_len: int, /
) -> bool: ...


# LLAMA_API const struct llama_ridgefill_projector * llama_ridgefill_attached(const struct llama_context * ctx);
@_c("llama_ridgefill_attached", [c_void_p], c_void_p)
def llama_ridgefill_attached(ctx: Any, /) -> int | None: ...


# LLAMA_API struct llama_ridgefill_params llama_ridgefill_get_params(const struct llama_context * ctx);
@_c("llama_ridgefill_get_params", [c_void_p], llama_ridgefill_params)
def llama_ridgefill_get_params(ctx: Any, /) -> llama_ridgefill_params: ...


# LLAMA_API struct llama_ridgefill_plan llama_ridgefill_prompt(
#         struct llama_context * ctx, llama_seq_id seq_id, llama_pos pos_begin, llama_pos pos_end,
#         const struct llama_ridgefill_params * overrides);
@_c(
    "llama_ridgefill_prompt",
    [c_void_p, c_int32, c_int32, c_int32, POINTER(llama_ridgefill_params)],
    llama_ridgefill_plan,
)
def llama_ridgefill_prompt(
    ctx: Any, seq_id: int, pos_begin: int, pos_end: int, overrides: Any, /
) -> llama_ridgefill_plan: ...


# LLAMA_API struct llama_ridgefill_plan llama_ridgefill_plan_for(
#         const struct llama_context * ctx, llama_pos pos_begin, llama_pos pos_end,
#         const struct llama_ridgefill_params * overrides);
@_c("llama_ridgefill_plan_for", [c_void_p, c_int32, c_int32, POINTER(llama_ridgefill_params)], llama_ridgefill_plan)
def llama_ridgefill_plan_for(ctx: Any, pos_begin: int, pos_end: int, overrides: Any, /) -> llama_ridgefill_plan: ...


# LLAMA_API struct llama_ridgefill_counts llama_ridgefill_get_counts(
#         const struct llama_context * ctx, llama_seq_id seq_id);
@_c("llama_ridgefill_get_counts", [c_void_p, c_int32], llama_ridgefill_counts)
def llama_ridgefill_get_counts(ctx: Any, seq_id: int, /) -> llama_ridgefill_counts: ...


# LLAMA_API struct llama_ridgefill_interval llama_ridgefill_filled(
#         const struct llama_context * ctx, llama_seq_id seq_id);
@_c("llama_ridgefill_filled", [c_void_p, c_int32], llama_ridgefill_interval)
def llama_ridgefill_filled(ctx: Any, seq_id: int, /) -> llama_ridgefill_interval: ...


# LLAMA_API void llama_ridgefill_set_filled(
#         struct llama_context * ctx, llama_seq_id seq_id, struct llama_ridgefill_interval filled);
@_c("llama_ridgefill_set_filled", [c_void_p, c_int32, llama_ridgefill_interval], None)
def llama_ridgefill_set_filled(ctx: Any, seq_id: int, filled: llama_ridgefill_interval, /) -> None: ...


# LLAMA_API llama_pos llama_ridgefill_reusable(
#         struct llama_ridgefill_interval filled, struct llama_ridgefill_params params,
#         llama_pos n_match, llama_pos n_prompt);
@_c(
    "llama_ridgefill_reusable",
    [llama_ridgefill_interval, llama_ridgefill_params, c_int32, c_int32],
    c_int32,
)
def llama_ridgefill_reusable(
    filled: llama_ridgefill_interval, params: llama_ridgefill_params, n_match: int, n_prompt: int, /
) -> int: ...


# LLAMA_API void llama_ridgefill_cut(struct llama_context * ctx, llama_seq_id seq_id, llama_pos pos);
@_c("llama_ridgefill_cut", [c_void_p, c_int32, c_int32], None)
def llama_ridgefill_cut(ctx: Any, seq_id: int, pos: int, /) -> None: ...


# LLAMA_API size_t llama_ridgefill_parts(const struct llama_context * ctx, llama_seq_id seq_id,
#         struct llama_ridgefill_interval * parts, size_t n_max);
@_c("llama_ridgefill_parts", [c_void_p, c_int32, POINTER(llama_ridgefill_interval), c_size_t], c_size_t)
def llama_ridgefill_parts(ctx: Any, seq_id: int, parts: Any, n_max: int, /) -> int: ...


# LLAMA_API void llama_ridgefill_set_parts(struct llama_context * ctx, llama_seq_id seq_id,
#         const struct llama_ridgefill_interval * parts, size_t n_parts);
@_c("llama_ridgefill_set_parts", [c_void_p, c_int32, POINTER(llama_ridgefill_interval), c_size_t], None)
def llama_ridgefill_set_parts(ctx: Any, seq_id: int, parts: Any, n_parts: int, /) -> None: ...


# LLAMA_API int32_t llama_ridgefill_n_states(const struct llama_ridgefill_projector * projector);
@_c("llama_ridgefill_n_states", [c_void_p], c_int32)
def llama_ridgefill_n_states(projector: int, /) -> int: ...


# LLAMA_API bool llama_ridgefill_set_alpha(struct llama_context * ctx, float alpha);
@_c("llama_ridgefill_set_alpha", [c_void_p, c_float], c_bool)
def llama_ridgefill_set_alpha(ctx: Any, alpha: float, /) -> bool: ...


# LLAMA_API float llama_ridgefill_alpha(const struct llama_context * ctx);
@_c("llama_ridgefill_alpha", [c_void_p], c_float)
def llama_ridgefill_alpha(ctx: Any, /) -> float: ...


# LLAMA_API size_t llama_ridgefill_state(struct llama_context * ctx, llama_seq_id seq_id, int32_t il,
#         float * dst, size_t n_max);
@_c("llama_ridgefill_state", [c_void_p, c_int32, c_int32, POINTER(c_float), c_size_t], c_size_t)
def llama_ridgefill_state(ctx: Any, seq_id: int, il: int, dst: Any, n_max: int, /) -> int: ...


# LLAMA_API bool llama_ridgefill_capture(
#         struct llama_context * ctx, int32_t split, enum llama_ridgefill_target target,
#         const int32_t * layers, size_t n_layers, char * err, size_t err_len);
@_c("llama_ridgefill_capture", [c_void_p, c_int32, c_int, POINTER(c_int32), c_size_t, c_char_p, c_size_t], c_bool)
def llama_ridgefill_capture(
    ctx: Any, split: int, target: int, layers: Any, n_layers: int, err: Any, err_len: int, /
) -> bool: ...


# LLAMA_API const float * llama_ridgefill_captured(
#         struct llama_context * ctx, size_t i_layer, int32_t * n_rows, int32_t * width);
@_c("llama_ridgefill_captured", [c_void_p, c_size_t, POINTER(c_int32), POINTER(c_int32)], POINTER(c_float))
def llama_ridgefill_captured(ctx: Any, i_layer: int, n_rows: Any, width: Any, /) -> Any: ...
