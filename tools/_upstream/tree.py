"""<build>/upstream: the unpacked tree, the pristine copies of the files we touch, and what was last written to them.

A touched file is compared by content, three ways: what the series wants, what is there, and what we last wrote. So a
second run writes nothing, a changed patch rewrites only its own files, and a developer's edit in place is kept and
reported until it is exported.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from . import patch as patches
from .base import PATCHES, SERIES, Pin, UpstreamError, sha256, write_if_changed
from .source import Source, find

# What the sdist lacks: ggml's CMakeLists.txt configures the first, and without the second upstream warns at every
# configure that it cannot read its commit from git (PIN gives it).
MISSING = {"llama.cpp/ggml/ggml.pc.in": b"", "llama.cpp/.git/index": b""}


class Tree:
    def __init__(self, build: Path) -> None:
        self.folder = build.resolve() / "upstream"
        self.work = self.folder / "llama.cpp"
        self.pristine = self.folder / "pristine"
        self.state_file = self.folder / "state.json"
        state = json.loads(self.state_file.read_text()) if self.state_file.is_file() else {}
        self.identity: str = state.get("identity", "")
        self.source: str = state.get("source", "")
        self.files: dict[str, str] = state.get("files", {})

    def save(self) -> None:
        state = {"identity": self.identity, "source": self.source, "files": dict(sorted(self.files.items()))}
        write_if_changed(self.state_file, (json.dumps(state, indent=1) + "\n").encode())

    def fetch(self, source: Source) -> bool:
        """Unpack what differs. Files that patches touch go to pristine/ only; apply() decides about the rest."""
        if source.identity == self.identity:
            return False
        print(f"-- upstream: unpacking {source.path}", flush=True)
        touched = set(self.files) | {name for patch in patches.load_series() for name in patch.hunks}
        shutil.rmtree(self.pristine, ignore_errors=True)
        kept: set[Path] = set()
        for name, data, mode in source.files():
            inner = name.removeprefix("llama.cpp/") if name.startswith("llama.cpp/") else ""
            if inner in touched:
                write_if_changed(self.pristine / inner, data, mode)
            target = self.folder / name
            kept.add(target)
            if inner not in touched or not target.exists():
                write_if_changed(target, data, mode)
        for name, data in MISSING.items():
            if self.folder / name not in kept:
                kept.add(self.folder / name)
                write_if_changed(self.folder / name, data)
        for root in (self.work, self.folder / "llama_cpp"):
            for path in list(root.rglob("*")):
                if path.is_file() and path not in kept:
                    path.unlink()
        self.identity, self.source = source.identity, str(source.path)
        self.save()
        return True

    def original(self, name: str) -> bytes:
        """The pristine bytes of one upstream file, from the side copy or once more from the source."""
        side = self.pristine / name
        if not side.is_file():
            if name not in self.files and (self.work / name).is_file() and not Path(self.source).exists():
                raise UpstreamError(f"upstream source {self.source} is gone", "configure again: cmake -S . -B build")
            for found, data, mode in Source(Path(self.source), self.identity).files():
                if found == f"llama.cpp/{name}":
                    write_if_changed(side, data, mode)
                    break
            else:
                raise UpstreamError(
                    f"{name}: no such file in {self.source}", "name it relative to <build>/upstream/llama.cpp"
                )
        return side.read_bytes()

    def apply(
        self, series: list[patches.Patch], force: bool = False, rejects: list[UpstreamError] | None = None
    ) -> tuple[list[str], list[str]]:
        """Bring the working tree to pristine + series. Returns (files written, files kept with edits in place)."""
        wanted = {name: self.original(name) for name in self.files}
        for patch in series:
            for name in patch.hunks:
                wanted[name] = patches.apply_hunks(patch, name, wanted.get(name) or self.original(name), rejects)
        written, edited = [], []
        for name, data in sorted(wanted.items()):
            target = self.work / name
            found = target.read_bytes() if target.is_file() else b""
            if found == data:
                pass
            elif force or sha256(found) in (self.files.get(name), sha256(self.original(name))):
                write_if_changed(target, data)
                written.append(name)
            else:
                edited.append(name)
        touched = {name for patch in series for name in patch.hunks}
        self.files = {name: sha256(wanted[name]) for name in sorted(touched)}
        self.save()
        return written, edited

    def edits(self) -> list[str]:
        """Upstream files whose working copy is not pristine and that no patch accounts for; walks the whole source."""
        found = []
        for name, data, _ in Source(Path(self.source), self.identity).files():
            inner = name.removeprefix("llama.cpp/")
            if name.startswith("llama.cpp/") and inner not in self.files:
                target = self.work / inner
                if not target.is_file() or target.read_bytes() != data:
                    found.append(inner)
        return found

    def export(self, name: str, add: list[str], head: dict[str, str], pin: Pin) -> str:
        """Rewrite one patch from what stands in the working tree; every other patch file stays as it is."""
        others = [p for p in patches.load_series() if p.name != name]
        path = PATCHES / f"{name}.patch"
        new_head = patches.load(name).head if path.is_file() else {}
        new_head.update({key: value for key, value in head.items() if value})
        listed = sorted({*new_head.get("Upstream-files", "").split(), *(_relative(a) for a in add)})
        missing = [key for key in ("Description", "Reason", "Kind") if not new_head.get(key)]
        if missing:
            raise UpstreamError(
                f"patch {name}: head lacks {', '.join(missing)}",
                f"export {name} --description '...' --reason '...' --kind {'|'.join(patches.KINDS)}",
            )
        if new_head["Kind"] not in patches.KINDS:
            raise UpstreamError(f"patch {name}: kind {new_head['Kind']!r}, allowed: {', '.join(patches.KINDS)}")
        body, used = "", []
        for file in listed:
            base = self.original(file)
            for other in (p for p in others if file in p.hunks):
                if other.head["Kind"] == new_head["Kind"]:
                    raise UpstreamError(f"{file} belongs to patch {other.name}", "export it there, or move it first")
                base = patches.apply_hunks(other, file, base)
            text = _diff(base, self.work / file, file)
            if text:
                body, used = body + text, [*used, file]
            else:
                print(f"-- {name}: {file} equals upstream, left out", file=sys.stderr)
        new_head["Upstream-files"] = "\n".join(used)
        new_head["Last-verified"] = pin.text()
        write_if_changed(path, (patches.head_text(new_head) + "---\n" + body).encode())
        _list_in_series(name)
        fresh = Tree(self.folder.parent)  # another developer may have exported meanwhile
        fresh.files.update({file: sha256((self.work / file).read_bytes()) for file in used})
        fresh.save()
        added = sum(h.added for hunks in patches.load(name).hunks.values() for h in hunks)
        return f"{path}: {len(used)} files, {added} lines added"


def _relative(name: str) -> str:
    """Accept the path as typed from anywhere: upstream-relative, or with the build folder in front."""
    return name.rpartition("upstream/llama.cpp/")[2].removeprefix("./")


def _list_in_series(name: str) -> None:
    lines = SERIES.read_text().splitlines()
    if name not in lines:
        notes = [line for line in lines if line.startswith("#")]
        names = sorted({name, *(line for line in lines if line and not line.startswith("#"))})
        write_if_changed(SERIES, ("\n".join(notes + names) + "\n").encode())


def _diff(old: bytes, new: Path, name: str) -> str:
    """A unified diff with function names in its hunk heads, which is why git makes it and not difflib."""
    command = ["git", "diff", "--no-index", "--no-color", "--no-ext-diff", "--text", "-U3", "--", "-", str(new)]
    env = dict(os.environ, GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_NOSYSTEM="1")
    result = subprocess.run(command, input=old, stdout=subprocess.PIPE, env=env)
    if result.returncode not in (0, 1):
        raise UpstreamError(f"git diff failed on {name} (exit status {result.returncode})")
    text = result.stdout.decode()
    start = text.find("\n@@ ")
    return "" if start < 0 else f"--- a/{name}\n+++ b/{name}\n{text[start + 1 :]}"


def prepare(build: Path, pin: Pin, given: str | None, series: list[patches.Patch], force: bool) -> Tree:
    """fetch + apply, as CMake and the command line both do it."""
    tree = Tree(build)
    if not given and tree.source and (tree.identity == pin.sha256 or Path(tree.source).is_dir()):
        given = tree.source if Path(tree.source).exists() else None
    tree.fetch(find(pin, given))
    written, edited = tree.apply(series, force)
    if written:
        names = ", ".join(written) if len(written) <= 5 else f"{len(written)} files"
        print(f"-- upstream: patched {names}", flush=True)
    for name in edited:
        print(
            f"-- upstream: {name} was edited in place and is kept as it is; export it, or drop the edit with: "
            f"python3 tools/upstream.py apply --force --build {build}",
            file=sys.stderr,
        )
    return tree
