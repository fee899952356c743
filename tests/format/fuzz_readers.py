#!/usr/bin/env python3
"""Throws damaged files at the readers: every one is either read or refused by name, in little memory.

    python tests/format/fuzz_readers.py [COUNT] [SEED]

Targets: a GGUF side file, a safetensors file, a folder's manifest, the manifest of an exported folder (which holds a
side file's keys), a folder's safetensors file under a right hash, and a model's GGUF. A finding is an exception without
a code of docs/format.md, a message that names no rule, or too much memory. It is printed with its seed, which
reproduces it; the exit status is then 1.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import struct
import sys
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
if not any((Path(p) / "ridgefill_cpp" / "__init__.py").exists() for p in sys.path if p):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from ridgefill_cpp.base import base_of
from ridgefill_cpp.convert import Options, convert
from ridgefill_cpp.errors import RidgefillError, UsageError
from ridgefill_cpp.export import export
from ridgefill_cpp.sidefile import open_sidefile
from toys import rehash, toy_file, toy_folder, toy_model

MEMORY = 100 << 20  # what reading a small file may take
FORMAT = Path(__file__).resolve().parents[2] / "docs" / "format.md"
CODES = set(re.findall(r"`([a-z0-9_-]+)`", FORMAT.read_text()))
NUMBERS = [0, 1, 2, 7, 31, 32, 33, 127, 128, 255, 256, 511, 512, 513, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
NUMBERS += [1 << 40, (1 << 61) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    1e308,
    "",
    "x",
    "../x",
    "\x1b[31m\n",
    [],
    [1],
    {},
    {"a": 1},
    1 << 70,
]


def damage(rng: random.Random, data: bytes, header: int) -> bytes:
    """One to four changes, most of them in the first `header` bytes."""
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if not raw:
            break
        at = rng.randrange(min(header, len(raw)) if rng.random() < 0.9 else len(raw))
        kind = rng.randrange(7)
        if kind == 0:
            raw[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            raw[at] = rng.randrange(256)
        elif kind == 2:
            new = struct.pack("<Q", rng.choice(NUMBERS))[: rng.choice((4, 8))]
            raw[at : at + len(new)] = new
        elif kind == 3:
            del raw[at : at + rng.choice((1, 4, 8, 100, len(raw)))]
        elif kind == 4:
            raw[at:at] = raw[at : at + rng.choice((1, 8, 40))]
        elif kind == 5:
            other = rng.randrange(len(raw))
            raw[at : at + 8] = raw[other : other + 8]
        else:
            raw[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 8))))
    return bytes(raw)


def damage_json(rng: random.Random, value: Any) -> Any:
    """One member somewhere in the tree is replaced, dropped or doubled."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        choice = rng.random()
        if choice < 0.15:
            return {k: v for k, v in value.items() if k != key}
        if choice < 0.25:
            return {**value, rng.choice(["0", "-1", "x", "ridgefill.json", "999", key + " "]): value[key]}
        return {**value, key: damage_json(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.5:
        return [*value[:-1], damage_json(rng, value[-1])]
    return rng.choice([*VALUES, *NUMBERS, str(rng.choice(NUMBERS))])


class Fuzzer:
    """Good files of each kind in a folder, and one method per target that damages and reads one of them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.model = toy_model(place / "model.gguf")
        self.folder = toy_folder(place / "folder", final=False)
        self.base = base_of(self.model)
        convert(self.folder, place / "good.gguf", Options(base=self.model))
        export(place / "good.gguf", place / "exported")
        toy_file(place / "good.safetensors", 64, 64, final=True)
        self.out = place / "out.gguf"
        self.targets: dict[str, Callable[[random.Random], None]] = {
            "gguf": self.gguf,
            "model": self.model_gguf,
            "safetensors": self.safetensors,
            "manifest": lambda rng: self.manifest(rng, self.folder),
            "exported": lambda rng: self.manifest(rng, self.place / "exported"),
            "folder": self.folder_file,
        }

    def good(self, name: str) -> bytes:
        return (self.place / name).read_bytes()

    def gguf(self, rng: random.Random) -> None:
        bad = self.place / "bad.gguf"
        bad.write_bytes(damage(rng, self.good("good.gguf"), 3000))
        side = open_sidefile(bad, self.base)
        side.weight(3)

    def model_gguf(self, rng: random.Random) -> None:
        bad = self.place / "bad.gguf"
        bad.write_bytes(damage(rng, self.good("model.gguf"), 700))
        convert(self.folder, self.out, Options(base=bad, force=True))

    def safetensors(self, rng: random.Random) -> None:
        bad = self.place / "bad.safetensors"
        bad.write_bytes(damage(rng, self.good("good.safetensors"), 400))
        convert(bad, self.out, Options(rng.choice(("i8", "bf16", "q8_0")), architecture="llama", force=True))

    def manifest(self, rng: random.Random, folder: Path) -> None:
        file = folder / "ridgefill.json"
        good = file.read_text()
        try:
            if rng.random() < 0.3:
                file.write_bytes(damage(rng, good.encode(), len(good)))
            else:
                file.write_text(json.dumps(damage_json(rng, json.loads(good))))
            convert(folder, self.out, Options(base=rng.choice((None, self.model)), force=True))
        finally:
            file.write_text(good)

    def folder_file(self, rng: random.Random) -> None:
        name = rng.choice(
            ["proj8.L2.safetensors", "proj8.L3.safetensors", "correction.safetensors", "rowsel.safetensors"]
        )
        bad = self.place / "bad"
        shutil.copytree(self.folder, bad)
        try:
            (bad / name).write_bytes(damage(rng, (bad / name).read_bytes(), 600))
            rehash(bad)
            convert(bad, self.out, Options(rng.choice(("i8", "bf16")), force=True))
        finally:
            shutil.rmtree(bad)


def run(count: int, seed: int, place: Path) -> tuple[Counter[str], list[str]]:
    """How often each outcome came, and the findings."""
    fuzzer = Fuzzer(place)
    outcomes: Counter[str] = Counter()
    findings = []
    names = list(fuzzer.targets)
    tracemalloc.start()
    for number in range(seed, seed + count):
        name = names[number % len(names)]
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        try:
            fuzzer.targets[name](random.Random(number))
            outcome = "read"
        except RidgefillError as error:
            outcome = error.code
            if not str(error).isprintable() or len(str(error)) > 2000:
                findings.append(f"{name} {number}: an unprintable message")
            if error.code not in CODES or ": found " not in str(error) or ", allowed " not in str(error):
                findings.append(f"{name} {number}: names no rule: {error}")
        except UsageError:
            outcome = "usage"
        except Exception as error:
            outcome = type(error).__name__
            findings.append(f"{name} {number}: {outcome}: {error}")
        if (peak := tracemalloc.get_traced_memory()[1] - before) > MEMORY:
            findings.append(f"{name} {number}: {peak >> 20} MB")
        outcomes[f"{name}: {outcome}"] += 1
    tracemalloc.stop()
    return outcomes, findings


def main() -> int:
    count, seed = (int(text) for text in (sys.argv[1:] + ["2000", "0"][len(sys.argv) - 1 :])[:2])
    with tempfile.TemporaryDirectory() as place:
        outcomes, findings = run(count, seed, Path(place))
    for outcome, times in sorted(outcomes.items()):
        print(f"{times:7} {outcome}")
    for finding in findings:
        print(finding, file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
