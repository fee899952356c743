"""Small projectors and models made from seeds: a 4-layer hybrid, two streams of 64, split 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from ridgefill_cpp import int8
from ridgefill_cpp.folder import sha256_of
from ridgefill_cpp.gguf_writer import Key, write_gguf
from ridgefill_cpp.safetensors_io import NewTensor, write_safetensors

N, W, SPLIT, LAYERS, VOCAB = 64, 128, 2, 4, 1024
CREDIT = {
    "name": "toy-i8",
    "authors": ["A. Example", "B. Example"],
    "license": "Apache-2.0",
    "doi": "10.0000/example.0001",
}
META = {
    "model_type": "qwen4_exp",
    "n_layers": str(LAYERS),
    "n_embd": str(N),
    "n_vocab": str(VOCAB),
    "n_expert": "8",
    "hc_count": "2",
    "layer_types": "linear_attention linear_attention linear_attention full_attention",
    "full_attention_interval": "4",
    "linear_num_value_heads": "6",
    "linear_value_head_dim": "16",
    "linear_key_head_dim": "16",
}


def bf16(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return int8.f32_to_bf16(rng.normal(size=shape).astype(np.float32) * np.float32(0.02))


def new(name: str, dtype: str, data: np.ndarray) -> NewTensor:
    return NewTensor(name, dtype, data.shape, lambda: [data])


def folder_tensors(form: str = "i8", final: bool = True) -> dict[str, list[NewTensor]]:
    """file name -> its tensors"""
    rng = np.random.default_rng(7)
    files = {}
    for layer in range(SPLIT, LAYERS):
        weight, bias = bf16(rng, N, W), bf16(rng, N)
        if form == "i8":
            codes, scale = int8.quantize(weight)
            maps = [new(f"proj.{layer}.codes", "I8", codes), new(f"proj.{layer}.scale", "BF16", scale)]
        else:
            maps = [new(f"proj.{layer}.weight", "BF16", weight)]
        prefix = "proj8" if form == "i8" else "proj"
        files[f"{prefix}.L{layer}.safetensors"] = [*maps, new(f"proj.{layer}.bias", "BF16", bias)]
    state = rng.normal(size=(6, 16, 16)).astype(np.float32)
    files["correction.safetensors"] = [new("st.2", "F32", state)]
    score = np.where(rng.random(VOCAB) < 0.5, -np.inf, rng.random(VOCAB) * 10).astype(np.float32)
    files["rowsel.safetensors"] = [
        new("score", "F32", score),
        new("score_none", "F32", np.full(VOCAB, -np.inf, np.float32)),
        new("score_all", "F32", np.zeros(VOCAB, np.float32)),
    ]
    if final:
        files["final.safetensors"] = [
            new("final.weight", "BF16", bf16(rng, W, W)),
            new("final.bias", "BF16", bf16(rng, W)),
        ]
    return files


def toy_folder(path: Path, form: str = "i8", final: bool = True, **changes: Any) -> Path:
    """A published folder; `changes` replace members of the manifest."""
    path.mkdir()
    metadata = {"format": "ridgefill-projector-1", **CREDIT, "authors": ", ".join(CREDIT["authors"])}
    files = folder_tensors(form, final)
    for name, tensors in files.items():
        write_safetensors(path / name, metadata, tensors)
    (path / "chat_template.jinja").write_text("{{ messages }}")
    (path / "README.md").write_text("not listed")
    manifest = {
        "format": 1,
        **CREDIT,
        "adapter": "qwen4exp",
        "model": {"arch_id": "qwen4exp", "name": "toy-next", "meta": META, "vocab_sha256": "0" * 64},
        "split": SPLIT,
        "stream": "hc",
        "stream_width": W,
        "block_in_width": N,
        "layers": {"2": "recurrent", "3": "full_attn"},
        "projector": {"dtype": form},
        **({"final": {"file": "final.safetensors", "dtype": "bf16"}} if final else {}),
        **changes,
    }
    write_manifest(path, manifest)
    return path


def write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """The manifest with the hashes of the files that are there; `files` given in it is kept."""
    names = sorted(p.name for p in path.iterdir() if p.suffix in (".safetensors", ".jinja"))
    manifest = {**manifest, "files": manifest.get("files") or {name: sha256_of(path / name) for name in names}}
    (path / "ridgefill.json").write_text(json.dumps(manifest, indent=1) + "\n")


def edit_manifest(path: Path, **changes: Any) -> None:
    manifest = json.loads((path / "ridgefill.json").read_text())
    (path / "ridgefill.json").write_text(json.dumps({**manifest, **changes}, indent=1) + "\n")


def rehash(path: Path) -> None:
    manifest = json.loads((path / "ridgefill.json").read_text())
    del manifest["files"]
    write_manifest(path, manifest)


def toy_model(path: Path, arch: str = "qwen4exp", **changes: Any) -> Path:
    """A model's GGUF without tensors, fitting `toy_folder`; a change of None drops the key."""
    tokens = [f"t{i}" for i in range(VOCAB - 1)] + [""]
    numbers = {
        "block_count": LAYERS,
        "embedding_length": N,
        "expert_count": 8,
        "hyper_connection.count": 2,
        "full_attention_interval": 4,
        "ssm.time_step_rank": 6,
        "ssm.inner_size": 96,
        "ssm.state_size": 16,
    }
    keys = {
        "general.architecture": ("str", arch),
        "general.name": ("str", "toy-next"),
        **{f"{arch}.{name}": ("u32", value) for name, value in numbers.items()},
        "tokenizer.ggml.tokens": ("str[]", tokens),
    }
    keys |= {name.replace("__", "."): value for name, value in changes.items()}
    write_gguf(path, [Key(name, *value) for name, value in keys.items() if value is not None], [], force=True)
    return path


def toy_file(path: Path, n: int = 64, w: int = 576, layers: range = range(2, 4), final: bool = False) -> Path:
    """The fit source form: layer.<L> [n, w + 1], bias last."""
    rng = np.random.default_rng(11)
    tensors = [new(f"layer.{layer}", "BF16", bf16(rng, n, w + 1)) for layer in layers]
    if final:
        tensors.append(new("final", "BF16", bf16(rng, w, w + 1)))
    write_safetensors(path, {"split": str(layers[0])}, tensors)
    return path
