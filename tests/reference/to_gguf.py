"""Hugging Face weights -> GGUF: names from upstream's gguf-py, changes of layout as upstream's converter makes them.

test_converter.py holds it against that converter.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from nets import Shape, Weights


def write(path: Path, shape: Shape, weights: Weights, gguf_py: Path) -> Path:
    if str(gguf_py) not in sys.path:
        sys.path.insert(0, str(gguf_py))
    import gguf

    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, shape.kind.upper()), shape.layers)
    writer = gguf.GGUFWriter(str(path), shape.kind)
    for name, value in keys(shape).items():
        writer.add_key_value(f"{shape.kind}.{name}", *typed(gguf, value))
    writer.add_tokenizer_model("no_vocab")
    for name, value in weights.items():
        data, source = changed(shape, name, value)
        target = names.get_name(source, try_suffixes=(".weight", ".bias"))
        assert target, source
        writer.add_tensor(target, np.ascontiguousarray(data, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def typed(gguf: object, value: object) -> tuple[object, ...]:
    kinds = gguf.GGUFValueType  # type: ignore[attr-defined]
    if isinstance(value, list):
        return value, kinds.ARRAY, kinds.INT32
    return value, kinds.FLOAT32 if isinstance(value, float) else kinds.UINT32


def keys(shape: Shape) -> dict[str, object]:
    common: dict[str, object] = {
        "vocab_size": shape.vocab,
        "context_length": 1024,
        "embedding_length": shape.width,
        "block_count": shape.layers,
        "feed_forward_length": shape.inter,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": shape.eps,
        "rope.freq_base": shape.theta,
        "rope.dimension_count": int(shape.head_dim * shape.rotary),
    }
    if shape.kind == "qwen35":
        common |= {
            "rope.dimension_sections": [2, 1, 1, 0],
            "full_attention_interval": shape.every,
            "ssm.conv_kernel": shape.kernel,
            "ssm.state_size": shape.linear_dim,
            "ssm.group_count": shape.key_heads,
            "ssm.time_step_rank": shape.value_heads,
            "ssm.inner_size": shape.linear_dim * shape.value_heads,
        }
    return common


def changed(shape: Shape, name: str, value: np.ndarray) -> tuple[np.ndarray, str]:
    """A tensor as the converter stores it, and the name by which it looks up the stored name."""
    if shape.kind == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        # the rotation pairs neighbours there, halves here
        heads = shape.heads if "q_proj" in name else shape.kv_heads
        return value.reshape(heads, 2, -1, value.shape[1]).swapaxes(1, 2).reshape(value.shape), name
    if shape.kind != "qwen35":
        return value, name
    if "linear_attn." in name:
        value = tiled(shape, name, value)
    if name.endswith(".A_log"):
        return -np.exp(value), name
    if name.endswith(".dt_bias"):
        return value, name.replace(".dt_bias", ".dt_proj.bias")
    if "conv1d" in name:
        return value.squeeze(), name
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        return value + 1, name
    return value, name


def tiled(shape: Shape, name: str, value: np.ndarray) -> np.ndarray:
    """Value heads grouped by key head -> the first of each key head, then the second of each, and so on."""
    dim, keys = shape.linear_dim, 2 * shape.key_heads * shape.linear_dim

    def order(rows: np.ndarray, size: int) -> np.ndarray:
        per_head = rows.reshape(shape.key_heads, -1, size, *rows.shape[1:])
        return per_head.swapaxes(0, 1).reshape(rows.shape)

    if "in_proj_qkv" in name or "conv1d" in name:
        return np.concatenate([value[:keys], order(value[keys:], dim)])
    if "in_proj_z" in name:
        return order(value, dim)
    if "out_proj" in name:
        return order(value.T, dim).T
    if "norm.weight" in name:
        return value
    return order(value, 1)
