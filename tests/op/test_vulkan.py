"""The Vulkan backend of the op on whatever devices are here (at least llvmpipe), under the validation layers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# one level deep like build/, so that relative paths, and with them the compiler cache, agree
VULKAN = ROOT / "build-vulkan"
LAYER = "VK_LAYER_KHRONOS_validation"


@pytest.fixture(scope="session")
def program() -> Path:
    """The op test with upstream's Vulkan backend and, so that this takes a minute, none of upstream's own shaders."""
    if shutil.which("glslc") is None or not Path("/usr/include/vulkan/vulkan.hpp").is_file():
        pytest.skip("no glslc or no Vulkan headers (Debian: tools/setup_vulkan.sh as root)")
    target = "ridgefill-test-backend-ridgefill"
    glslc = ROOT / "tools" / "glslc_own.sh"
    configure = ["cmake", "-G", "Ninja", "-S", ROOT, "-B", VULKAN, "-DGGML_VULKAN=ON"]
    configure += [f"-DVulkan_GLSLC_EXECUTABLE={glslc}", f"-DPython3_EXECUTABLE={sys.executable}"]
    for command in (configure, ["cmake", "--build", VULKAN, "--target", target]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return VULKAN / "bin" / target


def run(program: Path, *arguments: str, **variables: str) -> str:
    """The program's output; device 0 is named because upstream leaves out software devices otherwise."""
    env = dict(os.environ, GGML_VK_VISIBLE_DEVICES="0", VK_INSTANCE_LAYERS=LAYER, VK_LOADER_DEBUG="layer", **variables)
    done = subprocess.run([program, *arguments, "-b", "Vulkan0"], env=env, capture_output=True, text=True)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text[-4000:]
    assert f'Insert instance layer "{LAYER}"' in text, "the validation layers are not there"
    assert "Validation Error" not in text and "VUID-" not in text, text[-4000:]
    return text


@pytest.mark.parametrize(
    ("variant", "variables"),
    [
        ("plain", {}),
        ("plain", {"GGML_VK_DISABLE_F16": "1"}),
        ("dot", {}),  # spelled out where the compiler has no integer dot product (Debian 12)
        ("coopmat", {}),
        ("coopmat-fp16", {}),
    ],
)
def test_variant(program: Path, variant: str, variables: dict[str, str]) -> None:
    devices = run(program, "support")
    if variant.startswith("coopmat") and "matrix cores: KHR_coopmat" not in devices:
        pytest.skip("no cooperative matrices here (llvmpipe has them from Mesa 26, glslc from Debian 13)")
    text = run(program, GGML_RIDGEFILL_VULKAN=variant, **variables)
    shaders = set(re.findall(r"ridgefill: (\w+) multiplies", text))
    wanted = {
        "plain": {"ridgefill_mul_fp32"} if variables else {"ridgefill_mul"},
        "dot": {"ridgefill_mul_int_dot"} if has_integer_dot() else {"ridgefill_mul_int"},
        "coopmat": {"ridgefill_mul_int8_cm1"},
        "coopmat-fp16": {"ridgefill_mul_cm1"},
    }
    assert shaders == wanted[variant]
    assert re.search(r"Vulkan0: [1-9]\d* passed, 0 failed, 0 not supported", text), text[-4000:]


def test_several_shapes(program: Path) -> None:
    """Graphs of other ops by turns, whose buffers come and go; what upstream's shaders compute does not matter."""
    text = run(program, "perf", "-s", "64x64,128x64,64x128", "-r", "1,32", "--time", "0.01")
    assert len(re.findall(r"^ +\d+ +\d+ +\d+ \|", text, re.MULTILINE)) == 6, text[-4000:]


def has_integer_dot() -> bool:
    """Whether glslc knows the extension: then the shader that needs it is there."""
    return (VULKAN / "llama.cpp/ggml/src/ggml-vulkan/vulkan-shaders.spv/ridgefill_mul_int_dot.spv").is_file()
