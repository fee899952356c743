"""Where the pristine upstream comes from: a given tarball or folder, the user's cache, or pip by name."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .base import Pin, UpstreamError, sha256, sha256_file

# Large, and no target of ours reads them.
UNUSED = ("docs/", "media/", "examples/", "app/", "benches/", "pocs/", "models/ggml-vocab", ".git", ".devops/")


@dataclass(frozen=True)
class Source:
    path: Path
    identity: str  # changes whenever the content may have changed

    def files(self) -> Iterator[tuple[str, bytes, int]]:
        """(kind-relative name, content, mode): 'llama.cpp/...', 'llama_cpp/...' or 'LICENSE.llama-cpp-python'."""
        walk = self._tar_files() if self.path.is_file() else self._folder_files()
        yield from walk

    def _tar_files(self) -> Iterator[tuple[str, bytes, int]]:
        with tarfile.open(self.path) as tar:
            bare: bool | None = None
            for member in tar:
                name = member.name.partition("/")[2]
                if bare is None:
                    bare = "llama_cpp_python" not in member.name
                place = _place(name, bare)
                if place and member.isfile():
                    handle = tar.extractfile(member)
                    if handle is not None:
                        yield place, handle.read(), member.mode & 0o777

    def _folder_files(self) -> Iterator[tuple[str, bytes, int]]:
        bare = not (self.path / "vendor" / "llama.cpp").is_dir()
        for path in _walk(self.path):
            place = _place(path.relative_to(self.path).as_posix(), bare)
            if place:
                yield place, path.read_bytes(), path.stat().st_mode & 0o777


def _walk(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in (".git", "node_modules", "__pycache__"))
        for name in sorted(names):
            yield Path(folder) / name


def _place(name: str, bare: bool) -> str | None:
    if bare:
        inner = name
    elif name.startswith("vendor/llama.cpp/"):
        inner = name[len("vendor/llama.cpp/") :]
    elif name == "LICENSE.md":
        return "LICENSE.llama-cpp-python"
    elif name.startswith("llama_cpp/") and name.endswith((".py", "py.typed")):
        return name
    else:
        return None
    return None if inner.startswith(UNUSED) else f"llama.cpp/{inner}"


def find(pin: Pin, given: str | None) -> Source:
    """The pinned upstream, cheapest place first; a tarball is always held to the pin's hash."""
    given = given or os.environ.get("RIDGEFILL_UPSTREAM")
    if given:
        path = Path(given).expanduser().resolve()
        if path.is_dir():
            return _folder(path)
        if path.is_file():
            return _tarball(path, pin)
        raise UpstreamError(
            f"upstream {path}: no such file or folder", "give an sdist, or a folder that holds llama.cpp"
        )
    cached = cache_dir() / pin.tarball
    if not cached.is_file():
        cached.parent.mkdir(parents=True, exist_ok=True)
        download(pin, cached)
    return _tarball(cached, pin)


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "ridgefill-cpp"


def _folder(path: Path) -> Source:
    tree = path / "vendor" / "llama.cpp" if (path / "vendor" / "llama.cpp").is_dir() else path
    if not (tree / "src" / "llama-graph.cpp").is_file():
        raise UpstreamError(
            f"upstream {path}: src/llama-graph.cpp not found, so this is neither an sdist nor a llama.cpp tree",
            "give the folder that holds vendor/llama.cpp, or a llama.cpp checkout",
        )
    lines = []
    for file in _walk(path):
        stat = file.stat()
        lines.append(f"{file} {stat.st_size} {stat.st_mtime_ns}")
    return Source(path, sha256("\n".join(lines).encode()))


def _tarball(path: Path, pin: Pin) -> Source:
    found = sha256_file(path)
    if found != pin.sha256:
        raise UpstreamError(
            f"upstream {path}: sha256 {found}, the pin allows {pin.sha256}",
            f"delete the file to fetch {pin.version} again, or try another release: make bump VERSION=<version>",
        )
    return Source(path, found)


def download(pin: Pin, target: Path) -> None:
    """pip knows the index, the proxy and the mirror of this machine, so it fetches; nothing of the sdist is run.

    To name a file pip first asks its build backend for metadata, which for this package takes most of a minute. The
    stub backend on PYTHONPATH answers at once, and nothing but the tarball is wanted here.
    """
    stub = Path(__file__).with_name("stub_backend")
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        env = dict(os.environ)
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(stub), env.get("PYTHONPATH")]))
        env.update(RIDGEFILL_STUB_NAME=pin.package, RIDGEFILL_STUB_VERSION=pin.version)
        env.pop("PIP_BUILD_TRACKER", None)
        command = [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--no-binary", ":all:", "--no-build-isolation", "--dest", folder, f"{pin.package}=={pin.version}"),
        ]
        print(f"-- upstream: downloading {pin.package} {pin.version} with pip (74 MB)", flush=True)
        status = subprocess.run(command, env=env, stdout=sys.stderr).returncode
        found = sorted(Path(folder).glob("*.tar.gz"))
        if status != 0 or not found:
            raise UpstreamError(
                f"pip could not download {pin.package}=={pin.version} (exit status {status})",
                f"fetch {pin.tarball} by any means and pass -DRIDGEFILL_UPSTREAM=<file> or set RIDGEFILL_UPSTREAM",
            )
        os.replace(found[0], target)
