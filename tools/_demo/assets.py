"""The demo's model, texts and projectors. What was made once in build/demo is used again as long as it still fits."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
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


def projectors(path: Path, documents: Texts, splits: tuple[int, ...] = SPLITS) -> dict[int, Path]:
    """One side file per split, fitted in one pass over the calibration text, or those of an earlier run."""
    from ridgefill_cpp.fit.job import Settings
    from ridgefill_cpp.fit.run import Choices, fit_splits
    from ridgefill_cpp.fit.texts import text_sha256

    FOLDER.mkdir(parents=True, exist_ok=True)
    files = {split: FOLDER / f"smollm2-split{split}.gguf" for split in splits}
    key = {
        "model": path.name,
        "bytes": path.stat().st_size,
        "text": text_sha256([*documents.fit, *documents.choose]),
        "rows": ROWS,
    }
    stamp = FOLDER / ("projectors.json" if splits == SPLITS else f"projectors-{'-'.join(map(str, splits))}.json")
    if stamp.is_file():
        stored = json.loads(stamp.read_text())
        made = {int(split): digest for split, digest in stored.get("files", {}).items()}
        if stored.get("key") == key and all(
            file.is_file() and sha256(file.read_bytes()) == made.get(split) for split, file in files.items()
        ):
            say(f"projectors of an earlier run: {', '.join(file.name for file in files.values())}")
            return files
    say(f"fitting projectors for splits {' and '.join(map(str, splits))} on {ROWS} rows of standard library text")
    settings = Settings(split=min(splits), max_rows=ROWS)
    choices = Choices(force=True, progress=True)
    work = FOLDER / f"fit-{sha256(json.dumps([key, splits]).encode())[:12]}"  # an interrupted fit goes on from here
    fit_splits(path, documents.fit, documents.choose, files, settings, choices, work)
    shutil.rmtree(work)
    digests = {split: sha256(file.read_bytes()) for split, file in files.items()}
    stamp.write_text(json.dumps({"key": key, "files": digests}, indent=1) + "\n")
    return files
