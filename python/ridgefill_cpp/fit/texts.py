"""Calibration texts: documents from files, folders and JSONL, and the split by document into train and held out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import RidgefillError, clean

SUFFIXES = (".txt", ".md", ".rst", ".py", ".jsonl")
MAX_FILES = 100_000


@dataclass(frozen=True)
class Document:
    """One text; the name is for messages only and enters no hash and no file."""

    name: str
    text: str


def load_documents(paths: Iterable[Path]) -> list[Document]:
    """Documents of all paths in the order given; a folder's files by name. Empty texts and repeats are left out.

    A .jsonl line is an object with a "text" member; every other file is one UTF-8 document (bad bytes are replaced).
    """
    documents = [document for path in paths for file in _files(path) for document in _read(file)]
    unique = {document.text: document for document in reversed(documents) if document.text.strip()}
    kept = [document for document in documents if unique.get(document.text) is document]
    if not kept:
        raise RidgefillError("no-text", ", ".join(map(str, paths)) or "-f", "", "no document", "at least one text")
    return kept


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise RidgefillError("no-file", path, "", "no such file", "a text file or a folder of them")
    found = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not 1 <= len(found) <= MAX_FILES:
        raise RidgefillError("no-text", path, "", f"{len(found)} files", f"1 .. {MAX_FILES} of {', '.join(SUFFIXES)}")
    return found


def _read(path: Path) -> list[Document]:
    data = path.read_bytes().decode("utf-8", "replace")
    if path.suffix.lower() != ".jsonl":
        return [Document(path.name, data)]
    documents = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"]
        except (ValueError, KeyError, TypeError, RecursionError):
            text = None
        if not isinstance(text, str):
            found = clean(line, 60)
            raise RidgefillError("jsonl", path, f"line {number}", found, 'an object with a "text" string')
        documents.append(Document(f"{path.name}:{number}", text))
    return documents


def text_sha256(documents: Sequence[Document]) -> str:
    """sha256 over the texts in order, each in UTF-8 and followed by one zero byte."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(document.text.encode("utf-8", "replace") + b"\0")
    return digest.hexdigest()


def split_held_out(documents: Sequence[Document], fraction: float, seed: int) -> tuple[list[Document], list[Document]]:
    """(train, held out), both in the given order. Documents are ranked by a hash of seed and text, so that the choice
    does not depend on names or order; the first ones that hold `fraction` of the characters are held out, at least one.

    A single document is cut: its last part is held out.
    """
    if len(documents) == 1:
        (only,) = documents
        cut = int(len(only.text) * (1 - fraction))
        cut = only.text.rfind("\n", 0, cut) + 1 or cut
        return [Document(only.name, only.text[:cut])], [Document(only.name + " (end)", only.text[cut:])]
    rank = sorted(documents, key=lambda d: hashlib.sha256(f"{seed}:{d.text}".encode("utf-8", "replace")).digest())
    goal = fraction * sum(len(d.text) for d in documents)
    held: set[int] = set()
    size = 0
    for document in rank[:-1]:
        if held and size >= goal:
            break
        held.add(id(document))
        size += len(document.text)
    return [d for d in documents if id(d) not in held], [d for d in documents if id(d) in held]
