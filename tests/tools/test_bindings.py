"""The classes of llama-cpp-python as a private package: no absolute import left, and what binds which name is kept."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import vendor_bindings

P = vendor_bindings.PACKAGE


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("import llama_cpp", f"import {P} as llama_cpp"),
        ("import llama_cpp.llama", f"import {P}.llama; import {P} as llama_cpp"),
        ("import llama_cpp.llama_cpp as llama_cpp", f"import {P}.llama_cpp as llama_cpp"),
        ("from llama_cpp import x", f"from {P} import x"),
        ("from llama_cpp.llama import x", f"from {P}.llama import x"),
        (
            "from llama_cpp._ctypes_extensions import (\n    a,\n    b,\n)",
            f"from {P}._ctypes_extensions import (\n    a,\n    b,\n)",
        ),
        ("import llama_cpp_other", "import llama_cpp_other"),
        ("from .llama_cpp import *", "from .llama_cpp import *"),
        ("text = 'import llama_cpp'", "text = 'import llama_cpp'"),
        ("def f():\n    import llama_cpp.mtmd_cpp as m", f"def f():\n    import {P}.mtmd_cpp as m"),
    ],
)
def test_rewrite(line: str, expected: str) -> None:
    assert vendor_bindings.rewrite(line, "x.py") == expected
    vendor_bindings.check(expected, "x.py")


def test_what_is_left_is_refused() -> None:
    with pytest.raises(SystemExit, match="absolute import of llama_cpp is left"):
        vendor_bindings.check("import llama_cpp", "x.py")


def test_the_built_package_has_no_absolute_import(build: Path) -> None:
    files = sorted((build / "python" / "ridgefill_cpp" / "_llama_cpp").glob("*.py"))
    assert len(files) >= 14
    for path in files:
        vendor_bindings.check(path.read_text(encoding="utf-8"), path.name)
        ast.parse(path.read_text(encoding="utf-8"))
