"""A copy of a side file with tensors added or replaced, in the order that every writer here keeps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from .gguf_writer import Tensor
from .layout import FINAL_BIAS, FINAL_WEIGHT, LAYER_TENSOR, SCORE, Header
from .sidefile import SideFile, write_sidefile

PARTS = ("codes", "scale", "weight", "bias", "state")
LAST = (SCORE, FINAL_WEIGHT, FINAL_BIAS)


def file_order(name: str) -> tuple[int, int, int]:
    """Sort key: maps by layer and part, then the tensors of the whole model."""
    match = LAYER_TENSOR.fullmatch(name)
    return (0, int(match[1]), PARTS.index(match[2])) if match else (1, LAST.index(name), 0)


def write_copy(side: SideFile, output: Path, header: Header, tensors: Sequence[Tensor], force: bool = False) -> None:
    """`side` under new keys, with `tensors` in place of those of the same names."""
    table = side.gguf.tensors
    kept = {name: Tensor(name, i.type, i.ne, partial(side.gguf.chunks, name)) for name, i in table.items()}
    kept |= {tensor.name: tensor for tensor in tensors}
    write_sidefile(output, header, [kept[name] for name in sorted(kept, key=file_order)], force)
