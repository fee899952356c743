"""`ridgefill score`: adds the token score table of row selection to a side file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .base import base_of_gguf
from .errors import UsageError
from .fit.texts import Document, load_documents
from .gguf_reader import read_gguf
from .gguf_types import F32
from .gguf_writer import Tensor, refuse_overwrite
from .layout import SCORE
from .progress import Progress
from .rewrite import write_copy
from .sidefile import open_sidefile
from .tokens import count_tokens, scores, token_texts


def score(
    model: Path, side: Path, documents: list[Document], output: Path, force: bool = False, progress: bool = False
) -> dict[str, int]:
    """Writes a copy of `side` with the table; returns counts: tokens, seen, kept, vocabulary."""
    refuse_overwrite(output, force)
    gguf = read_gguf(model, model=True)
    file = open_sidefile(side, base_of_gguf(gguf))
    texts = token_texts(gguf)
    counts = count_tokens(tokenized(model, documents, progress), len(texts))
    table = scores(texts, counts)
    write_copy(file, output, file.header, [Tensor(SCORE, F32, table.shape, lambda: [table])], force)
    return {
        "tokens": int(counts.sum()),
        "seen": int((counts > 0).sum()),
        "kept": int(np.isfinite(table).sum()),
        "vocabulary": len(table),
    }


def tokenized(model: Path, documents: list[Document], progress: bool) -> Iterator[list[int]]:
    """Token ids of each document, by the model's own tokenizer; its weights are not loaded."""
    from .fit.vocabulary import Vocabulary

    with Vocabulary(model) as vocabulary, Progress("tokenize", len(documents), "documents", progress) as bar:
        for document in documents:
            yield vocabulary.tokenize(document.text)
            bar.add(1)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "score",
        help="add the token scores of row selection",
        description="Counts tokens in texts and adds to a side file how rare each token is that names something: "
        "capitalised words, pieces of words, identifiers. Row selection keeps the rarest rows exact.",
    )
    add = parser.add_argument
    add("-m", "--model", type=Path, required=True, metavar="MODEL", help="the model's GGUF")
    add("-p", "--projector", type=Path, required=True, metavar="FILE", help="the side file to copy")
    add("-f", "--file", type=Path, nargs="+", default=[], metavar="TEXT", help="texts, folders of them, or JSONL")
    add("--stdlib", action="store_true", help="use the text that every Python has: language reference and docstrings")
    add("-o", "--output", type=Path, required=True, metavar="FILE", help="side file to write")
    add("--force", action="store_true", help="replace an existing output")


def run(args: argparse.Namespace) -> int:
    if args.stdlib == bool(args.file):
        found = "both -f and --stdlib" if args.stdlib else "neither -f nor --stdlib"
        raise UsageError(f"text: found {found}, allowed one of them")
    if args.stdlib:
        from .fit.stdlib import stdlib_texts

        train, held = stdlib_texts()
        documents = train + held
    else:
        documents = load_documents(args.file)
    counts = score(args.model, args.projector, documents, args.output, args.force, progress=True)
    print(f"ridgefill: {', '.join(f'{value} {name}' for name, value in counts.items())}", file=sys.stderr)
    print(args.output)
    return 0
