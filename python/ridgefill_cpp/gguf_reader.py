"""A strict reader of GGUF headers: every count, length and offset is checked before it is used.

It reads side files and models alike, keeps no more in memory than the header, and never reads past the file. A defect
is one RidgefillError with a code of docs/format.md. Knows nothing of what the keys mean.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from .errors import RidgefillError, clean
from .gguf_types import ARRAY, SCALARS, STRING, TYPES, Value

MAX_KEYS = 1024
MAX_TENSORS = 4096
MAX_NAME = 63
MAX_STRING = 16 << 20
MAX_HEADER = 64 << 20
MAX_DIMS = 4
ALIGNMENTS = tuple(1 << i for i in range(3, 17))

# A model's vocabulary and expert tensors need more room than a side file.
MODEL_KEYS, MODEL_TENSORS, MODEL_HEADER = 1 << 16, 1 << 17, 1 << 30


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of the file: ne is inputs-fastest as in ggml; offset counts from the file's beginning, in bytes."""

    name: str
    type: int
    ne: tuple[int, ...]
    offset: int
    n_bytes: int  # 0 for a type this reader does not know

    @property
    def type_name(self) -> str:
        return TYPES[self.type].name if self.type in TYPES else f"type {self.type}"


@dataclass(frozen=True)
class GgufFile:
    """Keys and tensor table of one file. `twice` lists tensor names that occur more than once."""

    path: Path
    size: int
    keys: dict[str, Value]
    tensors: dict[str, TensorInfo]
    twice: tuple[str, ...] = ()
    alignment: int = 32
    _identity: tuple[int, int, int] = field(default=(0, 0, 0), repr=False)

    def read(self, name: str, begin: int = 0, n_bytes: int | None = None) -> npt.NDArray[np.uint8]:
        """Bytes [begin, begin + n_bytes) of a tensor's data; all of it by default."""
        info = self.tensors[name]
        count = info.n_bytes - begin if n_bytes is None else n_bytes
        out = np.empty(count, np.uint8)
        with open(self.path, "rb") as file:
            if _identity(file) != self._identity:
                raise RidgefillError(
                    "truncated", self.path, name, "a file that changed after it was opened", "one file"
                )
            file.seek(info.offset + begin)
            if file.readinto(out.data) != count:
                raise RidgefillError("truncated", self.path, name, "an early end of file", f"{count} bytes of data")
        return out

    def chunks(self, name: str, size: int = 34 << 17) -> Iterator[npt.NDArray[np.uint8]]:
        """The tensor's bytes in pieces of at most `size`, by default a whole number of values of any type here."""
        total = self.tensors[name].n_bytes
        for begin in range(0, total, size):
            yield self.read(name, begin, min(size, total - begin))


def read_gguf(path: str | os.PathLike[str], model: bool = False) -> GgufFile:
    """Header of a GGUF file; `model` allows a model's larger vocabulary and tensor table."""
    path = Path(path)
    if not path.is_file():
        what = "a folder" if path.is_dir() else "no such file"
        raise RidgefillError("no-file", path, "", what, "a GGUF file")
    try:
        with open(path, "rb") as file:
            return _Reader(path, file, model).run()
    except OSError as error:
        raise RidgefillError("no-file", path, "", error.strerror or error, "a readable GGUF file") from error


def _identity(file: BinaryIO) -> tuple[int, int, int]:
    stat = os.fstat(file.fileno())
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


class _Reader:
    def __init__(self, path: Path, file: BinaryIO, model: bool) -> None:
        self.path = path
        self.file = file
        self.size = os.fstat(file.fileno()).st_size
        self.pos = 0
        self.item = "header"
        self.max_keys = MODEL_KEYS if model else MAX_KEYS
        self.max_tensors = MODEL_TENSORS if model else MAX_TENSORS
        self.max_header = MODEL_HEADER if model else MAX_HEADER

    def fail(self, code: str, found: object, allowed: object, hint: str = "") -> RidgefillError:
        return RidgefillError(code, self.path, self.item, found, allowed, hint)

    def take(self, count: int) -> bytes:
        if count > self.size - self.pos:
            raise self.fail("truncated", f"{self.size} bytes", f"at least {self.pos + count}", "fetch the file again")
        self.pos += count
        if self.pos > self.max_header:
            raise self.fail("header", f"more than {self.max_header} bytes of header", f"at most {self.max_header}")
        data = self.file.read(count)
        if len(data) != count:
            raise self.fail("truncated", "an early end of file", f"{count} more bytes")
        return data

    def number(self, form: str) -> int:
        value: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return value

    def raw_string(self, limit: int = MAX_STRING) -> bytes:
        length = self.number("<Q")
        if length > limit:
            raise self.fail("header", f"a string of {length} bytes", f"at most {limit}")
        return self.take(length)

    def run(self) -> GgufFile:
        n_tensors, n_keys = self.preamble()
        keys: dict[str, Value] = {}
        for index in range(n_keys):
            self.item = f"key {index}"
            name = self.raw_string().decode("utf-8", "backslashreplace")
            self.item = name
            if name in keys:
                raise self.fail("header", "the key twice", "each key once")
            keys[name] = self.value(self.number("<I"))
        alignment = self.alignment(keys)
        infos = [self.tensor_info(index) for index in range(n_tensors)]
        return self.finish(keys, infos, alignment)

    def preamble(self) -> tuple[int, int]:
        self.item = "magic"
        head = self.file.read(4)
        self.pos = len(head)
        if head != b"GGUF":
            found = "an empty file" if self.size == 0 else ascii(head.decode("latin-1"))
            raise self.fail("not-gguf", found, "'GGUF'")
        self.item = "GGUF version"
        version = self.number("<I")
        if version != 3:
            found = "big endian" if version == 3 << 24 else str(version)
            raise self.fail("not-gguf", found, "3, little endian")
        self.item = "tensor count"
        n_tensors = self.number("<Q")
        if n_tensors > self.max_tensors:
            raise self.fail("header", n_tensors, f"at most {self.max_tensors}")
        self.item = "key count"
        n_keys = self.number("<Q")
        if n_keys > self.max_keys:
            raise self.fail("header", n_keys, f"at most {self.max_keys}")
        return n_tensors, n_keys

    def value(self, kind: int) -> Value:
        if kind == STRING:
            return Value("string", self.raw_string().decode("utf-8", "replace"))
        if kind == ARRAY:
            return self.array()
        if kind not in SCALARS:
            raise self.fail("header", f"value type {kind}", "0 .. 12")
        scalar = SCALARS[kind]
        data = np.frombuffer(self.take(scalar.dtype.itemsize), scalar.dtype)[0]
        if scalar.kind == "bool" and data not in (0, 1):
            raise self.fail("header", f"bool {data}", "0 or 1")
        return Value(scalar.kind, bool(data) if scalar.kind == "bool" else data.item())

    def array(self) -> Value:
        kind = self.number("<I")
        count = self.number("<Q")
        if kind == STRING:
            if count > (self.size - self.pos) // 8:
                raise self.fail("truncated", f"{self.size} bytes", f"{count} strings", "fetch the file again")
            return Value("strings", [self.raw_string() for _ in range(count)])
        if kind not in SCALARS:
            raise self.fail("header", f"array of type {kind}", "numbers, bools or strings")
        scalar = SCALARS[kind]
        data = np.frombuffer(self.take(count * scalar.dtype.itemsize), scalar.dtype)
        return Value(scalar.kind + "s", data)

    def alignment(self, keys: dict[str, Value]) -> int:
        self.item = "general.alignment"
        value = keys.get(self.item)
        if value is None:
            return 32
        if value.kind != "int" or value.data not in ALIGNMENTS:
            raise self.fail("header", clean(value.data), f"a power of two, {ALIGNMENTS[0]} .. {ALIGNMENTS[-1]}")
        return int(value.data)

    def tensor_info(self, index: int) -> TensorInfo:
        self.item = f"tensor {index}"
        raw = self.raw_string()
        if not 1 <= len(raw) <= MAX_NAME or not all(32 < c < 127 for c in raw):
            raise self.fail("header", f"name {clean(ascii(raw))}", f"1 to {MAX_NAME} bytes of printable ASCII")
        self.item = raw.decode("ascii")
        n_dims = self.number("<I")
        if not 1 <= n_dims <= MAX_DIMS:
            raise self.fail("header", f"{n_dims} dimensions", f"1 .. {MAX_DIMS}")
        ne = tuple(self.number("<Q") for _ in range(n_dims))
        if math.prod(ne) >= 1 << 59 or any(n < 1 or n >= 1 << 62 for n in ne):
            raise self.fail("header", f"shape {list(ne)}", "1 .. 2^59 elements")
        kind = self.number("<I")
        offset = self.number("<Q")
        n_bytes = 0
        if kind in TYPES:
            block = TYPES[kind]
            if ne[0] % block.elements:
                raise self.fail("header", f"{ne[0]} columns", f"a multiple of {block.elements} for {block.name}")
            n_bytes = math.prod(ne) // block.elements * block.bytes
        return TensorInfo(self.item, kind, ne, offset, n_bytes)

    def finish(self, keys: dict[str, Value], infos: list[TensorInfo], alignment: int) -> GgufFile:
        begin = _padded(self.pos, alignment)
        expected = 0
        tensors: dict[str, TensorInfo] = {}
        twice = []
        for info in infos:
            self.item = info.name
            if info.offset != expected and expected >= 0:
                raise self.fail("tensor-span", f"offset {info.offset}", f"{expected}, the end of the tensor before it")
            end = begin + info.offset + info.n_bytes
            if end > self.size:
                raise self.fail("truncated", f"{self.size} bytes", f"at least {end}", "fetch the file again")
            # After a type of unknown size the next offset cannot be known; its own type is refused later.
            expected = info.offset + _padded(info.n_bytes, alignment) if info.n_bytes else -1
            if info.name in tensors:
                twice.append(info.name)
            tensors[info.name] = TensorInfo(info.name, info.type, info.ne, begin + info.offset, info.n_bytes)
        return GgufFile(self.path, self.size, keys, tensors, tuple(twice), alignment, _identity(self.file))


def _padded(count: int, alignment: int) -> int:
    return -(-count // alignment) * alignment
