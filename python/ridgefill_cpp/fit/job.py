"""The fit as a job: windows of text, streamed sums, held-out rows, with a work folder that a later run can go on from.

Where rows come from is behind `Rows`, so the job runs on a model or on made-up numbers alike. The same settings, texts
and rows give the same sums bit for bit, interrupted or not: a checkpoint holds everything that the next step reads.
"""

from __future__ import annotations

import json
import os
import random
import time
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import RidgefillError
from ..progress import Progress
from .held import HeldRows, HeldView
from .ridge import RidgeSums
from .texts import Document

F32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]  # four bytes a token: the windows of all texts are kept
CHECKPOINT_EVERY = 20.0  # seconds, or
CHECKPOINT_COST = 20.0  # times what the last checkpoint took, whichever is longer
MIN_ROWS = 32  # rows of a window that are worth a decode
HELD_STRIDE = 4  # of the rows held out for scores, one in so many is kept: more text for the same number


class Rows(Protocol):
    """Rows of a window: x [rows, n_in] and one y [rows, widths[i]] per layer."""

    layers: tuple[int, ...]
    n_in: int
    widths: tuple[int, ...]

    def tokenize(self, text: str) -> list[int]: ...
    @property
    def frame(self) -> tuple[list[int], list[int]]: ...
    @property
    def chat_frame(self) -> tuple[list[int], list[int]]: ...
    def run(self, ids: Ids) -> tuple[F32, list[F32]]: ...


@dataclass(frozen=True)
class Settings:
    """What the sums depend on."""

    split: int
    target: str = "layer_input"
    context: int = 2048  # rows of a window, each run from an empty cache
    head: int = 16  # first rows of a window that are left out: they are exact when serving
    stride: int = 1  # positions divisible by it are used
    max_rows: int = 0  # 0: all
    held_rows: int = 4096  # at most
    chat_share: float = 0.0  # weight of chat-formatted copies; 0: none are made
    seed: int = 0
    weights: str = "model"  # what the rows are computed with: the model's weights, or a bf16 copy of them


@dataclass(frozen=True)
class Window:
    kind: str  # "raw" or "chat"
    ids: Ids


@dataclass
class SplitFit:
    """One split's share of the pass: which of (x, *ys) it reads and predicts, and its sums per kind of window."""

    split: int
    source: int
    targets: tuple[int, ...]
    layers: tuple[int, ...]
    sums: dict[str, RidgeSums]

    def add(self, kind: str, tensors: Sequence[F32]) -> None:
        self.sums[kind].add(tensors[self.source], [tensors[i] for i in self.targets])


@dataclass
class Result:
    split: int
    layers: tuple[int, ...]
    sums: RidgeSums  # of both kinds, mixed
    held: HeldView
    n_rows: dict[str, int]  # per kind
    dropped: int


class Job:
    """Accumulates sums of the train windows, then keeps held-out rows. `identity` guards the work folder.

    Further splits share the pass when the target is layer_input: the input of layer s is then the source of split s.
    """

    def __init__(
        self, rows: Rows, settings: Settings, folder: Path, identity: dict[str, Any], more_splits: Sequence[int] = ()
    ) -> None:
        self.rows = rows
        self.settings = settings
        self.folder = folder
        self.kinds = ("raw", "chat") if settings.chat_share > 0 else ("raw",)
        self.fits = [self._fit(split) for split in (settings.split, *more_splits)]
        more = {"more_splits": list(more_splits)} if more_splits else {}
        self.identity = {**asdict(settings), "layers": list(rows.layers), **more, **identity}
        self.next = {"train": 0, "held": 0}
        self.held_dropped = 0
        self._saved = time.monotonic()
        self._save_cost = 0.0
        rows_held = self._restore()
        self.held = HeldRows(folder, rows.n_in, rows.widths, rows_held)

    def _fit(self, split: int) -> SplitFit:
        widths = (self.rows.n_in, *self.rows.widths)
        source = 0 if split == self.settings.split else self.rows.layers.index(split) + 1
        targets = tuple(i for i, layer in enumerate(self.rows.layers, 1) if split < layer or source == 0)
        layers = tuple(self.rows.layers[i - 1] for i in targets)
        sums = {kind: RidgeSums(widths[source], [widths[i] for i in targets]) for kind in self.kinds}
        return SplitFit(split, source, targets, layers, sums)

    def run(self, train: Sequence[Document], held: Sequence[Document], progress: bool = False) -> Result:
        """The result of the first split."""
        return self.run_all(train, held, progress)[0]

    def run_all(self, train: Sequence[Document], held: Sequence[Document], progress: bool = False) -> list[Result]:
        """One result per split, in order."""
        settings = self.settings
        train_windows = self.first_rows(self.shuffled(train), settings.max_rows)
        held_windows = self.held_windows(held)
        total = sum(self.count(w) for w in train_windows)
        with Progress("capture", total, "rows", progress) as bar:
            for index, window in enumerate(train_windows):
                if index >= self.next["train"]:
                    used = self.used(window, settings.stride)
                    x, ys = self.rows.run(window.ids)
                    tensors = [tensor[used] for tensor in (x, *ys)]
                    for fit in self.fits:
                        fit.add(window.kind, tensors)
                    self.next["train"] = index + 1
                    self._checkpoint()
                bar.add(self.count(window))
        stride = self.held_stride(held_windows)
        with Progress("held out", len(held_windows), "windows", progress) as bar:
            for index, window in enumerate(held_windows):
                if index >= self.next["held"]:
                    x, ys = self.rows.run(window.ids)
                    used = self.used(window, stride)
                    self.held_dropped += self.held.append(x[used], [y[used] for y in ys])
                    self.next["held"] = index + 1
                    self._checkpoint()
                bar.add(1)
        self._checkpoint(now=True)
        return [self._result(fit) for fit in self.fits]

    def shuffled(self, documents: Sequence[Document]) -> list[Window]:
        windows = self.windows(documents)
        random.Random(self.settings.seed).shuffle(windows)
        return windows

    def held_windows(self, held: Sequence[Document]) -> list[Window]:
        """Windows for HELD_STRIDE times the rows that are kept, no more: a decode costs the same whatever is kept."""
        settings = self.settings
        return self.first_rows(self.shuffled(held), max(1, HELD_STRIDE * settings.held_rows // settings.stride))

    def held_stride(self, windows: Sequence[Window]) -> int:
        """The smallest stride that keeps no more than `held_rows` of these windows."""
        stride = 1
        while sum(len(range(len(w.ids))[self.used(w, stride)]) for w in windows) > self.settings.held_rows:
            stride += 1
        return stride

    def windows(self, documents: Sequence[Document]) -> list[Window]:
        """Every document cut into windows of at most `context` rows, once per kind; short rests are dropped."""
        frames = {kind: self.rows.chat_frame if kind == "chat" else self.rows.frame for kind in self.kinds}
        windows = []
        for document in documents:
            ids = np.array(self.rows.tokenize(document.text), np.int32)
            for kind in self.kinds:
                before, after = (np.array(part, np.int32) for part in frames[kind])
                size = self.settings.context - len(before) - len(after)
                if size < MIN_ROWS:
                    what = f"{len(before) + len(after)} tokens of chat template"
                    raise RidgefillError(
                        "context", document.name, "context", what, f"at most {self.settings.context - MIN_ROWS}"
                    )
                for begin in range(0, len(ids), size):
                    window = Window(kind, np.concatenate([before, ids[begin : begin + size], after]))
                    if len(window.ids) - self.settings.head >= MIN_ROWS:
                        windows.append(window)
        return windows

    def used(self, window: Window, stride: int) -> slice:
        """Rows of a window that are kept: positions from `head` on that `stride` divides."""
        first = -(-self.settings.head // stride) * stride
        return slice(first, len(window.ids), stride)

    def count(self, window: Window) -> int:
        return len(range(len(window.ids))[self.used(window, self.settings.stride)])

    def first_rows(self, windows: list[Window], limit: int) -> list[Window]:
        """Whole windows from the front up to `limit` rows; the last one is cut to fit. 0: all."""
        if not limit:
            return windows
        kept, left = [], limit
        for window in windows:
            rows = self.count(window)
            if rows > left:
                first = self.used(window, self.settings.stride).start
                window = Window(window.kind, window.ids[: first + (left - 1) * self.settings.stride + 1])
                rows = left
            if rows > 0:
                kept.append(window)
                left -= rows
            if left <= 0:
                break
        return kept

    def _result(self, fit: SplitFit) -> Result:
        raw = fit.sums["raw"]
        mixed = RidgeSums(raw.n_in, raw.widths)
        counts = {kind: sums.n_rows for kind, sums in fit.sums.items()}
        mixed.absorb(raw)
        if counts.get("chat"):
            share = self.settings.chat_share
            mixed.absorb(fit.sums["chat"], share * counts["raw"] / ((1 - share) * counts["chat"]))
        held = self.held.view(fit.source, fit.targets)
        return Result(fit.split, fit.layers, mixed, held, counts, mixed.n_dropped + self.held_dropped)

    # the work folder

    def _restore(self) -> int:
        """Loads a checkpoint of the same identity, if there is one; returns its held-out rows."""
        args, state = self.folder / "fit.json", self.folder / "fit.npz"
        if args.is_file():
            self._same_identity(args)
        else:
            # renamed into place: a process may be killed at any point
            temporary = args.with_name("fit.json.part")
            temporary.write_text(json.dumps(self.identity, indent=1) + "\n")
            os.replace(temporary, args)
        if not state.is_file():
            return 0
        try:
            with np.load(state, allow_pickle=False) as file:
                arrays = dict(file)
            for fit in self.fits:
                for kind in self.kinds:
                    prefix = f"{fit.split}.{kind}."
                    own = {n.removeprefix(prefix): array for n, array in arrays.items() if n.startswith(prefix)}
                    fit.sums[kind] = RidgeSums.restored(own, len(fit.targets))
            self.next["train"], self.next["held"], self.held_dropped, held = (int(n) for n in arrays["job"])
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
            hint = "remove the folder to start again"
            raise RidgefillError("resume", state, "", str(error), "a checkpoint of this job", hint) from None
        return held

    def _same_identity(self, args: Path) -> None:
        try:
            stored = json.loads(args.read_text())
        except ValueError:
            stored = None
        if not isinstance(stored, dict):
            raise RidgefillError("resume", args, "", "no JSON object", "the settings of a fit", "remove the folder")
        for key, value in self.identity.items():
            if stored.get(key) != value:
                hint = "resume with the settings the folder was begun with, or give another folder"
                raise RidgefillError("resume", args, key, value, stored.get(key), hint)

    def _checkpoint(self, now: bool = False) -> None:
        begin = time.monotonic()
        if not now and begin - self._saved < max(CHECKPOINT_EVERY, CHECKPOINT_COST * self._save_cost):
            return
        arrays: dict[str, npt.NDArray[Any]] = {
            f"{fit.split}.{kind}.{name}": array
            for fit in self.fits
            for kind, sums in fit.sums.items()
            for name, array in sums.state().items()
        }
        arrays["job"] = np.array([self.next["train"], self.next["held"], self.held_dropped, self.held.rows], np.int64)
        temporary = self.folder / "fit.npz.part"
        with open(temporary, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        os.replace(temporary, self.folder / "fit.npz")
        self._saved = time.monotonic()
        self._save_cost = self._saved - begin
