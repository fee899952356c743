"""Token classes and rarity scores for row selection, from a model's own vocabulary.

A token's text is its bytes decoded as UTF-8 with replacement. With t = the text without white space at its ends:
empty: "space"; digits and ASCII punctuation with at least one digit: "number"; ASCII punctuation only: "punctuation";
letters only: "cap" when the first letter is upper case, else "word" when the raw text begins with white space, else
"piece"; everything else: "mixed". Kept are cap, piece and mixed: names, rare words in pieces, identifiers.
score = -ln((count + 1) / (tokens + vocabulary)) for a kept token, -inf for the others and for special tokens.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from .errors import RidgefillError
from .gguf_reader import GgufFile

KEPT = ("cap", "piece", "mixed")
NORMAL, BYTE = 1, 6  # GGUF token types; the others are special, added by the user, unknown or unused
PUNCTUATION = frozenset(string.punctuation)
NUMBER = PUNCTUATION | frozenset(string.digits)


def token_class(text: str) -> str:
    """The class of a token's text."""
    bare = text.strip()
    if not bare:
        return "space"
    letters = set(bare)
    if letters <= PUNCTUATION:
        return "punctuation"
    if letters <= NUMBER:
        return "number"
    if not bare.isalpha():
        return "mixed"
    if bare[0].isupper():
        return "cap"
    return "word" if text[0] in " \t\n" else "piece"


def byte_map() -> dict[str, int]:
    """The printable characters of byte-level BPE and the bytes they stand for."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def token_texts(model: GgufFile) -> list[str | None]:
    """The text of every token of a model's GGUF, None for special ones. Raises RidgefillError for other tokenizers."""
    kind, tokens = model.keys.get("tokenizer.ggml.model"), model.keys.get("tokenizer.ggml.tokens")
    types = model.keys.get("tokenizer.ggml.token_type")
    if tokens is None or tokens.kind != "strings":
        raise RidgefillError("model-key", model.path, "tokenizer.ggml.tokens", "no such key", "a list of tokens")
    raw: list[bytes] = tokens.data
    codes = [NORMAL] * len(raw) if types is None or types.kind != "ints" else types.data.tolist()
    if len(codes) != len(raw):
        wanted = f"{len(raw)} types, one per token"
        raise RidgefillError("model-key", model.path, "tokenizer.ggml.token_type", f"{len(codes)} types", wanted)
    name = "" if kind is None else kind.data
    if name == "gpt2":
        table = byte_map()
        return [_bpe(text, table) if code == NORMAL else None for text, code in zip(raw, codes, strict=True)]
    if name == "llama":
        return [_spm(text, code) for text, code in zip(raw, codes, strict=True)]
    found = name or "no such key"
    raise RidgefillError("tokenizer-kind", model.path, "tokenizer.ggml.model", found, "gpt2 or llama")


def _bpe(text: bytes, table: dict[str, int]) -> str:
    characters = text.decode("utf-8", "replace")
    if all(c in table for c in characters):
        return bytes(table[c] for c in characters).decode("utf-8", "replace")
    return characters


def _spm(text: bytes, code: int) -> str | None:
    if code == BYTE:
        return bytes([int(text[3:5], 16)]).decode("utf-8", "replace") if len(text) == 6 else None
    return text.decode("utf-8", "replace").replace("\u2581", " ") if code == NORMAL else None


def count_tokens(streams: Iterable[Sequence[int]], vocabulary: int) -> npt.NDArray[np.int64]:
    """How often each id occurs."""
    counts = np.zeros(vocabulary, np.int64)
    for ids in streams:
        counts += np.bincount(np.asarray(ids, np.int64), minlength=vocabulary)
    return counts


def scores(texts: Sequence[str | None], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """One score per token id; see the head of this file."""
    total = int(counts.sum()) + len(texts)
    rarity = -np.log((counts + 1) / total)
    kept = np.array([text is not None and token_class(text) in KEPT for text in texts])
    return np.where(kept, rarity, -np.inf).astype(np.float32)


def select(ids: Sequence[int], table: npt.NDArray[np.float32], share: float) -> list[int]:
    """Rows of one window to keep exact: of the rows whose token has a finite score, the share with the highest,
    ties to the lower row; half a row rounds to even."""
    matches = [row for row, token in enumerate(ids) if 0 <= token < len(table) and np.isfinite(table[token])]
    ranked = sorted(matches, key=lambda row: (-table[ids[row]], row))
    return sorted(ranked[: round(share * len(matches))])
