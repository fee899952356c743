"""The programs of this folder on the real models; ctest runs them on a random one."""

from __future__ import annotations

import subprocess

import pytest


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
@pytest.mark.parametrize("test", ["test-exact", "test-context"])
def test_on(test: str, name: str, request, program) -> None:
    command = [program("ridgefill-" + test), request.getfixturevalue(name)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    print(run.stdout)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
