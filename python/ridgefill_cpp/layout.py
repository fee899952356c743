"""Names, widths and allowed values of the side file, as docs/format.md states them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .gguf_types import BF16, F32, I8, Q8_0
from .int8 import GROUP, n_groups

ARCHITECTURE = "ridgefill"
VERSION = 1
ENCODINGS = ("i8", "q8_0", "bf16")
TARGETS = ("layer_input", "block_input")
MAX_LAYERS = 512
MAX_WIDTH = 1 << 20
WIDTH_STEP = 32

LAYER_TENSOR = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.ridgefill\.(codes|scale|weight|bias|state)")
SCORE = "ridgefill.score"
FINAL_WEIGHT = "ridgefill.final.weight"
FINAL_BIAS = "ridgefill.final.bias"
HEAD_ORDERS = ("grouped", "tiled")


def layer_tensor(layer: int, part: str) -> str:
    return f"blk.{layer}.ridgefill.{part}"


def map_parts(encoding: str, n_in: int, n_out: int) -> dict[str, tuple[int, tuple[int, ...]]]:
    """part -> (ggml type, ne) of one layer's map, in file order."""
    bias = {"bias": (F32, (n_out,))}
    if encoding == "i8":
        return {"codes": (I8, (n_in, n_out)), "scale": (BF16, (n_groups(n_in), n_out)), **bias}
    return {"weight": (Q8_0 if encoding == "q8_0" else BF16, (n_in, n_out)), **bias}


@dataclass(frozen=True)
class Base:
    """What a side file says of the model it was made for; None: not known, so not checked."""

    architecture: str
    block_count: int  # without next-token layers
    embedding_length: int
    vocab_size: int | None = None
    name: str | None = None
    tokenizer_sha256: str | None = None
    layer_kinds: str | None = None  # one letter per layer: a (attention) or r (recurrent)
    min_split: int = 1  # of a model, not in the file: the first split above its n-gram layer


@dataclass(frozen=True)
class Credit:
    name: str = ""
    author: str = ""
    license: str = ""
    doi: str = ""


@dataclass(frozen=True)
class Fit:
    """How the maps were fitted; arrays are per entry of `layers`. Empty where unknown (a published folder)."""

    rows: int | None = None
    head: int | None = None  # first rows of each window left out
    layers: tuple[int, ...] = ()
    lambdas: tuple[float, ...] = ()
    cosine: tuple[float, ...] = ()
    r2: tuple[float, ...] = ()
    condition: tuple[float, ...] = ()
    text_sha256: str = ""
    context: int | None = None  # rows of a window
    stride: int | None = None
    prior: str = ""
    held_rows: int | None = None
    dropped_rows: int | None = None  # with NaN or infinity
    chat_share: float | None = None
    weights: str = ""  # what the fit computed with: the model's weights, or a copy of them in another type


@dataclass(frozen=True)
class Header:
    """All keys of a side file. Widths are in values, `layers` are those with a map, ascending."""

    base: Base
    split: int
    source_width: int
    target_width: int
    target: str
    encoding: str
    layers: tuple[int, ...]
    credit: Credit = field(default_factory=Credit)
    fit: Fit = field(default_factory=Fit)
    group_size: int = GROUP
    head_order: str = ""  # of the state tensors; empty when there are none
    anchors: tuple[str, ...] = ()  # "<tensor> <sha256>" of the model's norms around the split
    encodings: tuple[str, ...] = ()  # "<tensor> <type>" of the model's late weights
    manifest: str = ""  # canonical JSON of a published folder's manifest, so that it can be exported again

    @property
    def late_layers(self) -> range:
        """Layers that need a map."""
        return range(self.split + 1, self.base.block_count)
