"""safetensors files: a strict reader that keeps only the header, and a deterministic writer.

The reader wants the data described exactly once: offsets in order, no gap, no overlap, no tail, no name twice.
The writer puts `__metadata__` first, sorts tensors by value size (largest first) and name as the stock writer does,
writes compact JSON and pads the header with spaces to a multiple of 8 bytes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import RidgefillError, clean
from .gguf_writer import Buffer, as_bytes, replacing

MAX_HEADER = 16 << 20
MAX_DIMS = 8
DTYPES: dict[str, np.dtype[Any]] = {
    "BF16": np.dtype("<u2"),  # bits
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I8": np.dtype("i1"),
    "I32": np.dtype("<i4"),
}


@dataclass(frozen=True)
class Entry:
    """One tensor of one file; offset is in bytes from the file's beginning."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    n_bytes: int

    def rows(self, begin: int = 0, end: int | None = None) -> npt.NDArray[Any]:
        """Rows [begin, end) along the first axis (all of them by default); bf16 comes as uint16 bits."""
        end = self.shape[0] if end is None else end
        row = self.n_bytes // self.shape[0]
        out = np.empty((end - begin, *self.shape[1:]), DTYPES[self.dtype])
        with open(self.path, "rb") as file:
            file.seek(self.offset + begin * row)
            if file.readinto(out.reshape(-1).view(np.uint8).data) != out.nbytes:
                raise RidgefillError("truncated", self.path, self.name, "an early end of file", f"{self.n_bytes} bytes")
        return out

    def pieces(self, size: int = 1 << 20) -> Iterator[npt.NDArray[np.uint8]]:
        """The bytes in pieces of at most `size`, all in one buffer: a piece is valid until the next."""
        buffer = np.empty(min(size, self.n_bytes), np.uint8)
        with open(self.path, "rb", buffering=0) as file:
            file.seek(self.offset)
            for begin in range(0, self.n_bytes, size):
                piece = buffer[: min(size, self.n_bytes - begin)]
                if file.readinto(piece.data) != len(piece):
                    raise RidgefillError(
                        "truncated", self.path, self.name, "an early end of file", f"{self.n_bytes} bytes"
                    )
                yield piece


@dataclass(frozen=True)
class Safetensors:
    path: Path
    metadata: dict[str, str]
    tensors: dict[str, Entry]


def read_safetensors(path: str | os.PathLike[str]) -> Safetensors:
    """Header of a safetensors file, checked. Raises RidgefillError."""
    path = Path(path)
    if not path.is_file():
        raise RidgefillError("no-file", path, "", "no such file", "a projector folder or safetensors file")
    size = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(8)
        length = int.from_bytes(head, "little")
        if len(head) < 8 or length > MAX_HEADER:
            found = f"{size} bytes" if len(head) < 8 else f"a header of {length} bytes"
            raise RidgefillError("not-safetensors", path, "header", found, f"a header of 2 .. {MAX_HEADER} bytes")
        if 8 + length > size:
            raise RidgefillError(
                "truncated", path, "header", f"{size} bytes", f"at least {8 + length}", "fetch it again"
            )
        raw = file.read(length)
    return _Header(path, size, 8 + length).parse(raw)


def load_json(raw: bytes, fail: Callable[[str], Exception]) -> Any:
    """JSON whose objects name each key once; `fail` makes the error for a text that is none."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            names = [name for name, _ in pairs]
            raise fail(f"the name {clean(next(n for n in names if names.count(n) > 1))} twice")
        return result

    def constant(text: str) -> Any:
        raise fail(text)

    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=once, parse_constant=constant)
    except RidgefillError:
        raise
    except (ValueError, RecursionError) as error:
        raise fail(clean(str(error)) or "nested too deeply") from None


class _Header:
    def __init__(self, path: Path, size: int, begin: int) -> None:
        self.path = path
        self.size = size
        self.begin = begin

    def fail(self, code: str, item: str, found: object, allowed: object) -> RidgefillError:
        return RidgefillError(code, self.path, clean(item), found, allowed)

    def parse(self, raw: bytes) -> Safetensors:
        table = load_json(raw, lambda what: self.fail("header", "header", what, "a JSON object"))
        if not isinstance(table, dict):
            raise self.fail("header", "header", type(table).__name__, "a JSON object")
        metadata = table.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
            raise self.fail("header", "__metadata__", "other values", "an object of strings")
        tensors = {name: self.entry(name, value) for name, value in table.items()}
        end = self.begin
        for entry in sorted(tensors.values(), key=lambda e: e.offset):
            if entry.offset != end:
                raise self.fail("tensor-span", entry.name, f"begin {entry.offset - self.begin}", end - self.begin)
            end += entry.n_bytes
        if end > self.size:
            raise self.fail("truncated", "data", f"{self.size} bytes", end)
        if end < self.size:
            raise self.fail("tensor-span", "data", f"{self.size - end} bytes after the last tensor", 0)
        return Safetensors(self.path, metadata, tensors)

    def entry(self, name: str, value: Any) -> Entry:
        if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
            raise self.fail("header", name, "other members", "dtype, shape, data_offsets")
        dtype, shape, span = value["dtype"], value["shape"], value["data_offsets"]
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise self.fail("tensor-type", name, clean(dtype), ", ".join(DTYPES))
        if not _counts(shape) or not 1 <= len(shape) <= MAX_DIMS or min(shape) < 1:
            raise self.fail("tensor-shape", name, clean(shape), f"1 to {MAX_DIMS} counts above 0")
        if not _counts(span) or len(span) != 2:
            raise self.fail("tensor-span", name, clean(span), "two offsets")
        n_bytes = math.prod(shape) * DTYPES[dtype].itemsize
        if span[1] - span[0] != n_bytes:
            raise self.fail("tensor-span", name, f"{span[1] - span[0]} bytes", f"{n_bytes} for {dtype} {shape}")
        return Entry(self.path, name, dtype, tuple(shape), self.begin + span[0], n_bytes)


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 62 for n in value)


@dataclass(frozen=True)
class NewTensor:
    """A tensor to write; `data` yields its bytes in order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Callable[[], Iterable[Buffer]]


def write_safetensors(
    path: str | os.PathLike[str], metadata: dict[str, str], tensors: list[NewTensor], force: bool = False
) -> None:
    """Writes the tensors; the same input gives the same bytes."""
    tensors = sorted(tensors, key=lambda t: (-DTYPES[t.dtype].itemsize, t.name))
    table: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for tensor in tensors:
        begin, end = end, end + math.prod(tensor.shape) * DTYPES[tensor.dtype].itemsize
        table[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path, force) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            for piece in tensor.data():
                file.write(as_bytes(piece))
