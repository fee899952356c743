"""A published projector folder: ridgefill.json (format 1) and the safetensors files it lists.

Reading checks the manifest, the bare file names, every file's sha256 (in threads), one tensor namespace over all
files, and that exactly the expected tensors are there. Files that the manifest does not list are ignored.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import RidgefillError, clean
from .safetensors_io import Entry, load_json, read_safetensors

MANIFEST = "ridgefill.json"
OLD_MANIFEST = "kva.json"
MAX_MANIFEST = 4 << 20
MAX_FILES = 4096
FORMAT = 1
HASH_STEP = 1 << 20


@dataclass(frozen=True)
class Folder:
    """A folder: its manifest and one entry per tensor. Nothing of it counts before `verified` has returned."""

    path: Path
    manifest: dict[str, Any]
    tensors: dict[str, Entry]
    verified: Callable[[], None]  # waits for the hashes; raises RidgefillError for a file that is not the manifest's


def read_folder(path: str | os.PathLike[str], step: Callable[[int], object] = lambda n_bytes: None) -> Folder:
    """Reads a folder and begins to hash its files in threads; `step` hears of bytes hashed.

    Raises RidgefillError at the first defect, and for a file of another hash before anything else of it.
    """
    path = Path(path)
    manifest = read_manifest(path)
    files = _file_table(path, manifest)
    verified = _hashing(path, files, step)
    try:
        tensors = _namespace(path, files)
    except RidgefillError:
        verified()
        raise
    return Folder(path, manifest, tensors, verified)


def _namespace(path: Path, files: dict[str, str]) -> dict[str, Entry]:
    tensors: dict[str, Entry] = {}
    for name in files:
        if not name.endswith(".safetensors"):
            continue
        for tensor, entry in read_safetensors(path / name).tensors.items():
            if tensor in tensors:
                found = f"in {tensors[tensor].path.name} and {name}"
                raise RidgefillError("tensor-twice", path, clean(tensor), found, "each tensor in one file")
            tensors[tensor] = entry
    return tensors


def read_manifest(path: Path) -> dict[str, Any]:
    """ridgefill.json of a folder as an object whose `format` is 1."""
    file = path / MANIFEST
    if not file.is_file():
        if (path / OLD_MANIFEST).is_file():
            hint = "rewrite the folder with its publisher's `credit` command, or fetch the current release"
            raise RidgefillError("manifest-old", path, OLD_MANIFEST, "the superseded form", MANIFEST, hint)
        raise RidgefillError("no-file", path, MANIFEST, "no such file", "a published projector folder")
    if file.stat().st_size > MAX_MANIFEST:
        raise RidgefillError("manifest", file, "", f"{file.stat().st_size} bytes", f"at most {MAX_MANIFEST}")
    raw = file.read_bytes()
    manifest = load_json(raw, lambda what: RidgefillError("manifest", file, "", what, "a JSON object"))
    if not isinstance(manifest, dict):
        raise RidgefillError("manifest", file, "", type(manifest).__name__, "a JSON object")
    if manifest.get("format") != FORMAT or type(manifest["format"]) is not int:
        raise RidgefillError("manifest-format", file, "format", clean(manifest.get("format")), FORMAT)
    return manifest


def _file_table(path: Path, manifest: dict[str, Any]) -> dict[str, str]:
    files = manifest.get("files")
    if not isinstance(files, dict) or not 1 <= len(files) <= MAX_FILES:
        raise RidgefillError("manifest", path / MANIFEST, "files", type(files).__name__, f"1 .. {MAX_FILES} file names")
    for name, digest in files.items():
        if not _is_bare(name):
            raise RidgefillError("file-name", path / MANIFEST, "files", clean(name), "a bare file name")
        if not isinstance(digest, str) or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise RidgefillError("manifest", path / MANIFEST, f"files.{clean(name)}", clean(digest), "64 hex digits")
    missing = [name for name in files if not (path / name).is_file()]
    if missing:
        found = f"{len(files) - len(missing)} of {len(files)} files, without " + ", ".join(missing[:5])
        raise RidgefillError(
            "file-missing", path, clean(missing[0]), found, "every file of the manifest", "fetch it again"
        )
    return files


def _is_bare(name: str) -> bool:
    return bool(name) and name not in (".", "..") and not set(name) & set("/\\:") and name.isprintable()


def sha256_of(path: Path, step: Callable[[int], object] = lambda n_bytes: None) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(HASH_STEP):
            digest.update(piece)
            step(len(piece))
    return digest.hexdigest()


def _hashing(path: Path, files: dict[str, str], step: Callable[[int], object]) -> Callable[[], None]:
    """Begins to hash every file, one thread each; what it returns waits for them and compares."""
    pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1))
    digests = {name: pool.submit(sha256_of, path / name, step) for name in files}
    pool.shutdown(wait=False)

    def verified() -> None:
        for name, wanted in files.items():
            found = digests[name].result()
            if found != wanted:
                for future in digests.values():
                    future.cancel()
                raise RidgefillError("file-hash", path / name, "sha256", found, wanted, "fetch this file again")

    return verified
