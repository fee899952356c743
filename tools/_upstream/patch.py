"""A patch: its head, its hunks, and how they meet a file. Strict: every context line must match, nowhere twice."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from .base import PATCHES, SERIES, UpstreamError

FIELDS = ("Description", "Reason", "Kind", "Upstream-files", "Last-verified")
KINDS = ("hook", "portability")
HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass
class Hunk:
    start: int  # first old line, counted from 0
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    added: int = 0
    removed: int = 0


@dataclass
class Patch:
    name: str
    head: dict[str, str]
    hunks: dict[str, list[Hunk]]

    @property
    def path(self) -> Path:
        return PATCHES / f"{self.name}.patch"

    @property
    def listed(self) -> list[str]:
        return self.head.get("Upstream-files", "").split()


def load_series() -> list[Patch]:
    names = [line.strip() for line in SERIES.read_text().splitlines()]
    return [load(name) for name in names if name and not name.startswith("#")]


def load(name: str) -> Patch:
    path = PATCHES / f"{name}.patch"
    if not path.is_file():
        raise UpstreamError(f"series names {name}, but {path} does not exist", "remove the line, or add the patch")
    head_text, _, body = path.read_text().partition("\n---\n")
    patch = Patch(name, _parse_head(head_text), {})
    current: list[Hunk] = []
    hunk: Hunk | None = None
    left_old = left_new = 0
    for number, line in enumerate(body.split("\n"), start=head_text.count("\n") + 3):
        if hunk is not None and (left_old > 0 or left_new > 0):
            tag, text = line[:1] or " ", line[1:]
            if tag in " -":
                hunk.old.append(text)
                left_old -= 1
            if tag in " +":
                hunk.new.append(text)
                left_new -= 1
            hunk.added += tag == "+"
            hunk.removed += tag == "-"
            if tag not in " -+" or left_old < 0 or left_new < 0:
                raise UpstreamError(f"{path}:{number}: {line[:60]!r} does not fit the counts of its hunk")
        elif line.startswith("+++ "):
            current = patch.hunks.setdefault(line[4:].split("\t")[0].removeprefix("b/"), [])
        elif match := HUNK.match(line):
            left_old = int(match[2] or 1)
            left_new = int(match[4] or 1)
            hunk = Hunk(int(match[1]) - (1 if left_old else 0))
            current.append(hunk)
    if left_old > 0 or left_new > 0:
        raise UpstreamError(
            f"{path}: the last hunk is cut short", "export it again: python3 tools/upstream.py export " + name
        )
    return patch


def _parse_head(text: str) -> dict[str, str]:
    head: dict[str, str] = {}
    key = ""
    for line in text.split("\n"):
        if line.startswith(" ") and key:
            head[key] += "\n" + line.strip()
        elif ":" in line:
            key, _, value = line.partition(":")
            head[key] = value.strip()
    return head


def head_text(head: dict[str, str]) -> str:
    return "".join(f"{key}: " + "\n ".join(head.get(key, "").split("\n")) + "\n" for key in FIELDS)


def apply_hunks(patch: Patch, name: str, data: bytes, rejects: list[UpstreamError] | None = None) -> bytes:
    """The file after this patch's hunks. A hunk may have moved, but only to one place that matches in full.

    With `rejects`, hunks that do not fit are put there and left out, so that a bump can show all of them at once.
    """
    lines = data.decode().split("\n")
    shift = 0
    for index, hunk in enumerate(patch.hunks[name], start=1):
        place = hunk.start + shift
        size = len(hunk.old)
        if lines[place : place + size] != hunk.old:
            found = [i for i in range(len(lines) - size + 1) if lines[i : i + size] == hunk.old]
            if len(found) != 1:
                cause = (
                    "its context is gone: upstream changed these lines"
                    if not found
                    else (f"its context now stands in {len(found)} places")
                )
                error = UpstreamError(
                    f"patch {patch.name}, {name}, hunk {index} of {len(patch.hunks[name])} (line {hunk.start + 1}): "
                    + cause,
                    f"edit <build>/upstream/llama.cpp/{name}, then: python3 tools/upstream.py export {patch.name}",
                )
                if rejects is None:
                    raise error
                rejects.append(error)
                continue
            place = found[0]
        lines[place : place + size] = hunk.new
        shift = place - hunk.start + len(hunk.new) - size
    return "\n".join(lines).encode()
