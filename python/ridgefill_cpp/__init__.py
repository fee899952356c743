"""llama.cpp with RidgeFill: long prompts filled by a fitted linear map instead of the late layers.

>>> from ridgefill_cpp import Llama
>>> llm = Llama("model.gguf", n_ctx=8192, ridgefill="proj.gguf", ridgefill_tail=512)

Names are imported on first use, so that tools which only read or write side files never load the native libraries.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._llama_cpp import (
        LlamaCache,
        LlamaDiskCache,
        LlamaGrammar,
        LlamaRAMCache,
        LlamaState,
        LogitsProcessorList,
        StoppingCriteriaList,
    )
    from ._status import RidgefillCounts, RidgefillStatus
    from .llama import Llama

__all__ = [
    "Llama",
    "LlamaCache",
    "LlamaDiskCache",
    "LlamaGrammar",
    "LlamaRAMCache",
    "LlamaState",
    "LogitsProcessorList",
    "RidgefillCounts",
    "RidgefillStatus",
    "StoppingCriteriaList",
    "__version__",
]

_HOME = {"Llama": "llama", "RidgefillCounts": "_status", "RidgefillStatus": "_status"}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME.get(name, '_llama_cpp')}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ridgefill-cpp")
    except PackageNotFoundError:  # run from a source tree
        return "0+source"
