"""A one-line progress bar on stderr, in plain characters: only on a terminal, or wherever RIDGEFILL_PROGRESS=1 asks."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import TracebackType

WIDTH = 24
EVERY = 0.1  # seconds between redraws
SCALES = {"MB": 1e6}


class Progress:
    """`with Progress("fit", total=n) as bar: bar.add(1)`; thread-safe. Total 0: unknown, a count is shown."""

    def __init__(self, label: str, total: int = 0, unit: str = "", shown: bool = True) -> None:
        self.label = label
        self.total = total
        self.unit = unit
        self.done = 0
        self.note = ""
        self.enabled = shown and (os.environ.get("RIDGEFILL_PROGRESS") == "1" or sys.stderr.isatty())
        self._lock = threading.Lock()
        self._begin = time.monotonic()
        self._drawn = 0.0
        self._width = 0

    def add(self, count: int, note: str = "") -> None:
        if not self.enabled:
            return
        with self._lock:
            self.done += count
            self.note = note or self.note
            now = time.monotonic()
            if now - self._drawn >= EVERY:
                self._drawn = now
                self._draw()

    def _draw(self, end: str = "") -> None:
        scale = SCALES.get(self.unit, 1)
        amount = f"{self.done / scale:.0f}"
        if self.total:
            share = min(1.0, self.done / self.total)
            bar = "#" * round(share * WIDTH)
            amount = f"[{bar:-<{WIDTH}}] {share:4.0%} {amount}/{self.total / scale:.0f}"
        seconds = time.monotonic() - self._begin
        left = (
            f", {(self.total - self.done) * seconds / self.done:.0f} s left"
            if self.total and 0 < self.done < self.total
            else ""
        )
        line = f"{self.label} {amount} {self.unit}".rstrip() + f" {seconds:.0f} s{left} {self.note}".rstrip()
        print("\r" + line.ljust(self._width), end=end, file=sys.stderr, flush=True)
        self._width = len(line)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.enabled and self.done:
            self._draw("\n")
