"""A published folder as a source: which tensors its manifest promises, and that exactly these are there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import RidgefillError, clean
from .folder import MANIFEST, Folder
from .int8 import F32, GROUP, I8, U16, bf16_to_f32, n_groups
from .layout import MAX_LAYERS, MAX_WIDTH, Credit
from .safetensors_io import Entry
from .source import Source, Stored, name_list, row_steps


@dataclass
class FolderSource(Source):
    tensors: dict[str, Entry] = field(default_factory=dict)
    wait: Callable[[], None] = lambda: None

    def verified(self) -> None:
        self.wait()

    def pieces(self, layer: int, part: str) -> Iterator[npt.NDArray[np.uint8]]:
        return self.tensors[f"proj.{layer}.{part}"].pieces()

    def codes(self, layer: int) -> tuple[I8, U16]:
        if self.form == "bf16":
            return super().codes(layer)
        return self.tensors[f"proj.{layer}.codes"].rows(), self.tensors[f"proj.{layer}.scale"].rows()

    def weight(self, layer: int) -> U16:
        return self.tensors[f"proj.{layer}.weight"].rows()

    def bias(self, layer: int) -> F32:
        return bf16_to_f32(self.tensors[f"proj.{layer}.bias"].rows())

    @property
    def has_final(self) -> bool:
        return "final.weight" in self.tensors

    def final_weight(self) -> Iterator[U16]:
        yield from row_steps(self.tensors["final.weight"])

    def final_bias(self) -> F32:
        return bf16_to_f32(self.tensors["final.bias"].rows())


def folder_source(folder: Folder) -> FolderSource:
    try:
        return _folder_source(folder)
    except RidgefillError:
        folder.verified()  # a damaged file is the better reason
        raise


def _folder_source(folder: Folder) -> FolderSource:
    manifest, tensors = folder.manifest, folder.tensors
    at = folder.path / MANIFEST

    def number(name: str, high: int, default: int | None = None) -> int:
        value = manifest.get(name, default)
        if type(value) is not int or not 1 <= value <= high:
            raise RidgefillError("manifest", at, name, clean(value), f"1 .. {high}")
        return value

    split = number("split", MAX_LAYERS - 1)
    projector = manifest.get("projector", {})
    form = projector.get("dtype", "bf16") if isinstance(projector, dict) else None
    if form not in ("i8", "bf16"):
        raise RidgefillError("manifest", at, "projector.dtype", clean(form), "i8, bf16")
    layers = _layers(manifest, at, split, tensors)
    first = tensors.get(f"proj.{layers[0]}." + ("codes" if form == "i8" else "weight"))
    shape = first.shape if first is not None and len(first.shape) == 2 else (None, None)
    n_in, n_out = number("stream_width", MAX_WIDTH, shape[1]), number("block_in_width", MAX_WIDTH, shape[0])
    if n_in % GROUP:
        raise RidgefillError("manifest", at, "stream_width", n_in, f"a multiple of {GROUP}")
    expected = _expected(layers, n_in, n_out, form, tensors, "final" in manifest)
    _compare(folder.path, tensors, expected)
    states: dict[int, Stored] = {int(name[3:]): entry for name, entry in tensors.items() if name.startswith("st.")}
    scores: dict[str, Stored] = {name: entry for name, entry in tensors.items() if name.startswith("score")}
    return FolderSource(
        path=folder.path,
        form=form,
        split=split,
        layers=layers,
        n_in=n_in,
        n_out=n_out,
        manifest=manifest,
        credit=_credit(manifest),
        states=states,
        scores=scores,
        tensors=tensors,
        wait=folder.verified,
    )


def _layers(manifest: dict[str, Any], at: Path, split: int, tensors: dict[str, Entry]) -> range:
    """The late layers: as the manifest lists them, else as the tensors' names have them."""
    listed = manifest.get("layers")
    if listed is None:
        listed = [m[1] for name in tensors if (m := re.fullmatch(r"proj\.([0-9]{1,4})\.bias", name))]
    if not isinstance(listed, (dict, list)):
        raise RidgefillError("manifest", at, "layers", clean(listed), "layer numbers with their kinds")
    names = [name for name in listed if isinstance(name, str) and re.fullmatch("0|[1-9][0-9]{0,3}", name)]
    numbers = sorted(map(int, names))
    first = numbers[0] if numbers else 0
    run = range(first, first + len(numbers))
    # only an exported folder may lack the map of the split layer, which published ones have
    begins_well = first == split or (first == split + 1 and "gguf" in manifest)
    if len(numbers) != len(listed) or numbers != list(run) or not begins_well or run[-1] >= MAX_LAYERS:
        found = ", ".join(names) if names else listed
        raise RidgefillError("manifest", at, "layers", clean(found), f"one run from the split {split} up")
    return run


Shape = tuple[str, tuple[int, ...] | None]


def _expected(
    layers: range, n_in: int, n_out: int, form: str, found: dict[str, Entry], final: bool
) -> dict[str, Shape]:
    """name -> dtype and shape (None: any) of each tensor the folder must have, given the optional ones it has."""
    expected: dict[str, Shape] = {}
    for layer in layers:
        if form == "i8":
            expected[f"proj.{layer}.codes"] = ("I8", (n_out, n_in))
            expected[f"proj.{layer}.scale"] = ("BF16", (n_out, n_groups(n_in)))
        else:
            expected[f"proj.{layer}.weight"] = ("BF16", (n_out, n_in))
        expected[f"proj.{layer}.bias"] = ("BF16", (n_out,))
    if final:
        expected["final.weight"] = ("BF16", (n_in, n_in))
        expected["final.bias"] = ("BF16", (n_in,))
    first_state = next((e.shape for n, e in found.items() if n.startswith("st.") and len(e.shape) == 3), None)
    for layer in layers:
        if f"st.{layer}" in found:
            expected[f"st.{layer}"] = ("F32", first_state)
    if any(name in found for name in ("score", "score_none", "score_all")):
        vocab = next(found[n].shape for n in ("score", "score_none", "score_all") if n in found)
        expected |= {name: ("F32", vocab if len(vocab) == 1 else None) for name in ("score", "score_none", "score_all")}
    return expected


def _compare(path: Path, found: dict[str, Entry], expected: dict[str, Shape]) -> None:
    missing = [name for name in expected if name not in found]
    unknown = [name for name in found if name not in expected]
    if missing:
        raise RidgefillError(
            "tensor-missing", path, name_list(missing), f"{len(missing)} tensors absent", "all of the manifest's layers"
        )
    if unknown:
        hint = "the folder holds tensors that this version does not know, or one map in two forms"
        raise RidgefillError(
            "tensor-unknown", path, name_list(unknown), f"{len(unknown)} unknown tensors", "none", hint
        )
    for name, (dtype, shape) in expected.items():
        entry = found[name]
        if entry.dtype != dtype:
            raise RidgefillError("tensor-type", entry.path, name, entry.dtype, dtype)
        if entry.shape != shape:
            raise RidgefillError(
                "tensor-shape", entry.path, name, list(entry.shape), list(shape or ()) or "another rank"
            )


def _credit(manifest: dict[str, Any]) -> Credit:
    def text(name: str) -> str:
        value = manifest.get(name, "")
        return value if isinstance(value, str) else ""

    authors = manifest.get("authors", [])
    joined = ", ".join(a for a in authors if isinstance(a, str)) if isinstance(authors, list) else ""
    return Credit(text("name"), joined, text("license"), text("doi"))
