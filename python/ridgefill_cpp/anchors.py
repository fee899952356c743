"""Finer fingerprints of a model than its dimensions: layer kinds, norms around the split, tensor encodings.

Another kind of layer refuses. Other norms or encodings only warn: a fine-tuned or otherwise quantised model of the same
shape still runs, with maps that fit it less well.
"""

from __future__ import annotations

import hashlib
import re

from .errors import clean
from .gguf_reader import GgufFile
from .gguf_types import F32
from .layout import MAX_LAYERS, Header

WEIGHT = re.compile(r"blk\.(\d{1,3})\.(?!.*_exps\.)[a-z0-9_.]+\.weight")
NORM = re.compile(r"blk\.(\d{1,3})\.[a-z0-9_]*norm\.weight")
MAX_ANCHOR = 1 << 24  # bytes of one norm


def layer_kinds(model: GgufFile, architecture: str, layers: int) -> str | None:
    """One letter per layer, a (attention) or r (recurrent), from the keys; None when they do not tell."""

    def key(name: str, kind: str) -> object:
        value = model.keys.get(f"{architecture}.{name}")
        return value.data if value is not None and value.kind == kind else None

    flags = model.keys.get(f"{architecture}.attention.recurrent_layers")
    if flags is not None and flags.kind in ("bools", "ints") and len(flags.data) >= layers:
        return "".join("r" if flag else "a" for flag in list(flags.data)[:layers])
    every = key("full_attention_interval", "int")
    if isinstance(every, int) and 1 <= every <= MAX_LAYERS:
        return "".join("a" if (i + 1) % every == 0 else "r" for i in range(layers))
    state = tuple(f"{architecture}.{group}." for group in ("ssm", "shortconv", "wkv"))
    recurrent = any(name.startswith(state) for name in model.keys)
    if not recurrent:
        return "a" * layers
    heads = model.keys.get(f"{architecture}.attention.head_count_kv")
    if heads is not None and heads.kind == "ints" and len(heads.data) >= layers:
        return "".join("a" if n else "r" for n in heads.data[:layers].tolist())
    return None


def anchors(model: GgufFile, split: int) -> tuple[str, ...]:
    """ "<tensor> <sha256>" of every float32 norm of the layers on both sides of the split, by name."""
    found = []
    for name, info in sorted(model.tensors.items()):
        match = NORM.fullmatch(name)
        if match and int(match[1]) in (split - 1, split) and info.type == F32 and info.n_bytes <= MAX_ANCHOR:
            found.append(f"{name} {hashlib.sha256(model.read(name).data).hexdigest()}")
    return tuple(found)


def encodings(model: GgufFile, split: int, layers: int) -> tuple[str, ...]:
    """ "<tensor> <type>" of every weight but experts' of layers split - 1 and up, by name."""
    return tuple(
        f"{name} {info.type_name}"
        for name, info in sorted(model.tensors.items())
        if (m := WEIGHT.fullmatch(name)) and split - 1 <= int(m[1]) < layers
    )


def compare(header: Header, model: GgufFile) -> list[str]:
    """Warnings for what differs between a side file's fingerprints and a model or is not there, one per kind."""
    layers = header.base.block_count
    rows = (
        ("base-anchors", "norms", header.anchors, anchors(model, header.split)),
        ("base-encodings", "tensor encodings", header.encodings, encodings(model, header.split, layers)),
    )
    warnings = []
    for code, what, ours, theirs in rows:
        if not ours:
            warnings.append(f"{code.removeprefix('base-')}-unchecked: the file has no fingerprints of {what}")
            continue
        found = dict(entry.rpartition(" ")[::2] for entry in theirs)
        wanted = dict(entry.rpartition(" ")[::2] for entry in ours)
        other = [name for name, value in wanted.items() if found.get(name) != value]
        if other:
            name = other[0]
            pair = f"{clean(wanted[name], 20)} in the file, {clean(found.get(name, 'none'), 20)} in the model"
            warnings.append(f"{code}: {len(other)} of {len(wanted)} {what} differ, first {clean(name)}: {pair}")
    return warnings
