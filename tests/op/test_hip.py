"""The HIP kernels, compiled for devices that are not here: the intended instructions, no spilled registers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("clang++-19") is None, reason="clang++-19 is not installed")
def test_hip_kernels_use_the_matrix_instructions() -> None:
    result = subprocess.run([ROOT / "tools" / "check_hip.sh"], capture_output=True, text=True)
    if "hip/hip_runtime.h" in result.stderr:
        pytest.skip("the HIP headers are not installed (Debian: libamdhip64-dev)")
    assert result.returncode == 0, result.stdout + result.stderr
    for device in ("gfx1201", "gfx1100", "gfx1030", "gfx942"):
        assert result.stdout.count(device) >= 9


def test_the_check_sees_a_missing_instruction(tmp_path: Path) -> None:
    """A compiler that leaves the matrix instructions out must not pass."""
    fake = tmp_path / "clang"
    fake.write_text(
        "#!/bin/sh\n"
        'while [ "$1" != -o ]; do shift; done\n'
        'printf "%s\\n" "_ZL21ridgefill_tile_kernelILi64ELi32ELi16ELi16EEv1x:" "\tv_add_f32 v0, v1, v2" '
        '"; NumVgprs: 10" "; ScratchSize: 0" "; Occupancy: 16" > "$2"\n'
    )
    fake.chmod(0o755)
    result = subprocess.run([ROOT / "tools" / "check_hip.sh", fake], capture_output=True, text=True)
    assert result.returncode == 1
    assert "FAIL" in result.stdout
