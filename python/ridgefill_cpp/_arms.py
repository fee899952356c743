"""Runs the arms of an evaluation through the C API: one document in, losses and most likely tokens out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from . import _capi, anchors
from ._projector import Projector, make_params
from ._session import Session
from .base import base_of_gguf
from .gguf_reader import GgufFile, read_gguf
from .gguf_writer import Tensor
from .int8 import f32_to_bf16, n_groups
from .layout import Base, Credit, Header, layer_tensor, map_parts
from .modes import parse_dropped, parse_quality
from .sidefile import write_sidefile

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Key = tuple[str, str]  # label of the projector ("" for dropped), mode


class Arms:
    """The exact run and the arms beside it, on documents of `tokens` tokens. Sums are kept, documents are not."""

    def __init__(self, session: Session, tokens: int, tail: int, head: int) -> None:
        self.session = session
        self.tokens, self.tail, self.head = tokens, tail, head
        self.off = make_params("off", tail, head, 0)
        self.fills: dict[Key, Projector] = {}
        self.drops: dict[Key, int] = {}  # rows kept
        self.alpha = 1.0  # scale of the state correction, where a side file has one
        self.exact: list[float] = []  # nats per token, by document
        self.losses: dict[Key, list[float]] = {}  # nats per token above exact
        self.agree: dict[Key, list[float]] = {}  # share of rows with the exact run's most likely token

    def load(self, projectors: Mapping[str, str | os.PathLike[str]], modes: Sequence[str], folder: Path) -> None:
        """Loads the side files; those of the identity are written to `folder`, one for each split."""
        model = read_gguf(self.session.model_path, model=True) if "identity" in modes else None
        identities: dict[int, Projector] = {}
        for label, path in projectors.items():
            projector = self.session.load(path)
            for mode in modes:
                if mode == "fill" or parse_quality(mode) or (mode == "uncorrected" and projector.n_states):
                    self.fills[label, mode] = projector
            if model is not None:
                if projector.split not in identities:
                    file = folder / f"identity-{projector.split}.gguf"
                    write_identity(file, base_of_gguf(model), projector.split, model)
                    identities[projector.split] = self.session.load(file)
                self.fills[label, "identity"] = identities[projector.split]
        for mode in modes:
            kept = parse_dropped(mode, self.tail)
            if kept is not None:
                self.drops["", mode] = min(kept, self.tokens)

    def run(
        self,
        texts: Iterable[str],
        most: int | None,
        enough: Callable[[int], bool],
        progress: Callable[[int, float, Mapping[Key, float]], object],
    ) -> None:
        """Every text of at least `tokens` tokens, until `most` are done or enough(n) is true."""
        for text in texts:
            ids = self.session.tokenize(text)[: self.tokens]
            if len(ids) < self.tokens:
                continue
            self.document(ids)
            n_done = len(self.exact)
            progress(n_done, self.exact[-1], {key: losses[-1] for key, losses in self.losses.items()})
            if n_done == most or enough(n_done):
                break

    def document(self, ids: list[int]) -> None:
        begin = self.tokens - self.tail
        self.session.attach(None, self.off)
        exact, best = self.score(ids, begin)
        now: dict[Key, tuple[F64, I64]] = {}
        for key, projector in self.fills.items():
            self.session.attach(projector, self.params_of(key[1]))
            self.session.set_alpha(0.0 if key[1] == "uncorrected" else self.alpha)
            now[key] = self.score(ids, begin)
            counts = self.session.counts()
            wanted = self.session.n_bulk(self.tokens)
            if counts.n_filled + counts.n_selected != wanted or begin - self.head - wanted not in range(64):
                raise RuntimeError(f"{' '.join(key)}: found {counts}, allowed {wanted} rows filled or selected")
        for key, kept in self.drops.items():
            self.session.attach(None, self.off)
            short = self.shortened(ids, kept)
            now[key] = self.score(short, len(short) - self.tail)
        self.exact.append(float(exact.mean()))
        for key, (nll, top) in now.items():
            self.losses.setdefault(key, []).append(float(nll.mean() - exact.mean()))
            self.agree.setdefault(key, []).append(float((top == best).mean()))

    def shortened(self, ids: list[int], kept: int) -> list[int]:
        """The last rows, behind the model's leading token where it has one: without it some models do not work."""
        leading = self.session.tokenize("")
        return ids[-kept:] if kept >= len(ids) else leading + ids[-kept:]

    def params_of(self, mode: str) -> _capi.llama_ridgefill_params:
        quality = parse_quality(mode)
        if quality is None:
            return make_params("speed", self.tail, self.head, 0)
        return make_params("quality", self.tail, self.head, 0, *quality)

    def score(self, ids: list[int], begin: int) -> tuple[F64, I64]:
        """Loss and most likely token of each row from `begin` to the last but one; each predicts the next token."""
        outputs = range(begin, len(ids) - 1)
        cuts = (self.head, begin) if begin else ()  # the same batches in every arm, so the same rounding
        parts = [
            nll_of(logits, ids[first + 1 : first + 1 + len(logits)])
            for first, logits in self.session.decode(ids, outputs, cuts)
        ]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def nll_of(logits: F32, targets: Sequence[int]) -> tuple[F64, I64]:
    """(negative log-likelihood in nats of each row's target, each row's most likely token); logits [n, n_vocab]."""
    nll = np.empty(len(logits), np.float64)
    for begin in range(0, len(logits), 32):  # 32 rows at a time keep the temporaries small
        rows = logits[begin : begin + 32]
        top = rows.max(axis=1, keepdims=True)
        total = np.exp(rows - top).sum(axis=1, dtype=np.float64)
        picked = rows[np.arange(len(rows)), targets[begin : begin + 32]]
        nll[begin : begin + 32] = np.log(total) + top[:, 0] - picked
    return nll, logits.argmax(axis=1).astype(np.int64)


def write_identity(path: Path, base: Base, split: int, model: GgufFile | None = None) -> None:
    """A side file whose maps are the identity: every late layer's input is the stream entering the split.

    model: what its fingerprints are taken from; without it they stay unstated.
    """
    n = base.embedding_length
    layers = tuple(range(split + 1, base.block_count))
    header = Header(base, split, n, n, "layer_input", "i8", layers, Credit(name=f"identity, split {split}"))
    if model is not None:
        norms, types = anchors.anchors(model, split), anchors.encodings(model, split, base.block_count)
        header = replace(header, anchors=norms, encodings=types)
    values = {
        "codes": np.eye(n, dtype=np.int8),
        "scale": f32_to_bf16(np.ones((n, n_groups(n)), np.float32)),
        "bias": np.zeros(n, np.float32),
    }
    tensors = [
        Tensor(layer_tensor(layer, part), kind, ne, lambda value=values[part]: [value])  # type: ignore[misc]
        for layer in layers
        for part, (kind, ne) in map_parts("i8", n, n).items()
    ]
    write_sidefile(path, header, tensors)
