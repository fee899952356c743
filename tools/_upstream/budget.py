"""The touch budget: how many lines of which upstream file each patch adds and removes, held against a tracked table."""

from __future__ import annotations

import argparse
import sys

from . import patch as patches
from .base import PATCHES, UpstreamError, load_pin, write_if_changed
from .tree import Tree

LIMIT = 240
TABLE = PATCHES / "BUDGET.md"


def table(series: list[patches.Patch]) -> tuple[str, int]:
    rows, added, removed = [], 0, 0
    for patch in series:
        for name, hunks in sorted(patch.hunks.items()):
            plus, minus = sum(h.added for h in hunks), sum(h.removed for h in hunks)
            rows.append(f"| {patch.name} | {name} | {plus} | {minus} |")
            added, removed = added + plus, removed + minus
    text = (
        "# Touch budget\n\n"
        f"Lines that our patches add to and remove from upstream; at most {LIMIT} added in all.\n"
        "Written by `python3 tools/upstream.py check --update`; `make lint` fails when it is out of date.\n\n"
        "| patch | upstream file | added | removed |\n|---|---|---:|---:|\n"
        + "".join(f"{row}\n" for row in rows)
        + f"| total | {len(rows)} files | {added} | {removed} |\n"
    )
    return text, added


def run(args: argparse.Namespace) -> int:
    series = patches.load_series()
    pin = load_pin(args.pin)
    names = {patch.name for patch in series}
    for path in sorted(PATCHES.glob("*.patch")):
        if path.stem not in names:
            raise UpstreamError(f"{path.name} is not in llama.cpp/series", "add its name there, or delete the patch")
    owner: dict[tuple[str, str], str] = {}
    for patch in series:
        check_head(patch, pin.text(), owner)
    text, added = table(series)
    if args.update:
        write_if_changed(TABLE, text.encode())
    found = TABLE.read_text() if TABLE.is_file() else ""
    sys.stdout.write(text)
    if found != text:
        raise UpstreamError(
            f"{TABLE.name} does not match the patches", "announce it: python3 tools/upstream.py check --update"
        )
    if added > LIMIT:
        raise UpstreamError(f"patches add {added} lines, allowed: {LIMIT}", "move bodies into our own sources")
    tree = Tree(args.build)
    if tree.identity:
        for name in stray(tree):
            print(f"warning: {name} differs from upstream and no patch says so", file=sys.stderr)
    return 0


def stray(tree: Tree) -> list[str]:
    try:
        return tree.edits()
    except OSError:
        return []  # the source the tree came from is gone; nothing to compare with


def check_head(patch: patches.Patch, verified: str, owner: dict[tuple[str, str], str]) -> None:
    for key in patches.FIELDS:
        if not patch.head.get(key):
            raise UpstreamError(f"patch {patch.name}: head lacks {key}", "see llama.cpp/patches/README.md")
    if patch.head["Kind"] not in patches.KINDS:
        raise UpstreamError(f"patch {patch.name}: kind {patch.head['Kind']!r}, allowed: {', '.join(patches.KINDS)}")
    if patch.head["Last-verified"] != verified:
        raise UpstreamError(
            f"patch {patch.name}: last verified against {patch.head['Last-verified']!r}, the pin is {verified!r}",
            f"python3 tools/upstream.py export {patch.name}",
        )
    if sorted(patch.listed) != sorted(patch.hunks):
        raise UpstreamError(f"patch {patch.name}: its head lists other files than its hunks touch")
    for name in patch.hunks:
        key = (name, patch.head["Kind"])
        if key in owner:
            raise UpstreamError(f"{name} is touched by {owner[key]} and {patch.name}; one patch of a kind per file")
        owner[key] = patch.name
