"""What every part of the upstream tool shares: the pin, where things are, and how an error reads."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PIN = ROOT / "llama.cpp" / "PIN"
SERIES = ROOT / "llama.cpp" / "series"
PATCHES = ROOT / "llama.cpp" / "patches"


class UpstreamError(Exception):
    """One sentence that says what, found and allowed, plus the next command."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Pin:
    package: str
    version: str
    sha256: str
    commit: str

    @property
    def tarball(self) -> str:
        return f"{self.package.replace('-', '_')}-{self.version}.tar.gz"

    def text(self) -> str:
        return f"{self.package.replace('-', '_')} {self.version} ({self.commit})"


def load_pin(path: Path = PIN) -> Pin:
    values: dict[str, str] = {}
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            values[key.strip()] = value.strip()
    wanted = set(Pin.__dataclass_fields__)
    if set(values) != wanted:
        raise UpstreamError(
            f"{path}: keys found: {', '.join(sorted(values))}; allowed: exactly {', '.join(sorted(wanted))}"
        )
    if len(values["sha256"]) != 64:
        raise UpstreamError(f"{path}: sha256 has {len(values['sha256'])} characters, a full hash has 64")
    return Pin(**values)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_if_changed(path: Path, data: bytes, mode: int | None = None) -> bool:
    """Keep the time stamp of a file whose content stays, so that ninja does not rebuild what includes it."""
    if path.is_file() and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part{os.getpid()}")
    part.write_bytes(data)
    if mode is not None:
        part.chmod(mode)
    os.replace(part, path)
    return True
