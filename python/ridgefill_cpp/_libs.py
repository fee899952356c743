"""Where our libraries and programs are, and how they are loaded; knows nothing else.

Both live beside this file: in the wheel as files, in <build>/python as links to the build tree. No environment variable
moves them: LLAMA_CPP_LIB_PATH belongs to stock llama-cpp-python, whose libraries do not know our op.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

PACKAGE = Path(os.path.abspath(__file__)).parent
LIB = PACKAGE / "lib"
BIN = PACKAGE / "bin"


def library_path(name: str) -> Path:
    """The file of one of our libraries, such as "llama", "ggml" or "mtmd"."""
    if sys.platform == "win32":
        file = f"{name}-ridgefill.dll"
    elif sys.platform == "darwin":
        file = f"lib{name}-ridgefill.dylib"
    else:
        file = f"lib{name}-ridgefill.so"
    path = LIB / file
    if not path.is_file():
        raise ImportError(
            f"ridgefill_cpp: library {file} not found in {LIB}\n"
            "hint: make build and set PYTHONPATH to <build>/python, or install the package: pip install ."
        )
    return path


def load_library(name: str) -> ctypes.CDLL:
    path = library_path(name)
    if sys.platform == "win32":
        os.add_dll_directory(str(LIB))
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"ridgefill_cpp: {path} cannot be loaded: {error}") from error


def program_path(name: str) -> Path:
    """One of the packaged programs, such as "llama-server"."""
    return BIN / (f"{name}.exe" if sys.platform == "win32" else name)
