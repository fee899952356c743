"""The demo's model, texts and projectors. What was made once in build/demo is used again as long as it still fits."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("RIDGEFILL_BUILD", ROOT / "build"))
FOLDER = BUILD / "demo"
SPLITS = (20, 10)  # the default first
ROWS = 48_000  # calibration rows
TAIL, HEAD = 512, 16


def say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)


def use_build() -> None:
    """Makes the package of this build importable, when PYTHONPATH does not."""
    package = BUILD / "python"
    if not (package / "ridgefill_cpp").is_dir():
        raise SystemExit(f"demo: {package} is not there\nhint: make build")
    if str(package) not in sys.path:
        sys.path.insert(0, str(package))


@dataclass(frozen=True)
class Texts:
    """Documents of the standard library: to fit on, to choose lambda by, and never seen by either."""

    fit: list[Any]
    choose: list[Any]
    held: list[Any]


def texts() -> Texts:
    from ridgefill_cpp.fit.stdlib import stdlib_texts

    train, held = stdlib_texts()
    return Texts(train[:-3], train[-3:], held)


def model() -> Path:
    sys.path.insert(0, str(ROOT / "tools"))
    import models

    return models.get("smollm2")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def projectors(path: Path, documents: Texts) -> dict[int, Path]:
    """One side file per split, fitted in one pass over the calibration text, or those of an earlier run."""
    from ridgefill_cpp.fit.texts import text_sha256

    FOLDER.mkdir(parents=True, exist_ok=True)
    files = {split: FOLDER / f"smollm2-split{split}.gguf" for split in SPLITS}
    key = {
        "model": path.name,
        "bytes": path.stat().st_size,
        "text": text_sha256([*documents.fit, *documents.choose]),
        "rows": ROWS,
    }
    stamp = FOLDER / "projectors.json"
    if stamp.is_file():
        stored = json.loads(stamp.read_text())
        made = {int(split): digest for split, digest in stored.get("files", {}).items()}
        if stored.get("key") == key and all(
            file.is_file() and sha256(file.read_bytes()) == made.get(split) for split, file in files.items()
        ):
            say(f"projectors of an earlier run: {', '.join(file.name for file in files.values())}")
            return files
    say(f"fitting projectors for splits {' and '.join(map(str, SPLITS))} on {ROWS} rows of standard library text")
    fit_together(path, documents, files)
    digests = {split: sha256(file.read_bytes()) for split, file in files.items()}
    stamp.write_text(json.dumps({"key": key, "files": digests}, indent=1) + "\n")
    return files


class Shared:
    """Rows of one capture for several fits that walk through the same windows in step.

    A fit calls run() when it is done with the rows it got before, so the capture may decode the next window once every
    fit has called.
    """

    def __init__(self, capture: Any, n_fits: int) -> None:
        self.capture = capture
        self.barrier = threading.Barrier(n_fits)
        self._got: tuple[Any, list[Any]] | None = None

    def run(self, ids: Sequence[int]) -> tuple[Any, list[Any]]:
        if self.barrier.wait() == 0:
            try:
                self._got = self.capture.run(ids)
            except BaseException:
                self.barrier.abort()
                raise
        self.barrier.wait()
        assert self._got is not None and len(self._got[0]) == len(ids)
        return self._got


class View:
    """The rows as a fit of a later split sees them: the input of layer `split` is its source."""

    def __init__(self, shared: Shared, split: int) -> None:
        capture = shared.capture
        self._shared = shared
        self._source = capture.layers.index(split) if split in capture.layers else -1  # -1: the capture's own source
        self.layers = tuple(layer for layer in capture.layers if layer > split)
        self.n_in = capture.n_in
        self.widths = capture.widths[self._source + 1 :]
        self.tokenize, self.frame, self.chat_frame = capture.tokenize, capture.frame, ([], [])

    def run(self, ids: Sequence[int]) -> tuple[Any, list[Any]]:
        x, ys = self._shared.run(ids)
        return (x, ys) if self._source < 0 else (ys[self._source], ys[self._source + 1 :])


def fit_together(path: Path, documents: Texts, files: dict[int, Path]) -> None:
    """Fits every split of `files` in one pass over the text; a side file appears only when its fit has ended well."""
    from ridgefill_cpp.base import base_of
    from ridgefill_cpp.fit.blas import limit_blas, usable_cpus
    from ridgefill_cpp.fit.capture import Capture
    from ridgefill_cpp.fit.command import Choices, finish
    from ridgefill_cpp.fit.job import Job, Settings
    from ridgefill_cpp.fit.texts import text_sha256
    from ridgefill_cpp.layout import Credit

    base = base_of(path)
    limit_blas(usable_cpus())
    first = min(files)
    failed: list[BaseException] = []
    results: dict[int, Any] = {}
    layers = range(first + 1, base.block_count)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder, Capture(path, first, "layer_input", layers, 2048) as rows:
        shared = Shared(rows, len(files))

        def work(split: int) -> None:
            try:
                work_folder = Path(folder) / str(split)
                work_folder.mkdir()
                settings = Settings(split, context=2048, max_rows=ROWS)
                job = Job(View(shared, split), settings, work_folder, {})
                result = job.run(documents.fit, documents.choose, progress=split == first)
                credit = Credit(name=f"SmolLM2 135M, split {split}, fitted by make demo")
                choices = Choices(credit=credit, force=True)
                late = list(range(split + 1, base.block_count))
                digest = text_sha256(documents.fit)
                results[split] = finish(base, result, late, files[split], settings, choices, digest)
            except BaseException as error:
                failed.append(error)
                shared.barrier.abort()

        threads = [threading.Thread(target=work, args=(split,), daemon=True) for split in files if split != first]
        for thread in threads:
            thread.start()
        try:
            work(first)
        finally:
            if first not in results:
                shared.barrier.abort()
            for thread in threads:
                thread.join()
    for error in sorted(failed, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error  # the cause first, not the other fit's broken barrier
