"""GGUF files with random contents: a model of a shape, and a side file of random maps for it.

Blocks are drawn once per row width and used again for every tensor: speed does not depend on which numbers they are,
and 60 GB of fresh ones would take minutes. Never zeros, which hide wrong indexing and can run faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from ridgefill_cpp import gguf_types, int8
from ridgefill_cpp.gguf_writer import Key, Tensor, write_gguf
from ridgefill_cpp.layout import Base, Header, layer_tensor, map_parts
from ridgefill_cpp.sidefile import write_sidefile

from .shapes import Shape

POOL = 1 << 23  # values
TYPES = {"q8_0": gguf_types.Q8_0, "bf16": gguf_types.BF16, "q4_k": gguf_types.Q4_K}


class Pools:
    """Random bytes of each kind, made when first asked for."""

    def __init__(self, seed: int = 1) -> None:
        self._random = np.random.default_rng(seed)
        self._made: dict[tuple[str, int], memoryview] = {}

    def take(self, kind: str, n_in: int, n_bytes: int) -> Iterator[memoryview]:
        pool = self._made.get((kind, n_in))
        if pool is None:
            pool = self._made[kind, n_in] = memoryview(self._make(kind, n_in).view(np.uint8).reshape(-1)).cast("B")
        for begin in range(0, n_bytes, len(pool)):
            yield pool[: min(len(pool), n_bytes - begin)]

    def _make(self, kind: str, n_in: int) -> np.ndarray:
        random = self._random
        if kind == "norm":
            return 1 + 0.1 * random.standard_normal(n_in, np.float32)
        if kind == "small":
            return 0.1 * random.standard_normal(1 << 16, np.float32)
        if kind == "decay":
            return -random.uniform(0.05, 1.0, n_in).astype(np.float32)
        # matrices keep the size of what they multiply: deviation 1/sqrt(n_in)
        if kind == "bf16":
            return int8.f32_to_bf16(random.standard_normal(POOL, np.float32) / np.float32(np.sqrt(n_in)))
        if kind == "codes":
            return random.integers(-127, 128, POOL, np.int8)
        if kind == "q4_k":
            return self._q4_k(n_in)
        blocks = np.empty(POOL // 32, np.dtype([("scale", "<f2"), ("codes", "i1", 32)]))
        blocks["scale"] = random.uniform(0.8, 1.2, len(blocks)) / (73 * np.sqrt(n_in))
        blocks["codes"] = random.integers(-127, 128, (len(blocks), 32), np.int8)
        return blocks

    def _q4_k(self, n_in: int) -> np.ndarray:
        """256 weights d*s*q - m*t; s and t are of 6 bits, so 7.5 makes the mean 0 and 258 the deviation d*258."""
        fields = [("d", "<f2"), ("m", "<f2"), ("scales", "u1", 12), ("codes", "u1", 128)]
        blocks = np.empty(POOL // 256, np.dtype(fields))
        blocks["d"] = 1 / (258 * np.sqrt(n_in))
        blocks["m"] = 7.5 / (258 * np.sqrt(n_in))
        blocks["scales"] = self._random.integers(0, 256, (len(blocks), 12), np.uint8)
        blocks["codes"] = self._random.integers(0, 256, (len(blocks), 128), np.uint8)
        return blocks


def write_model(path: Path, shape: Shape, weights: str) -> None:
    pools = Pools()
    keys = [
        Key("general.architecture", "str", shape.arch),
        Key("general.name", "str", path.stem),
        Key("tokenizer.ggml.model", "str", "no_vocab"),
        *(Key(f"{shape.arch}.{name}", form, value) for name, (form, value) in shape.keys.items()),
    ]
    tensors = []
    for name, ne, kind in shape.tensors:
        type = TYPES[weights] if kind == "matrix" else gguf_types.F32
        tensors.append(_tensor(name, type, ne, weights if kind == "matrix" else kind, pools))
    write_gguf(path, keys, tensors, force=True)


def write_maps(path: Path, shape: Shape, encoding: str = "i8") -> None:
    """Random maps that keep the size of the stream."""
    pools = Pools(2)
    n_in, n_out = shape.source_width, shape.width
    base = Base(shape.arch, shape.n_layer, shape.width)
    layers = range(shape.split + 1, shape.n_layer)
    header = Header(base, shape.split, n_in, n_out, shape.target, encoding, tuple(layers))
    scale = np.float32(1 / (73 * np.sqrt(n_in)))

    def data(part: str, n_bytes: int) -> Callable[[], Iterator[memoryview | np.ndarray]]:
        if part == "scale":
            return lambda: iter([int8.f32_to_bf16(np.full(n_bytes // 2, scale, np.float32))])
        if part == "bias":
            return lambda: pools.take("small", n_in, n_bytes)
        return lambda: pools.take("codes" if part == "codes" else encoding, n_in, n_bytes)

    tensors = []
    for layer in layers:
        for part, (type, ne) in map_parts(encoding, n_in, n_out).items():
            name = layer_tensor(layer, part)
            n_bytes = Tensor(name, type, ne, lambda: []).n_bytes
            tensors.append(Tensor(name, type, ne, data(part, n_bytes)))
    write_sidefile(path, header, tensors, force=True)


def _tensor(name: str, type: int, ne: tuple[int, ...], kind: str, pools: Pools) -> Tensor:
    n_bytes = Tensor(name, type, ne, lambda: []).n_bytes
    return Tensor(name, type, ne, lambda: pools.take(kind, ne[0], n_bytes))
