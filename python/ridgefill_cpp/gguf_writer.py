"""A deterministic GGUF writer: keys and tensors in the order given, data streamed, written aside and then renamed.

The same calls give the same bytes; nothing of the machine, the time or a path enters the file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .errors import RidgefillError
from .gguf_types import ARRAY, F32_VALUE, STRING, TYPES, U32, U64

ALIGNMENT = 32
Buffer = bytes | memoryview | np.ndarray


@dataclass(frozen=True)
class Key:
    """One key; form is one of str, u32, u64, f32 or, with trailing [], an array of them."""

    name: str
    form: str
    value: object


@dataclass(frozen=True)
class Tensor:
    """One tensor: ne inputs-fastest; `data` is called once and yields its bytes in order."""

    name: str
    type: int
    ne: tuple[int, ...]
    data: Callable[[], Iterable[Buffer]]

    @property
    def n_bytes(self) -> int:
        block = TYPES[self.type]
        rows = 1
        for n in self.ne[1:]:
            rows *= n
        return self.ne[0] // block.elements * block.bytes * rows


FORMS = {"str": STRING, "u32": U32, "u64": U64, "f32": F32_VALUE}
PACKS = {"u32": "<I", "u64": "<Q", "f32": "<f"}


def write_gguf(
    path: str | os.PathLike[str],
    keys: Iterable[Key],
    tensors: Iterable[Tensor],
    force: bool = False,
    step: Callable[[int], object] = lambda n_bytes: None,
    before_rename: Callable[[], object] = lambda: None,
) -> None:
    """Writes a GGUF file; refuses to overwrite unless `force`. `step` hears of data bytes written.

    `before_rename` has the last word: when it raises, no file appears.
    """
    keys, tensors = list(keys), list(tensors)
    with replacing(path, force) as file:
        file.write(header(keys, tensors))
        for tensor in tensors:
            written = 0
            for piece in tensor.data():
                view = as_bytes(piece)
                file.write(view)
                written += len(view)
                step(len(view))
            if written != tensor.n_bytes:
                raise RuntimeError(f"{tensor.name}: {written} bytes given for {tensor.n_bytes}")
            file.write(bytes(-written % ALIGNMENT))
        before_rename()


def header(keys: list[Key], tensors: list[Tensor]) -> bytes:
    """Everything before the data, padded."""
    out = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(keys))]
    for key in keys:
        out += [_string(key.name), _value(key)]
    offset = 0
    for tensor in tensors:
        dims = struct.pack(f"<I{len(tensor.ne)}Q", len(tensor.ne), *tensor.ne)
        out += [_string(tensor.name), dims, struct.pack("<IQ", tensor.type, offset)]
        offset += tensor.n_bytes + -tensor.n_bytes % ALIGNMENT
    data = b"".join(out)
    return data + bytes(-len(data) % ALIGNMENT)


def _string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def _value(key: Key) -> bytes:
    form, is_array = key.form.removesuffix("[]"), key.form.endswith("[]")
    values: list[Any] = list(key.value) if is_array else [key.value]  # type: ignore[call-overload]
    body = b"".join(_string(v) if form == "str" else struct.pack(PACKS[form], v) for v in values)
    head = struct.pack("<I", FORMS[form])
    if is_array:
        head = struct.pack("<I", ARRAY) + head + struct.pack("<Q", len(values))
    return head + body


def refuse_overwrite(path: str | os.PathLike[str], force: bool) -> None:
    """Refuses an existing file without `force`, and a folder that does not exist; called before any long work."""
    path = Path(path)
    if not path.parent.is_dir():
        raise RidgefillError("no-folder", path, "output", "no such folder", "an existing folder")
    if path.is_dir() or (os.path.lexists(path) and not force):
        found = "a folder" if path.is_dir() else "an existing file"
        hint = "" if path.is_dir() else "add --force to replace it"
        raise RidgefillError("output-exists", path, "output", found, "a new name", hint)


@contextmanager
def replacing(path: str | os.PathLike[str], force: bool) -> Iterator[BinaryIO]:
    """A file that takes the name `path` only when the block ends well; nothing is left behind when it does not."""
    path = Path(path)
    refuse_overwrite(path, force)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as file:
            yield file
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def as_bytes(piece: Buffer) -> memoryview:
    if isinstance(piece, np.ndarray):
        piece = np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
    return memoryview(piece).cast("B")
