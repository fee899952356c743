"""The C++ and the Python reader name the same defect of the same damaged file."""

from __future__ import annotations

import random
import struct
import subprocess
from pathlib import Path

from ridgefill_cpp.errors import RidgefillError
from ridgefill_cpp.gguf_types import BF16, F32, I8
from ridgefill_cpp.gguf_writer import Tensor, write_gguf
from ridgefill_cpp.layout import Base, Header
from ridgefill_cpp.sidefile import header_keys, open_sidefile

N_FILES = 3000
ODD = (0, 1, 2, 31, 64, 127, 128, 255, 1 << 16, 0x7FFFFFFF, 1 << 31, (1 << 32) - 1, 1 << 59, 1 << 63, (1 << 64) - 1)


def good(path: Path) -> bytes:
    """A side file of two layers of [64 -> 32], with every optional key."""
    base = Base("llama", 5, 32, 100, "toy", "ab" * 32, "aaaaa")
    header = Header(base, 2, 64, 32, "layer_input", "i8", (3, 4))
    tensors = []
    for layer in (3, 4):
        for part, kind, ne, byte in (
            ("codes", I8, (64, 32), b"\1"),
            ("scale", BF16, (1, 32), b"\x80\x3f"),
            ("bias", F32, (32,), b"\0"),
        ):
            size = Tensor("", kind, ne, list).n_bytes
            data = (byte * size)[:size]
            tensors.append(Tensor(f"blk.{layer}.ridgefill.{part}", kind, ne, lambda data=data: [data]))
    write_gguf(path, header_keys(header), tensors, force=True)
    return path.read_bytes()


def mutate(data: bytes, rng: random.Random) -> bytes:
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2))):
        at = rng.randrange(min(len(raw), 1500) if rng.random() < 0.8 else len(raw))
        match rng.randrange(6):
            case 0:
                raw[at] ^= 1 << rng.randrange(8)
            case 1:
                raw[at] = rng.randrange(256)
            case 2:
                del raw[at : at + rng.randint(1, 16)]
            case 3:
                raw[at:at] = bytes([rng.randrange(256)]) * rng.randint(1, 16)
            case 4:
                del raw[at + 1 :]
            case _:
                value = struct.pack("<Q", rng.choice(ODD))[: rng.choice((4, 8))]
                raw[at : at + len(value)] = value
    return bytes(raw)


def python_code(path: Path) -> str:
    try:
        open_sidefile(path)
        return "ok"
    except RidgefillError as error:
        return error.code


def test_same_codes(program, tmp_path: Path) -> None:
    rng = random.Random(1)
    data = good(tmp_path / "good.gguf")
    paths = []
    for index in range(N_FILES):
        paths.append(tmp_path / f"{index}.gguf")
        paths[-1].write_bytes(mutate(data, rng) if index else data)
    run = subprocess.run(
        [program("ridgefill-test-sidefile"), "--codes"],
        input="".join(f"{path}\n" for path in paths),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = run.stdout.split()
    wanted = [python_code(path) for path in paths]
    assert len(found) == len(paths) and found[0] == wanted[0] == "ok"
    different = [(path.name, a, b) for path, a, b in zip(paths, found, wanted, strict=True) if a != b]
    assert not different, f"{len(different)} of {N_FILES}, such as {different[:8]} (C++, Python)"
    assert len(set(found)) > 12  # the damage is of many kinds
