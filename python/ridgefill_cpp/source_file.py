"""One safetensors file as a source: `layer.<L>` [n, w + 1] with the bias in the last column, optionally `final`.

The layers must be one run; the lowest is the split.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from .errors import RidgefillError
from .int8 import F32, U16, bf16_to_f32
from .layout import MAX_LAYERS, Credit
from .safetensors_io import Entry, Safetensors
from .source import Source, name_list, row_steps

NAME = re.compile(r"layer\.(0|[1-9][0-9]{0,3})")


@dataclass
class FileSource(Source):
    tensors: dict[str, Entry] = field(default_factory=dict)

    def weight(self, layer: int) -> U16:
        return np.ascontiguousarray(self.tensors[f"layer.{layer}"].rows()[:, :-1])

    def bias(self, layer: int) -> F32:
        return bf16_to_f32(self.tensors[f"layer.{layer}"].rows()[:, -1])

    @property
    def has_final(self) -> bool:
        return "final" in self.tensors

    def final_weight(self) -> Iterator[U16]:
        for rows in row_steps(self.tensors["final"]):
            yield np.ascontiguousarray(rows[:, :-1])

    def final_bias(self) -> F32:
        return bf16_to_f32(np.concatenate([rows[:, -1] for rows in row_steps(self.tensors["final"])]))


def file_source(file: Safetensors) -> FileSource:
    found = file.tensors
    matches = [NAME.fullmatch(name) for name in found]
    layers = sorted(int(match[1]) for match in matches if match)
    unknown = [name for name in found if name != "final" and not NAME.fullmatch(name)]
    if unknown:
        raise RidgefillError(
            "tensor-unknown", file.path, name_list(unknown), f"{len(unknown)} unknown tensors", "layer.<L>, final"
        )
    if not layers:
        raise RidgefillError("tensor-missing", file.path, "layer.<L>", "no map", "one per late layer")
    if layers != list(range(layers[0], layers[-1] + 1)) or layers[0] < 1 or layers[-1] >= MAX_LAYERS:
        what = ", ".join(map(str, layers))
        raise RidgefillError(
            "layer-missing", file.path, "layer.<L>", f"layers {what}", f"one run within 1 .. {MAX_LAYERS - 1}"
        )
    shape = found[f"layer.{layers[0]}"].shape
    for layer in layers:
        entry = found[f"layer.{layer}"]
        if entry.dtype != "BF16":
            raise RidgefillError("tensor-type", file.path, entry.name, entry.dtype, "BF16")
        if len(shape) != 2 or entry.shape != shape or shape[1] < 2:
            raise RidgefillError(
                "tensor-shape", file.path, entry.name, list(entry.shape), f"[n, w + 1], as layer.{layers[0]}"
            )
    n_out, n_in = shape[0], shape[1] - 1
    final = found.get("final")
    if final is not None and (final.dtype, final.shape) != ("BF16", (n_in, n_in + 1)):
        raise RidgefillError(
            "tensor-shape", file.path, "final", f"{final.dtype} {list(final.shape)}", f"BF16 {[n_in, n_in + 1]}"
        )
    credit = Credit(*(file.metadata.get(key, "") for key in ("name", "authors", "license", "doi")))
    run = range(layers[0], layers[-1] + 1)
    return FileSource(file.path, "bf16", layers[0], run, n_in, n_out, {}, credit, tensors=found)
