"""Compares a published manifest's `model` block with the keys of a model GGUF.

What both state is compared; what only the manifest states (its container's tensor hashes) is reported as unchecked.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .base import base_of_gguf, int_key, published_vocab_of, text_key
from .errors import RidgefillError, clean
from .gguf_reader import GgufFile

HINT = "the projector was made for another model"


def _number(key: str) -> Callable[[GgufFile, str], str]:
    return lambda model, arch: str(int_key(model, f"{arch}.{key}", 0, 1 << 31))


def _value_head_width(model: GgufFile, arch: str) -> str:
    inner = int_key(model, f"{arch}.ssm.inner_size", 0, 1 << 31)
    return str(inner // int_key(model, f"{arch}.ssm.time_step_rank", 1, 1 << 31))


def _layer_types(model: GgufFile, arch: str) -> str:
    every = int_key(model, f"{arch}.full_attention_interval", 1, 512)
    layers = base_of_gguf(model).block_count
    return " ".join("full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(layers))


# manifest `meta` key -> the same fact in the form of the manifest, from GGUF keys
META: dict[str, Callable[[GgufFile, str], str]] = {
    "model_type": lambda model, arch: arch,
    "n_layers": lambda model, arch: str(base_of_gguf(model).block_count),
    "n_embd": _number("embedding_length"),
    "n_vocab": lambda model, arch: str(base_of_gguf(model).vocab_size),
    "n_expert": _number("expert_count"),
    "hc_count": _number("hyper_connection.count"),
    "layer_types": _layer_types,
    "full_attention_interval": _number("full_attention_interval"),
    "linear_num_value_heads": _number("ssm.time_step_rank"),
    "linear_value_head_dim": _value_head_width,
    "linear_key_head_dim": _number("ssm.state_size"),
}


KINDS = {"a": "full_attn", "r": "recurrent"}  # letter of layer_kinds -> word of a manifest's `layers`


def compare(manifest: dict[str, Any], manifest_path: Path, model: GgufFile) -> list[str]:
    """Refuses what differs with RidgefillError; returns a warning per fact that differs mildly or is not comparable."""
    block = manifest.get("model")
    if not isinstance(block, dict):
        return ["fingerprint-unchecked: the manifest has no model block"]
    arch = text_key(model, "general.architecture")
    meta = block.get("meta", {})
    if not isinstance(meta, dict):
        raise RidgefillError("manifest", manifest_path, "model.meta", clean(meta), "an object of strings")
    warnings = []
    for item, wanted in (("model.arch_id", block.get("arch_id", arch)), ("adapter", manifest.get("adapter", arch))):
        _same(manifest_path, "base-architecture", item, wanted, arch)
    for key, wanted in meta.items():
        if key not in META:
            warnings.append(f"meta-unchecked: {clean(key)} has no counterpart in GGUF")
            continue
        found = META[key](model, arch)
        if key == "model_type":
            wanted = str(wanted).replace("_", "")
        _same(manifest_path, "base-meta", f"model.meta.{key}", wanted, found)
    warnings += _compare_kinds(manifest, manifest_path, base_of_gguf(model).layer_kinds)
    vocabulary = block.get("vocab_sha256")
    if vocabulary and vocabulary != published_vocab_of(model):
        warnings.append("vocab-unchecked: the manifest's vocabulary hash covers another container's form of the texts")
    for key in ("encodings", "anchors"):
        entries = block.get(key)
        if isinstance(entries, dict) and entries:
            warnings.append(f"{key}-unchecked: {len(entries)} entries name tensors of another container")
    name, own = block.get("name"), text_key(model, "general.name")
    if isinstance(name, str) and own and name != own:
        warnings.append(f"base-name: made for {clean(name)!r}, the model is {clean(own)!r}")
    return warnings


def _compare_kinds(manifest: dict[str, Any], path: Path, kinds: str | None) -> list[str]:
    """The kinds of the late layers, which the manifest lists, against the model's."""
    listed = manifest.get("layers")
    if not isinstance(listed, dict) or not any(kind in KINDS.values() for kind in listed.values()):
        return ["kinds-unchecked: the manifest does not say which layers are recurrent"]
    if kinds is None:
        return ["kinds-unchecked: the model's keys do not say which layers are recurrent"]
    for layer, kind in listed.items():
        if layer.isdecimal() and int(layer) < len(kinds):
            _same(path, "layer-kinds", f"layers.{layer}", kind, KINDS[kinds[int(layer)]])
    return []


def _same(path: Path, code: str, item: str, wanted: object, found: object) -> None:
    if wanted != found:
        raise RidgefillError(code, path, item, clean(wanted), f"{found} (the model's)", HINT)
