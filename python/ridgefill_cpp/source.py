"""What a side file can be made from: a published folder or one safetensors file with `layer.<L>`, behind one face.

A source knows its dimensions and gives one layer's map at a time, as codes and scale or as bf16 bits, so that memory
stays at a map or two however large the projector is.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .errors import RidgefillError, clean
from .folder import MANIFEST, read_folder
from .int8 import F32, I8, U16, quantize
from .layout import Credit, Header
from .safetensors_io import Entry, read_safetensors

ROWS_PER_STEP = 512


class Stored(Protocol):
    """A tensor that is read when asked for."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def rows(self) -> npt.NDArray[Any]: ...
    def pieces(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Its bytes in order, each piece valid until the next."""


@dataclass
class Source(ABC):
    """A projector to convert. n_in, n_out in values; `layers` is one run that ends with the model's last layer and
    begins with the split, or one after it."""

    path: Path
    form: str  # "i8" or "bf16": what the maps are stored as
    split: int
    layers: range
    n_in: int
    n_out: int
    manifest: dict[str, Any] = field(default_factory=dict)
    credit: Credit = field(default_factory=Credit)
    states: dict[int, Stored] = field(default_factory=dict)
    scores: dict[str, Stored] = field(default_factory=dict)
    known: Header | None = None  # the keys, where the source has them

    def verified(self) -> None:
        """Waits until the files' hashes are known to be right; nothing may be kept of a source before."""
        return  # a single file has none

    def pieces(self, layer: int, part: str) -> Iterator[npt.NDArray[np.uint8]]:
        """Bytes of `codes` or `scale` in order, a few at a time, each valid until the next; form i8 only."""
        codes, scale = self.codes(layer)
        yield (codes if part == "codes" else scale).reshape(-1).view(np.uint8)

    def codes(self, layer: int) -> tuple[I8, U16]:
        """codes [n_out, n_in] and scale bits [n_out, groups]: the stored ones, or those of the weight by the rule."""
        return quantize(self.weight(layer))

    @abstractmethod
    def weight(self, layer: int) -> U16:
        """bf16 bits [n_out, n_in]; form bf16 only."""

    @abstractmethod
    def bias(self, layer: int) -> F32:
        """float32 [n_out]"""

    @property
    @abstractmethod
    def has_final(self) -> bool: ...

    @abstractmethod
    def final_weight(self) -> Iterator[U16]:
        """bf16 bits of the final map [n_in, n_in], some rows at a time."""

    @abstractmethod
    def final_bias(self) -> F32: ...


def open_source(path: str | os.PathLike[str], step: Callable[[int], object] = lambda n_bytes: None) -> Source:
    """Reads a folder (int8 or bf16), whose hashes `verified` waits for, a safetensors file or a side file."""
    from .sidefile import open_sidefile
    from .source_file import file_source
    from .source_folder import folder_source
    from .source_side import side_source

    path = Path(path)
    if path.is_dir():
        return folder_source(read_folder(path, step))
    if path.name == MANIFEST:
        raise RidgefillError("no-file", path, "", "the manifest", "the folder that holds it", f"give {path.parent}")
    if path.is_file():
        with open(path, "rb") as file:
            if file.read(4) == b"GGUF":
                return side_source(open_sidefile(path))
    return file_source(read_safetensors(path))


def row_steps(entry: Entry) -> Iterator[U16]:
    """A bf16 tensor, some rows at a time."""
    for begin in range(0, entry.shape[0], ROWS_PER_STEP):
        yield entry.rows(begin, min(begin + ROWS_PER_STEP, entry.shape[0]))


def name_list(names: list[str]) -> str:
    """The first names of a list, for a message."""
    return clean(", ".join(names[:8]) + (", ..." if len(names) > 8 else ""), 200)
