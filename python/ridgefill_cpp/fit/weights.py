"""What the capture multiplies with: the model itself, or a bf16 copy of its quantised weights.

On the CPU most of a fit is matrix products, and processors with bf16 instructions run them up to three times as fast on
bf16 weights as on quantised ones (docs/results). The copy has the same weights, rounded to 8 bits of precision; what
llama.cpp leaves out is the rounding of activations to 8 bits, which quantised products need.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path

from ..errors import RidgefillError
from ..gguf_reader import GgufFile
from ..gguf_types import TYPES

WEIGHTS = ("auto", "model", "bf16")
MOST = 1 << 30  # bytes of a copy that is made unasked
FTYPE_BF16 = 32  # LLAMA_FTYPE_MOSTLY_BF16


def chosen(weights: str, model: GgufFile, gpu_layers: int) -> str:
    """ "model" or "bf16"; depends on model and processor only, so that the same input gives the same file."""
    if weights != "auto":
        return weights
    quantised = any(TYPES[i.type].elements > 1 for i in model.tensors.values() if i.type in TYPES)
    size = 2 * sum(prod(i.ne) for i in model.tensors.values())
    in_parts = "split.count" in model.keys
    return "bf16" if quantised and size <= MOST and not in_parts and not gpu_layers and _has_bf16() else "model"


@contextmanager
def model_file(weights: str, model: Path, threads: int) -> Iterator[Path]:
    """The model's path, or that of a copy that is gone afterwards."""
    if weights == "model":
        yield model
        return
    with tempfile.TemporaryDirectory(prefix="ridgefill-bf16-") as folder:
        copy = Path(folder) / "model.gguf"
        _write_copy(model, copy, threads)
        yield copy


def _has_bf16() -> bool:
    from .. import _capi  # noqa: F401  (checks that the library is ours)
    from .._llama_cpp import llama_cpp

    return b"AVX512_BF16 = 1" in llama_cpp.llama_print_system_info()


def _write_copy(model: Path, copy: Path, threads: int) -> None:
    from .. import _capi  # noqa: F401
    from .._llama_cpp import llama_cpp
    from .._llama_cpp._logger import set_verbose

    set_verbose(False)
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread, params.ftype, params.allow_requantize = threads, FTYPE_BF16, True
    if llama_cpp.llama_model_quantize(os.fsencode(model), os.fsencode(copy), ctypes.byref(params)) != 0:
        hint = "--weights model fits without a copy"
        raise RidgefillError("capture", model, "bf16 copy", "an error", "a model that can be converted", hint)
