"""The FLOP ideal: what a prompt costs when only what must still run does run, against what it costs in full.

Per row, in multiply-adds, 2 FLOPs each:
    linear(l)   elements of the weight matrices of layer l that a row is multiplied by
    kv(l)       those of the projections that its cache or state is made from: K and V; of a gated delta net the mixed
                projection, its two gates and the convolution
    map         n_in * n_out of one map
    scores(l,c) n_head * (d_k + d_v) * c: scores and weighted values over c rows, c = position + 1, at most the layer's
                window
    scan(l)     3 * heads * d_k * d_v in a gated delta net: read the state by the key, add to it, read it by the query
A row that runs in full costs linear(l) + scores(l, c) + scan(l) in every layer. A bulk row costs that in layers 0..S-1,
kv(S) + scan(S) in layer S (its input is exact, so it needs no map) and map + kv(l) + scan(l) in each layer l > S. The
output matrix counts once, for the last row. Norms, softmax, rotary embedding and the token lookup are left out; they
are small and run on both sides. Every FLOP counts the same; where attention takes longer per FLOP than matrices do, a
measured ratio can pass this one, and where a scan does, as on a GPU, it stays below.

Counted from the GGUF's own tensors. Other recurrent layers and latent attention are not counted yet: ValueError.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from math import prod

from .base import base_of_gguf
from .gguf_reader import GgufFile, read_gguf


@dataclass(frozen=True)
class Layer:
    """Multiply-adds of one layer: per row, per row for K and V alone, per row and row of context."""

    linear: int
    kv: int
    score: int
    window: int | None = None
    scan: int = 0


@dataclass(frozen=True)
class Dims:
    """What the FLOP count needs of a model."""

    layers: tuple[Layer, ...]
    n_embd: int
    output: int  # multiply-adds of the output matrix, per row


def stock_flops(dims: Dims, n_prompt: int) -> int:
    """A prompt of n_prompt rows run in full, to the logits of its last row."""
    total = dims.output
    for layer in dims.layers:
        total += n_prompt * (layer.linear + layer.scan) + layer.score * _contexts(0, n_prompt, layer.window)
    return 2 * total


def fill_flops(
    dims: Dims,
    n_prompt: int,
    tail: int,
    head: int,
    split: int,
    n_in: int | None = None,
    n_out: int | None = None,
    selected: int = 0,
) -> int:
    """The same with rows [head, n_prompt - tail) filled from the split on. n_in, n_out: map widths, default n_embd.

    selected: so many of these rows run the layers from the split on besides, with the mean context of the bulk.
    """
    n_map = (n_in or dims.n_embd) * (n_out or dims.n_embd)
    begin, end = min(head, n_prompt), n_prompt - tail
    if end <= begin:
        return stock_flops(dims, n_prompt)
    bulk = end - begin
    total = dims.output
    for index, layer in enumerate(dims.layers):
        contexts = _contexts(0, n_prompt, layer.window)
        total += n_prompt * layer.scan
        if index < split:
            total += n_prompt * layer.linear + layer.score * contexts
        else:
            exact = contexts - _contexts(begin, end, layer.window)
            total += (n_prompt - bulk) * layer.linear + layer.score * exact
            total += bulk * (layer.kv + (n_map if index > split else 0))
            total += selected * layer.linear + layer.score * (contexts - exact) * selected // bulk
    return 2 * total


def ratio_ideal(dims: Dims, n_prompt: int, *fill: int, **more: int) -> float:
    """stock FLOPs / fill FLOPs; arguments as those of fill_flops."""
    return stock_flops(dims, n_prompt) / fill_flops(dims, n_prompt, *fill, **more)


def _contexts(begin: int, end: int, window: int | None) -> int:
    """Sum over rows begin..end-1 of the rows each one attends to."""
    if window is None:
        return (end * (end + 1) - begin * (begin + 1)) // 2
    ramp = min(end, max(begin, window))  # rows before it see fewer than `window`
    return _contexts(begin, ramp, None) + (end - ramp) * window


def dims_of(path: str | os.PathLike[str]) -> Dims:
    """Counts a model GGUF. ValueError for a file that is no model, or a layer that is not counted yet."""
    model = read_gguf(path, model=True)
    base = base_of_gguf(model)
    arch = base.architecture
    layers = tuple(_layer(model, arch, index) for index in range(base.block_count))
    output = model.tensors.get("output.weight") or model.tensors.get("token_embd.weight")
    if output is None:
        raise ValueError(f"{path}: found neither output.weight nor token_embd.weight, allowed a language model")
    return Dims(layers, base.embedding_length, prod(output.ne))


_WEIGHT = re.compile(r"blk\.(\d+)\.(.+)\.weight")


def _layer(model: GgufFile, arch: str, index: int) -> Layer:
    sizes: dict[str, int] = {}
    for name, info in model.tensors.items():
        found = _WEIGHT.fullmatch(name)
        if found and int(found[1]) == index and len(info.ne) >= 2:
            sizes[found[2]] = prod(info.ne)
    delta_net = {"attn_qkv", "ssm_alpha", "ssm_beta", "ssm_conv1d"}
    recurrent = "ssm_conv1d" in sizes
    if not (delta_net <= set(sizes) if recurrent else {"attn_k", "attn_qkv"} & set(sizes)):
        names = ", ".join(sorted(sizes)) or "nothing"
        raise ValueError(f"{model.path}: layer {index}: found {names}, allowed: attention or a gated delta net")

    def key(name: str, default: int) -> int:
        value = model.keys.get(f"{arch}.{name}")
        if value is None:
            return default
        data = value.data if value.kind == "int" else value.data[index]  # one value, or one per layer
        return int(data)

    n_head = key("attention.head_count", 1)
    n_kv = key("attention.head_count_kv", n_head)
    d_k = key("attention.key_length", key("embedding_length", 0) // n_head)
    d_v = key("attention.value_length", d_k)
    n_expert, n_used = key("expert_count", 0), key("expert_used_count", 0)
    linear = 0
    for name, size in sizes.items():
        linear += size * n_used // n_expert if n_expert and name.endswith("_exps") else size
    if recurrent:
        heads, state = key("ssm.time_step_rank", 0), key("ssm.state_size", 0)
        return Layer(linear, sum(sizes[name] for name in delta_net), 0, scan=3 * heads * state * state)
    n_embd = key("embedding_length", 0)
    kv = n_embd * n_kv * (d_k + d_v) + sizes.get("indexer.k_proj", 0)
    return Layer(linear, kv, n_head * (d_k + d_v), _window(model, arch, index))


def _window(model: GgufFile, arch: str, index: int) -> int | None:
    size = model.keys.get(f"{arch}.attention.sliding_window")
    if size is None or not size.data:
        return None
    pattern = model.keys.get(f"{arch}.attention.sliding_window_pattern")
    if pattern is not None and pattern.kind == "bools":
        return int(size.data) if pattern.data[index] else None
    period = int(pattern.data) if pattern is not None and pattern.kind == "int" else _PERIODS.get(arch)
    if period is None:
        raise ValueError(f"{model.path}: found a sliding window in architecture {arch}, allowed: {', '.join(_PERIODS)}")
    return int(size.data) if (index + 1) % period else None


# every n-th layer sees all rows, the others a window, where the file does not say so
_PERIODS = {"gemma2": 2, "gemma3": 6}
