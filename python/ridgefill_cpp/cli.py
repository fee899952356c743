"""The `ridgefill` command: a table of subcommand modules, each with add_parser(subparsers) and run(args) -> status.

Data goes to stdout, everything else to stderr. Status 0 done, 1 failure, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from .errors import RidgefillError, UsageError

# subcommand -> module of this package, in the order of the help
COMMANDS = {
    "convert": "convert",
    "export": "export",
    "fit": "fit.command",
    "correct": "fit.correct",
    "score": "score",
    "inspect": "inspection",
    "eval": "evaluate",
    "bench": "bench",
}


def build_parser() -> tuple[argparse.ArgumentParser, dict[str, str]]:
    """The parser and the modules behind its subcommands."""
    description = "Make, fit and check RidgeFill side files for llama.cpp."
    parser = argparse.ArgumentParser(prog="ridgefill", description=description)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    modules = {command: f"{__package__}.{module}" for command, module in COMMANDS.items()}
    for name in modules.values():
        importlib.import_module(name).add_parser(subparsers)
    return parser, modules


def version() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("ridgefill-cpp")
    except PackageNotFoundError:
        return "not installed"


def main(argv: Sequence[str] | None = None) -> int:
    parser, modules = build_parser()
    args = parser.parse_args(argv)
    if args.version:
        print(f"ridgefill {version()}")
        return 0
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        return int(importlib.import_module(modules[args.command]).run(args))
    except UsageError as error:
        return _report(str(error), error.hint, 2)
    except RidgefillError as error:
        return _report(str(error), error.hint, 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _report(f"io: {error.filename or ''}: {error.strerror or error}", "", 1)
    except KeyboardInterrupt:
        return _report("interrupted", "", 130)


def _report(message: str, hint: str, status: int) -> int:
    print(f"ridgefill: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
