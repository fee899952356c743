"""Console scripts that become the packaged programs: same name, same arguments, same exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NoReturn

from ._libs import program_path


def run(name: str) -> NoReturn:
    path = program_path(name)
    command = [str(path), *sys.argv[1:]]
    try:
        if sys.platform == "win32":  # os.execv returns to the shell at once there
            sys.exit(subprocess.call(command))
        os.execv(path, command)
    except OSError as error:
        print(f"{name}: cannot start {path}: {error.strerror}", file=sys.stderr)
        print("hint: pip install --force-reinstall ridgefill-cpp, or make build in a source tree", file=sys.stderr)
        sys.exit(1)


def llama_server() -> NoReturn:
    run("llama-server")


def llama_cli() -> NoReturn:
    run("llama-cli")


def llama_bench() -> NoReturn:
    run("llama-bench")


def llama_perplexity() -> NoReturn:
    run("llama-perplexity")


def llama_quantize() -> NoReturn:
    run("llama-quantize")
