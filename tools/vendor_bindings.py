#!/usr/bin/env python3
"""Take llama-cpp-python's modules over as the private package ridgefill_cpp._llama_cpp.

usage: vendor_bindings.py UPSTREAM_PACKAGE TARGET

Its modules import each other by the absolute name llama_cpp. Those imports become package-relative, so that a stock
llama-cpp-python in the same environment is neither needed nor touched, and its loader is replaced by ours.
"""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

PACKAGE = "ridgefill_cpp._llama_cpp"
LOADER = """

# ridgefill-cpp: our own libraries only, whatever path the caller computed from its environment
def load_shared_library(lib_base_name, base_path):
    from .._libs import load_library

    return load_library(lib_base_name)
"""


def rewrite(text: str, name: str) -> str:
    """Absolute imports of llama_cpp, statement by statement; a plain `import llama_cpp.x` needs the name it binds."""
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text, name)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and _ours(node.module):
            lines[node.lineno - 1] = lines[node.lineno - 1].replace(
                f"from {node.module}", f"from {_new(node.module)}", 1
            )
        elif isinstance(node, ast.Import) and any(_ours(alias.name) for alias in node.names):
            if len(node.names) != 1:
                raise SystemExit(
                    f"vendor_bindings.py: {name}:{node.lineno}: several modules in one import are not handled"
                )
            alias = node.names[0]
            indent = lines[node.lineno - 1][: node.col_offset]
            new = f"import {_new(alias.name)} as {alias.asname}"
            if alias.asname is None:  # binds the package itself
                new = f"import {PACKAGE} as llama_cpp"
                if "." in alias.name:
                    new = f"import {_new(alias.name)}; {new}"
            lines[node.lineno - 1] = indent + new
    return "\n".join(lines)


def _ours(module: str | None) -> bool:
    return module is not None and (module == "llama_cpp" or module.startswith("llama_cpp."))


def _new(module: str) -> str:
    return PACKAGE + module.removeprefix("llama_cpp")


def check(text: str, name: str) -> None:
    for node in ast.walk(ast.parse(text, name)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        for found in filter(_ours, names):
            raise SystemExit(f"vendor_bindings.py: {name}:{node.lineno}: absolute import of {found} is left")


def main() -> None:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        raise SystemExit(2)
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    wanted: dict[str, str] = {}
    for path in sorted(source.glob("*.py")):
        text = rewrite(path.read_text(encoding="utf-8"), path.name)
        if path.name == "_ctypes_extensions.py":
            text += LOADER
        check(text, path.name)
        wanted[path.name] = text
    for name in ("llama.py", "llama_cpp.py", "_ctypes_extensions.py"):
        if name not in wanted:
            raise SystemExit(
                f"vendor_bindings.py: {source / name} not found; is this llama-cpp-python's package folder?"
            )
    if "def load_shared_library(" not in wanted["_ctypes_extensions.py"].removesuffix(LOADER):
        raise SystemExit("vendor_bindings.py: _ctypes_extensions.py has no load_shared_library to replace")
    wanted["py.typed"] = ""
    wanted["LICENSE.md"] = (source.parent / "LICENSE.llama-cpp-python").read_text(encoding="utf-8")

    target.mkdir(parents=True, exist_ok=True)
    for path in target.iterdir():
        if path.is_file() and path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        path = target / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            part = path.with_suffix(".part")
            part.write_text(text, encoding="utf-8")
            os.replace(part, path)


if __name__ == "__main__":
    main()
