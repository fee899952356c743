"""Models of published shape: their keys and tensors, without any weights.

A tensor is (name, ne, kind): "matrix" takes the type under test, "norm" is F32 around 1, "small" is F32 around 0 and
"decay" F32 below 0. A new model: add a function and a line to SHAPES.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

TensorSpec = tuple[str, tuple[int, ...], str]


@dataclass
class Shape:
    arch: str
    split: int
    keys: dict[str, tuple[str, object]]  # without the architecture's prefix -> (form, value)
    tensors: list[TensorSpec] = field(default_factory=list)
    target: str = "layer_input"

    def number(self, key: str) -> int:
        value = self.keys[key][1]
        assert isinstance(value, int)
        return value

    @property
    def width(self) -> int:
        return self.number("embedding_length")

    @property
    def n_layer(self) -> int:
        return self.number("block_count")

    @property
    def source_width(self) -> int:
        streams = self.keys.get("hyper_connection.count", ("u32", 1))[1]
        assert isinstance(streams, int)
        return streams * self.width

    def matrix(self, name: str, n_in: int, *n_out: int) -> None:
        self.tensors.append((f"{name}.weight", (n_in, *n_out), "matrix"))

    def vector(self, name: str, n: int, kind: str = "norm") -> None:
        self.tensors.append((name if kind == "decay" else f"{name}.weight", (n,), kind))


def _shape(arch: str, split: int, width: int, layers: int, vocab: int, **more: int) -> Shape:
    keys: dict[str, tuple[str, object]] = {
        "vocab_size": ("u32", vocab),
        "context_length": ("u32", 131072),
        "embedding_length": ("u32", width),
        "block_count": ("u32", layers),
        "attention.layer_norm_rms_epsilon": ("f32", 1e-6),
    }
    keys |= {name.replace("__", "."): ("u32", value) for name, value in more.items()}
    shape = Shape(arch, split, keys)
    shape.matrix("token_embd", width, vocab)
    shape.matrix("output", width, vocab)
    return shape


def _attention(shape: Shape, blk: str, head: int, norms: bool, gate: int = 1) -> None:
    heads, kv = shape.number("attention.head_count"), shape.number("attention.head_count_kv")
    shape.matrix(f"{blk}.attn_q", shape.width, gate * heads * head)
    shape.matrix(f"{blk}.attn_k", shape.width, kv * head)
    shape.matrix(f"{blk}.attn_v", shape.width, kv * head)
    shape.matrix(f"{blk}.attn_output", heads * head, shape.width)
    if norms:
        shape.vector(f"{blk}.attn_q_norm", head)
        shape.vector(f"{blk}.attn_k_norm", head)


def _ffn(shape: Shape, blk: str, n_ff: int, suffix: str = "", experts: tuple[int, ...] = ()) -> None:
    shape.matrix(f"{blk}.ffn_gate{suffix}", shape.width, n_ff, *experts)
    shape.matrix(f"{blk}.ffn_up{suffix}", shape.width, n_ff, *experts)
    shape.matrix(f"{blk}.ffn_down{suffix}", n_ff, shape.width, *experts)


def _delta_net(shape: Shape, blk: str) -> None:
    state, heads = shape.number("ssm.state_size"), shape.number("ssm.time_step_rank")
    values, mixed = heads * state, heads * state + 2 * shape.number("ssm.group_count") * state
    shape.matrix(f"{blk}.attn_qkv", shape.width, mixed)
    shape.matrix(f"{blk}.attn_gate", shape.width, values)
    shape.matrix(f"{blk}.ssm_alpha", shape.width, heads)
    shape.matrix(f"{blk}.ssm_beta", shape.width, heads)
    shape.matrix(f"{blk}.ssm_out", values, shape.width)
    shape.tensors.append((f"{blk}.ssm_conv1d.weight", (shape.number("ssm.conv_kernel"), mixed), "small"))
    shape.tensors.append((f"{blk}.ssm_dt.bias", (heads,), "small"))
    shape.vector(f"{blk}.ssm_a", heads, "decay")
    shape.vector(f"{blk}.ssm_norm", state)


def _dense(shape: Shape, head: int, norms: bool) -> Shape:
    shape.vector("output_norm", shape.width)
    for layer in range(shape.n_layer):
        blk = f"blk.{layer}"
        shape.vector(f"{blk}.attn_norm", shape.width)
        shape.vector(f"{blk}.ffn_norm", shape.width)
        _attention(shape, blk, head, norms)
        _ffn(shape, blk, shape.number("feed_forward_length"))
    return shape


def llama_8b() -> Shape:
    """Llama 3.1 8B."""
    heads = {"attention__head_count": 32, "attention__head_count_kv": 8, "rope__dimension_count": 128}
    shape = _shape("llama", 12, 4096, 32, 128256, feed_forward_length=14336, **heads)
    shape.keys["rope.freq_base"] = ("f32", 500000.0)
    return _dense(shape, 128, norms=False)


def qwen3_8b() -> Shape:
    """Qwen3 8B."""
    heads = {"attention__head_count": 32, "attention__head_count_kv": 8}
    heads |= {"attention__key_length": 128, "attention__value_length": 128}
    shape = _shape("qwen3", 13, 4096, 36, 151936, feed_forward_length=12288, **heads)
    shape.keys["rope.freq_base"] = ("f32", 1e6)
    return _dense(shape, 128, norms=True)


_HYBRID = {
    "attention__key_length": 256,
    "attention__value_length": 256,
    "rope__dimension_count": 64,
    "full_attention_interval": 4,
    "ssm__conv_kernel": 4,
    "ssm__state_size": 128,
    "ssm__time_step_rank": 48,
    "ssm__group_count": 16,
    "ssm__inner_size": 6144,
}


def qwen35_27b() -> Shape:
    """A hybrid of 64 layers, three of four with a gated delta net, as Qwen3.5 27B has them."""
    heads = {"attention__head_count": 24, "attention__head_count_kv": 4}
    shape = _shape("qwen35", 16, 5120, 64, 248320, feed_forward_length=17408, **heads, **_HYBRID)
    shape.keys["rope.freq_base"] = ("f32", 1e7)
    shape.keys["rope.dimension_sections"] = ("u32[]", [11, 11, 10, 0])
    shape.vector("output_norm", shape.width)
    for layer in range(shape.n_layer):
        blk = f"blk.{layer}"
        shape.vector(f"{blk}.attn_norm", shape.width)
        shape.vector(f"{blk}.post_attention_norm", shape.width)
        if (layer + 1) % 4:
            _delta_net(shape, blk)
        else:
            _attention(shape, blk, 256, norms=True, gate=2)
        _ffn(shape, blk, shape.number("feed_forward_length"))
    return shape


def next_like() -> Shape:
    """qwen4exp with the widths of Flash-Next, 128 experts instead of 512, dense attention, no n-gram embeddings."""
    low, experts, n_ff = 320, 128, 512
    more = {"attention__head_count": 16, "attention__head_count_kv": 2, "feed_forward_length": n_ff}
    more |= {"expert_count": experts, "expert_used_count": 10, "expert_feed_forward_length": n_ff}
    more |= {"expert_shared_feed_forward_length": n_ff, "hyper_connection__count": 4}
    more |= {"hyper_connection__low_rank": low, "attention__indexer__head_count": 4}
    more |= {"attention__indexer__key_length": 128, "attention__indexer__top_k": 2048}
    shape = _shape("qwen4exp", 24, 2560, 48, 151936, **more, **_HYBRID)
    shape.target = "block_input"
    shape.keys["rope.freq_base"] = ("f32", 1e7)
    shape.keys["rope.dimension_sections"] = ("u32[]", [11, 11, 10, 0])
    wide = shape.source_width
    shape.vector("output_hc_norm", wide)
    shape.matrix("output_hc_down", wide, low)
    shape.matrix("output_hc_up", low, wide)
    for layer in range(shape.n_layer):
        blk = f"blk.{layer}"
        for part in ("attn", "ffn"):
            shape.vector(f"{blk}.hc_{part}_norm", wide)
            shape.matrix(f"{blk}.hc_{part}_down", wide, low)
            shape.matrix(f"{blk}.hc_{part}_up", low, wide)
            shape.matrix(f"{blk}.hc_{part}_inject", wide, 4)
        if (layer + 1) % 4:
            _delta_net(shape, blk)
        else:
            _attention(shape, blk, 256, norms=True, gate=2)
            shape.matrix(f"{blk}.indexer.q_proj", shape.width, 4 * 128)
            shape.matrix(f"{blk}.indexer.k_proj", shape.width, 128)
            shape.vector(f"{blk}.indexer.q_norm", 128)
            shape.vector(f"{blk}.indexer.k_norm", 128)
        shape.tensors.append((f"{blk}.ffn_gate_inp.weight", (shape.width, experts), "small"))
        shape.vector(f"{blk}.ffn_gate_inp_shexp", shape.width, "small")
        _ffn(shape, blk, n_ff, "_exps", (experts,))
        _ffn(shape, blk, n_ff, "_shexp")
    return shape


def small() -> Shape:
    """A llama that a CPU runs in seconds, to compare a backend with it (--logits, --against)."""
    heads = {"attention__head_count": 16, "attention__head_count_kv": 4, "rope__dimension_count": 64}
    return _dense(_shape("llama", 4, 1024, 12, 32768, feed_forward_length=4096, **heads), 64, norms=False)


def tiny() -> Shape:
    """A small llama, so that the tool itself can be tried anywhere."""
    heads = {"attention__head_count": 4, "attention__head_count_kv": 2, "rope__dimension_count": 64}
    return _dense(_shape("llama", 2, 256, 6, 1024, feed_forward_length=512, **heads), 64, norms=False)


SHAPES: dict[str, Callable[[], Shape]] = {
    "llama-8b": llama_8b,
    "qwen3-8b": qwen3_8b,
    "qwen35-27b": qwen35_27b,
    "next-like": next_like,
    "small": small,
    "tiny": tiny,
}
