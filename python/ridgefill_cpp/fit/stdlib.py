"""Calibration text that every Python has: the language reference of pydoc_data and the standard library's docstrings.

Sources are parsed, never imported. A paragraph that occurs twice is kept once, so that no paragraph is shared between
documents, and so none between train and held out. The same Python gives the same documents.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from .texts import Document

SKIPPED = {
    "test",
    "tests",
    "site-packages",
    "dist-packages",
    "idlelib",
    "lib2to3",
    "encodings",
    "pydoc_data",
    "turtledemo",
}
DOCUMENT = 16_000  # characters: about 4,000 tokens, more than 2,700 with any common tokenizer
HELD_EVERY = 6
MIN_HELD = 12  # documents


def stdlib_texts() -> tuple[list[Document], list[Document]]:
    """(train, held out): documents of at least 16,000 characters, about 2 MB in all; every sixth is held out."""
    seen: set[str] = set()
    documents = [*_joined("topic", _topics(), seen), *_joined("module", _modules(), seen)]
    held = documents[HELD_EVERY // 2 :: HELD_EVERY]
    if len(held) < MIN_HELD:
        held = documents[1::2][:MIN_HELD]
    chosen = {id(document) for document in held}
    return [document for document in documents if id(document) not in chosen], held


def _topics() -> Iterator[tuple[str, str]]:
    """Largest first: the large topics contain small ones, which the removal of repeats then leaves out."""
    from pydoc_data.topics import topics

    for name in sorted(topics, key=lambda n: (-len(topics[n]), n)):
        yield name, re.sub(r"(?m)^[*=~^\-]{3,}$\n?", "", topics[name])


def _modules() -> Iterator[tuple[str, str]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if not SKIPPED.isdisjoint(relative.parts) or path.stat().st_size > 1 << 20:
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        yield ".".join(relative.with_suffix("").parts), _docs(tree)


def _docs(tree: ast.Module) -> str:
    parts = [ast.get_docstring(tree) or ""]
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text and len(text) > 40:
                parts.append(f"{_head(node)}\n\n{text}")
    return "\n\n".join(parts)


def _head(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}"
    args = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    return f"def {node.name}({', '.join(arg.arg for arg in args)})"


def _joined(kind: str, texts: Iterator[tuple[str, str]], seen: set[str]) -> Iterator[Document]:
    """Neighbours joined until a document is long enough; what is left at the end is dropped."""
    first, parts, size = "", [], 0
    for name, text in texts:
        fresh = _without_repeats(text, seen)
        if len(fresh) < 200:
            continue
        first = first or name
        parts.append(f"{kind} {name}\n\n{fresh}")
        size += len(parts[-1])
        if size >= DOCUMENT:
            yield Document(f"{kind} {first}", "\n\n\n".join(parts) + "\n")
            first, parts, size = "", [], 0


def _without_repeats(text: str, seen: set[str]) -> str:
    kept = []
    for paragraph in re.split(r"\n\s*\n", text):
        key = " ".join(paragraph.split())
        if len(key) > 60 and key in seen:
            continue
        seen.add(key)
        kept.append(paragraph.rstrip())
    return "\n\n".join(kept).strip("\n")
