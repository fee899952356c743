"""What a side file has to know of the model it belongs to, read from the model's own GGUF keys."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Sequence

from .anchors import layer_kinds
from .errors import RidgefillError
from .gguf_reader import GgufFile, read_gguf
from .layout import ARCHITECTURE, MAX_LAYERS, MAX_WIDTH, Base


def base_of(path: str | os.PathLike[str]) -> Base:
    """The base keys of a model GGUF. Raises RidgefillError when the file is no language model."""
    return base_of_gguf(read_gguf(path, model=True))


def base_of_gguf(model: GgufFile) -> Base:
    architecture = text_key(model, "general.architecture")
    if not architecture or architecture == ARCHITECTURE or f"{architecture}.block_count" not in model.keys:
        found = architecture or "no such key"
        hint = "give the model's GGUF; with several parts, the first"
        raise RidgefillError("not-a-model", model.path, "general.architecture", found, "a language model", hint)
    tokens = model.keys.get("tokenizer.ggml.tokens")
    texts = tokens.data if tokens is not None and tokens.kind == "strings" else None
    n_next = int_key(model, f"{architecture}.nextn_predict_layers", 0, MAX_LAYERS, 0)
    layers = int_key(model, f"{architecture}.block_count", 1, MAX_LAYERS + n_next) - n_next
    return Base(
        architecture=architecture,
        block_count=layers,
        embedding_length=int_key(model, f"{architecture}.embedding_length", 1, MAX_WIDTH),
        vocab_size=len(texts) if texts else int_key(model, f"{architecture}.vocab_size", 0, 1 << 31, 0) or None,
        name=text_key(model, "general.name") or None,
        tokenizer_sha256=tokenizer_sha256(texts) if texts else None,
        layer_kinds=layer_kinds(model, architecture, layers),
        min_split=1 + max(ngram_layers(model, architecture), default=0),
    )


def ngram_layers(model: GgufFile, architecture: str) -> list[int]:
    """Layers that add n-gram embeddings to the stream: a map below them would predict without these."""
    value = model.keys.get(f"{architecture}.ple.layers")
    return [int(layer) for layer in value.data] if value is not None and value.kind == "ints" else []


def text_key(model: GgufFile, name: str) -> str:
    value = model.keys.get(name)
    return value.data if value is not None and value.kind == "string" else ""


def int_key(model: GgufFile, name: str, low: int, high: int, default: int | None = None) -> int:
    value = model.keys.get(name)
    if value is None and default is not None:
        return default
    found = "no such key" if value is None else value.data
    if value is None or value.kind != "int" or not low <= value.data <= high:
        raise RidgefillError("model-key", model.path, name, found, f"{low} .. {high}")
    return int(value.data)


def tokenizer_sha256(texts: Iterable[bytes]) -> str:
    """sha256 over the token texts, ids ascending, one zero byte after each; an empty text counts as [EMPTY_<id>]."""
    digest = hashlib.sha256()
    for token, text in enumerate(texts):
        digest.update((text or b"[EMPTY_%d]" % token) + b"\0")
    return digest.hexdigest()


def published_vocab_sha256(texts: Sequence[bytes], types: Sequence[int], merges: Iterable[tuple[int, int]]) -> str:
    """The `vocab_sha256` of a published manifest: per token its text, a zero byte and its type byte; then the merges,
    each as two little-endian u32 token ids."""
    digest = hashlib.sha256()
    for text, kind in zip(texts, types, strict=True):
        digest.update(text + bytes((0, kind)))
    for left, right in merges:
        digest.update(struct.pack("<II", left, right))
    return digest.hexdigest()


def published_vocab_of(model: GgufFile) -> str | None:
    """`published_vocab_sha256` over the model's GGUF tokenizer, or None when it lacks a part of it.

    A published hash was taken over another container's texts and type codes, so only equality says anything.
    """
    keys = model.keys
    tokens, types = keys.get("tokenizer.ggml.tokens"), keys.get("tokenizer.ggml.token_type")
    merges = keys.get("tokenizer.ggml.merges")
    if tokens is None or types is None or merges is None:
        return None
    ids = {text: token for token, text in enumerate(tokens.data)}
    pairs = [tuple(ids.get(part, -1) for part in merge.split(b" ", 1)) for merge in merges.data]
    if any(len(pair) != 2 or min(pair) < 0 for pair in pairs) or len(types.data) != len(tokens.data):
        return None
    return published_vocab_sha256(tokens.data, [int(kind) & 0xFF for kind in types.data], pairs)  # type: ignore[arg-type]
