#!/usr/bin/env python3
"""The pinned upstream and our hook patches: fetch, apply, export, bump, check.

Only the standard library is used, because CMake runs this file before anything is installed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from _upstream import budget, bump, tree
from _upstream.base import PIN, ROOT, UpstreamError, load_pin
from _upstream.patch import KINDS, load_series
from _upstream.source import find


def main() -> int:
    args = parser().parse_args()
    try:
        return int(args.run(args) or 0)
    except UpstreamError as error:
        print(f"upstream.py: {error}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="upstream.py", description=__doc__)
    verbs = top.add_subparsers(required=True, metavar="fetch|apply|export|bump|check")

    def verb(name: str, run, text: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=text, description=text)
        sub.add_argument("--build", type=Path, default=ROOT / "build", help="build folder (default: build)")
        sub.add_argument("--pin", type=Path, default=PIN, help="pin file (default: llama.cpp/PIN)")
        sub.set_defaults(run=run)
        return sub

    source = {"help": "sdist tarball, unpacked sdist or llama.cpp tree instead of the pinned download"}
    verb("fetch", run_fetch, "find or download the pinned sdist and print where it is").add_argument(
        "--source", **source
    )

    sub = verb("apply", run_apply, "unpack upstream into the build folder and apply the series")
    sub.add_argument("--source", **source)
    sub.add_argument("--kind", choices=KINDS, help="apply only the patches of this kind")
    sub.add_argument("--force", action="store_true", help="throw away edits in place that were not exported")

    sub = verb("export", run_export, "rewrite one patch from the edits in <build>/upstream/llama.cpp")
    sub.add_argument("name", help="patch name without .patch, such as 0002-core")
    sub.add_argument(
        "--add", nargs="+", action="extend", default=[], metavar="FILE", help="upstream files that join it"
    )
    sub.add_argument("--description", default="")
    sub.add_argument("--reason", default="", help="why the patch must exist")
    sub.add_argument("--kind", default="", choices=["", *KINDS])

    sub = verb("bump", bump.run, "try the series, the build and the tests against another release")
    sub.add_argument("version", help="release of the pinned package, such as 0.3.37")
    sub.add_argument("--source", help="its sdist, if already at hand")
    sub.add_argument("--write", action="store_true", help="move the pin when everything passes")
    sub.add_argument("--no-build", action="store_true", help="only try the series")

    sub = verb("check", budget.run, "compare the patches with the touch budget and look for stray edits")
    sub.add_argument("--update", action="store_true", help="rewrite the table: announce the change")
    return top


def run_fetch(args: argparse.Namespace) -> None:
    print(find(load_pin(args.pin), args.source).path)


def run_apply(args: argparse.Namespace) -> None:
    series = [patch for patch in load_series() if args.kind in (None, patch.head["Kind"])]
    tree.prepare(args.build, load_pin(args.pin), args.source, series, args.force)


def run_export(args: argparse.Namespace) -> None:
    head = {"Description": args.description, "Reason": args.reason, "Kind": args.kind}
    print(tree.Tree(args.build).export(args.name, args.add, head, load_pin(args.pin)))


if __name__ == "__main__":
    sys.exit(main())
