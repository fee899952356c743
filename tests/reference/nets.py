"""The method in NumPy, float64, on weights with Hugging Face names and layouts. Nothing here is this project's code.

Three decoder shapes: llama and qwen3 (attention), qwen35 (Gated DeltaNet with gated attention at every few layers).
Every row is run at once; a filled row differs from an exact one only in what a late layer is given, and in that its
output is never used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

F64 = np.ndarray
Weights = Mapping[str, F64]


@dataclass(frozen=True)
class Shape:
    kind: str  # llama, qwen3, qwen35
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    inter: int
    vocab: int
    theta: float = 10000.0
    eps: float = 1e-6
    rotary: float = 1.0  # share of a head that is rotated
    every: int = 0  # full attention at every n-th layer; 0: at all
    key_heads: int = 0
    value_heads: int = 0
    linear_dim: int = 0  # of keys and values of the linear layers
    kernel: int = 4

    def is_linear(self, layer: int) -> bool:
        return self.every > 0 and (layer + 1) % self.every != 0


@dataclass
class Fill:
    """What is filled and how. maps[L](h_S) is the input of layer L > split, or with target block_input that input after
    the layer's first norm. constants are [value heads, V, K], grouped. exact: rows from begin to end that run in full
    all the same (quality mode)."""

    split: int
    begin: int
    end: int
    maps: Mapping[int, Callable[[F64], F64]]
    constants: Mapping[int, F64] = field(default_factory=dict)
    alpha: float = 1.0
    target: str = "layer_input"
    exact: frozenset[int] = frozenset()
    seen: dict[int, F64] = field(default_factory=dict)  # states behind the filled rows, before the correction

    @property
    def rows(self) -> list[int]:
        return [row for row in range(self.begin, self.end) if row not in self.exact]


def by_class(table: F64, ids: list[int], begin: int, end: int, share: float) -> frozenset[int]:
    """The published choice of exact rows, one window: the rarest kept tokens, ties to the lower row; half to even."""
    kept = [row for row in range(begin, end) if np.isfinite(table[ids[row]])]
    kept.sort(key=lambda row: (-table[ids[row]], row))
    return frozenset(kept[: round(share * len(kept))])


def logits(shape: Shape, w: Weights, ids: list[int], fill: Fill | None = None) -> F64:
    """Logits [rows, vocab]; those of filled rows mean nothing."""
    h = w["model.embed_tokens.weight"][ids]
    source = h
    for layer in range(shape.layers):
        if fill is not None and layer == fill.split:
            source = h.copy()
        given = None
        if fill is not None and layer > fill.split:
            given = fill.maps[layer](source[fill.rows])
        h = block(shape, w, layer, h.copy(), fill, given)
    return norm(shape, w["model.norm.weight"], h) @ w["lm_head.weight"].T


def block(shape: Shape, w: Weights, layer: int, x: F64, fill: Fill | None, given: F64 | None) -> F64:
    at = f"model.layers.{layer}."
    if fill is not None and given is not None and fill.target == "layer_input":
        x[fill.rows] = given
    normed = norm(shape, w[at + "input_layernorm.weight"], x)
    if fill is not None and given is not None and fill.target == "block_input":
        normed[fill.rows] = given
    mixed = delta_net(shape, w, at, layer, normed, fill) if shape.is_linear(layer) else attention(shape, w, at, normed)
    x = x + mixed
    normed = norm(shape, w[at + "post_attention_layernorm.weight"], x)
    gate, up = (normed @ w[at + f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    return x + (silu(gate) * up) @ w[at + "mlp.down_proj.weight"].T


def norm(shape: Shape, weight: F64, x: F64) -> F64:
    scale = 1 + weight if shape.kind == "qwen35" else weight
    return x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + shape.eps) * scale


def attention(shape: Shape, w: Weights, at: str, x: F64) -> F64:
    rows, dim = len(x), shape.head_dim
    q = (x @ w[at + "self_attn.q_proj.weight"].T).reshape(rows, shape.heads, -1)
    k, v = ((x @ w[at + f"self_attn.{n}_proj.weight"].T).reshape(rows, shape.kv_heads, dim) for n in "kv")
    q, gate = q[..., :dim], q[..., dim:]  # qwen35: each head's query is followed by its gate
    if shape.kind != "llama":
        q = norm(shape, w[at + "self_attn.q_norm.weight"], q)
        k = norm(shape, w[at + "self_attn.k_norm.weight"], k)
    q, k = rotate(shape, q), rotate(shape, k)
    k, v = (np.repeat(t, shape.heads // shape.kv_heads, axis=1) for t in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(dim)
    scores[:, np.triu(np.ones((rows, rows), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out = np.einsum("hij,jhd->ihd", weights, v)
    if gate.size:
        out = out * sigmoid(gate)
    return out.reshape(rows, -1) @ w[at + "self_attn.o_proj.weight"].T


def rotate(shape: Shape, x: F64) -> F64:
    """The first dimensions of each head are rotated, halves against halves."""
    n = int(shape.head_dim * shape.rotary)
    angle = np.arange(len(x))[:, None] * shape.theta ** (-np.arange(0, n, 2) / n)
    angle = np.concatenate([angle, angle], axis=-1)[:, None]
    a, b = x[..., : n // 2], x[..., n // 2 : n]
    turned = x[..., :n] * np.cos(angle) + np.concatenate([-b, a], axis=-1) * np.sin(angle)
    return np.concatenate([turned, x[..., n:]], axis=-1)


def delta_net(shape: Shape, w: Weights, at: str, layer: int, x: F64, fill: Fill | None) -> F64:
    """Gated DeltaNet, row by row. Value head h reads key head h // (value heads / key heads)."""
    rows, dim, per_key = len(x), shape.linear_dim, shape.value_heads // shape.key_heads
    p = at + "linear_attn."
    mixed = conv(x @ w[p + "in_proj_qkv.weight"].T, w[p + "conv1d.weight"][:, 0])
    key_dim = shape.key_heads * dim
    q, k = (unit(mixed[:, i * key_dim :][:, :key_dim].reshape(rows, -1, dim)) for i in (0, 1))
    v = mixed[:, 2 * key_dim :].reshape(rows, shape.value_heads, dim)
    q, k = (np.repeat(t, per_key, axis=1) for t in (q / np.sqrt(dim), k))
    z = (x @ w[p + "in_proj_z.weight"].T).reshape(rows, shape.value_heads, dim)
    beta = sigmoid(x @ w[p + "in_proj_b.weight"].T)
    decay = np.exp(-np.exp(w[p + "A_log"]) * softplus(x @ w[p + "in_proj_a.weight"].T + w[p + "dt_bias"]))

    state = np.zeros((shape.value_heads, dim, dim))  # [head, V, K]
    out = np.empty_like(v)
    memory, filled = np.zeros(shape.value_heads), np.zeros(shape.value_heads)  # weight of the bulk, of its filled rows
    for row in range(rows):
        if fill is not None and row == fill.end and layer > fill.split:
            fill.seen[layer] = state
            share = (filled / memory)[:, None, None]
            state = state + fill.alpha * share * fill.constants.get(layer, 0.0)
        if fill is not None and fill.begin <= row < fill.end:
            memory = decay[row] * memory + 1
            filled = decay[row] * filled + (row not in fill.exact)
        state = state * decay[row][:, None, None]
        delta = (v[row] - np.einsum("hvk,hk->hv", state, k[row])) * beta[row][:, None]
        state = state + np.einsum("hv,hk->hvk", delta, k[row])
        out[row] = np.einsum("hvk,hk->hv", state, q[row])
    out = out / np.sqrt(np.square(out).mean(axis=-1, keepdims=True) + shape.eps) * w[p + "norm.weight"]
    return (out * silu(z)).reshape(rows, -1) @ w[p + "out_proj.weight"].T


def conv(x: F64, kernel: F64) -> F64:
    """Causal, one kernel per channel [channels, taps], then SiLU."""
    taps = kernel.shape[1]
    padded = np.concatenate([np.zeros((taps - 1, x.shape[1])), x])
    return silu(sum(padded[i : i + len(x)] * kernel[:, i] for i in range(taps)))


def unit(x: F64) -> F64:
    return x / np.sqrt(np.square(x).sum(axis=-1, keepdims=True) + 1e-6)


def silu(x: F64) -> F64:
    return x * sigmoid(x)


def sigmoid(x: F64) -> F64:
    return 1 / (1 + np.exp(-x))


def softplus(x: F64) -> F64:
    return np.logaddexp(0, x)


def random_weights(shape: Shape, seed: int) -> dict[str, F64]:
    """A model's weights, float32 values in float64."""
    rng = np.random.default_rng(seed)
    w: dict[str, F64] = {}

    def matrix(name: str, rows: int, columns: int) -> None:
        w[name] = rng.normal(size=(rows, columns)) / np.sqrt(columns)

    def gain(name: str, size: int) -> None:
        w[name] = 0.1 * rng.normal(size=size) + (0 if shape.kind == "qwen35" and "linear" not in name else 1)

    matrix("model.embed_tokens.weight", shape.vocab, shape.width)
    w["model.embed_tokens.weight"] *= np.sqrt(shape.width)
    for layer in range(shape.layers):
        at = f"model.layers.{layer}."
        gain(at + "input_layernorm.weight", shape.width)
        gain(at + "post_attention_layernorm.weight", shape.width)
        if shape.is_linear(layer):
            dim, heads = shape.linear_dim, shape.value_heads
            channels = (2 * shape.key_heads + heads) * dim
            p = at + "linear_attn."
            matrix(p + "in_proj_qkv.weight", channels, shape.width)
            matrix(p + "in_proj_z.weight", heads * dim, shape.width)
            matrix(p + "in_proj_a.weight", heads, shape.width)
            matrix(p + "in_proj_b.weight", heads, shape.width)
            matrix(p + "out_proj.weight", shape.width, heads * dim)
            w[p + "conv1d.weight"] = rng.normal(size=(channels, 1, shape.kernel)) / np.sqrt(shape.kernel)
            w[p + "A_log"] = rng.uniform(-4, -1, heads)  # decays of 0.5 to 0.99 per row
            w[p + "dt_bias"] = rng.normal(size=heads)
            gain(p + "norm.weight", dim)
        else:
            p = at + "self_attn."
            queries = shape.heads * shape.head_dim * (2 if shape.kind == "qwen35" else 1)
            matrix(p + "q_proj.weight", queries, shape.width)
            matrix(p + "k_proj.weight", shape.kv_heads * shape.head_dim, shape.width)
            matrix(p + "v_proj.weight", shape.kv_heads * shape.head_dim, shape.width)
            matrix(p + "o_proj.weight", shape.width, shape.heads * shape.head_dim)
            if shape.kind != "llama":
                gain(p + "q_norm.weight", shape.head_dim)
                gain(p + "k_norm.weight", shape.head_dim)
        matrix(at + "mlp.gate_proj.weight", shape.inter, shape.width)
        matrix(at + "mlp.up_proj.weight", shape.inter, shape.width)
        matrix(at + "mlp.down_proj.weight", shape.width, shape.inter)
    gain("model.norm.weight", shape.width)
    matrix("lm_head.weight", shape.vocab, shape.width)
    return {name: value.astype(np.float32).astype(np.float64) for name, value in w.items()}
