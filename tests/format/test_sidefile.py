"""Reading side files: every refusal of docs/format.md, each from a file damaged in one place."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ridgefill_cpp.base import base_of, tokenizer_sha256
from ridgefill_cpp.convert import Options, convert
from ridgefill_cpp.errors import RidgefillError
from ridgefill_cpp.gguf_reader import read_gguf
from ridgefill_cpp.gguf_types import BF16, F32, I8
from ridgefill_cpp.gguf_writer import Key, Tensor, write_gguf
from ridgefill_cpp.layout import Base, Credit, Fit, Header
from ridgefill_cpp.sidefile import header_keys, open_sidefile, write_sidefile
from toys import toy_folder, toy_model

FORMAT = Path(__file__).resolve().parents[2] / "docs" / "format.md"
BASE = Base("llama", 5, 160, 100, "toy", "ab" * 32, "aaarr")
HEADER = Header(BASE, 2, 160, 160, "layer_input", "i8", (3, 4))


def zeros(name: str, kind: int, *ne: int, fill: bytes = b"\1") -> Tensor:
    tensor = Tensor(name, kind, ne, list)
    return replace(tensor, data=lambda: [(fill * tensor.n_bytes)[: tensor.n_bytes]])


def maps(layer: int) -> list[Tensor]:
    prefix = f"blk.{layer}.ridgefill."
    return [
        zeros(prefix + "codes", I8, 160, 160),
        zeros(prefix + "scale", BF16, 2, 160, fill=b"\x80\x3f"),
        zeros(prefix + "bias", F32, 160, fill=b"\0"),
    ]


def write(path: Path, keys: dict[str, tuple[str, object] | None] = {}, tensors: list[Tensor] | None = None) -> Path:  # noqa: B006
    """A good side file but for `keys` (None drops one) and `tensors`."""
    table = {key.name: key for key in header_keys(HEADER)}
    table |= {name: Key(name, *value) for name, value in keys.items() if value is not None}
    kept = [key for name, key in table.items() if keys.get(name, ()) is not None]
    write_gguf(path, kept, [*maps(3), *maps(4)] if tensors is None else tensors, force=True)
    return path


def refusal(path: Path, base: Base | None = BASE) -> RidgefillError:
    with pytest.raises(RidgefillError) as caught:
        open_sidefile(path, base)
    error = caught.value
    assert str(error).startswith(f"{error.code}: {path}") and ": found " in str(error) and ", allowed " in str(error)
    assert f"`{error.code}`" in FORMAT.read_text(), "an undocumented code"
    return error


def test_good(tmp_path: Path) -> None:
    side = open_sidefile(write(tmp_path / "s.gguf"), BASE)
    assert side.header == HEADER and side.warnings == []
    assert (side.weight(3) == 1).all() and (side.bias(4) == 0).all()
    (tmp_path / "s.gguf").write_bytes((tmp_path / "s.gguf").read_bytes() + bytes(100))
    open_sidefile(tmp_path / "s.gguf", BASE)  # padding at the end is no defect


def test_optional_map_of_the_split_layer(tmp_path: Path) -> None:
    side = open_sidefile(write(tmp_path / "s.gguf", tensors=[*maps(2), *maps(3), *maps(4)]), BASE)
    assert side.header.layers == (2, 3, 4)


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({"general.architecture": ("str", "llama")}, "not-ridgefill"),
        ({"general.architecture": None}, "not-ridgefill"),
        ({"general.architecture": ("u32", 1)}, "not-ridgefill"),
        ({"ridgefill.version": ("u32", 2)}, "version"),
        ({"ridgefill.version": None}, "key-missing"),
        ({"ridgefill.version": ("str", "1")}, "key-type"),
        ({"ridgefill.encoding": ("str", "q4_0")}, "encoding"),
        ({"ridgefill.target": ("str", "kv")}, "target"),
        ({"ridgefill.target": None}, "key-missing"),
        ({"ridgefill.group_size": ("u32", 64)}, "group-size"),
        ({"ridgefill.base.architecture": ("str", "qwen3")}, "base-architecture"),
        ({"ridgefill.base.block_count": ("u32", 6)}, "base-layers"),
        ({"ridgefill.base.block_count": ("u32", 513)}, "base-layers"),
        ({"ridgefill.base.block_count": ("u32", 0)}, "base-layers"),
        ({"ridgefill.base.embedding_length": ("u32", 192)}, "base-width"),
        ({"ridgefill.base.embedding_length": ("u32", 0)}, "base-width"),
        ({"ridgefill.base.vocab_size": ("u32", 101)}, "base-vocab"),
        ({"ridgefill.base.tokenizer_sha256": ("str", "cd" * 32)}, "tokenizer"),
        ({"ridgefill.base.tokenizer_sha256": ("str", "ab")}, "tokenizer"),
        ({"ridgefill.base.layer_kinds": ("str", "aaara")}, "layer-kinds"),
        ({"ridgefill.split": ("u32", 0)}, "split-range"),
        ({"ridgefill.split": ("u32", 5)}, "split-range"),
        ({"ridgefill.split": ("u32", 600)}, "split-range"),
        ({"ridgefill.split": ("u32", 0xFFFFFFFF)}, "split-range"),
        ({"ridgefill.split": ("f32", 2.0)}, "key-type"),
        ({"ridgefill.split": ("u32", 1)}, "layer-missing"),
        ({"ridgefill.split": ("u32", 4)}, "layer-range"),
        ({"ridgefill.source_width": ("u32", 96)}, "source-width"),
        ({"ridgefill.source_width": ("u32", 161)}, "source-width"),
        ({"ridgefill.source_width": ("u64", 1 << 62)}, "source-width"),
        ({"ridgefill.source_width": ("u32", 320)}, "tensor-shape"),
        ({"ridgefill.target_width": ("u32", 0)}, "target-width"),
        ({"ridgefill.target_width": ("u32", 128)}, "tensor-shape"),
        ({"ridgefill.encoding": ("str", "bf16")}, "tensor-unknown"),
        ({"general.alignment": ("u32", 0)}, "header"),
        ({"general.alignment": ("u32", 3)}, "header"),
        ({"general.alignment": ("u32", 1 << 31)}, "header"),
        ({"general.alignment": ("str", "32")}, "header"),
        ({"general.name": ("u32", 1)}, "key-type"),
        ({"ridgefill.fit.lambda": ("u32[]", [1])}, "key-type"),
    ],
)
def test_keys(tmp_path: Path, keys: dict, code: str) -> None:
    assert refusal(write(tmp_path / "s.gguf", keys)).code == code


B3 = "blk.3.ridgefill."


@pytest.mark.parametrize(
    ("tensors", "code"),
    [
        ([], "layer-missing"),
        (maps(3), "layer-missing"),
        (maps(3) + maps(4)[:2], "tensor-missing"),
        (maps(3)[:1] + maps(3)[2:] + maps(4), "tensor-missing"),
        (maps(3) + maps(4) + maps(5), "layer-range"),
        (maps(1) + maps(3) + maps(4), "layer-range"),
        (maps(3) + maps(4) + maps(600), "layer-range"),
        (maps(3) + maps(3) + maps(4), "layer-twice"),
        ([*maps(3), *maps(4), zeros("blk.05.ridgefill.bias", F32, 160)], "tensor-unknown"),
        ([*maps(3), *maps(4), zeros("blk.-1.ridgefill.bias", F32, 160)], "tensor-unknown"),
        ([*maps(3), *maps(4), zeros("token_embd.weight", F32, 160)], "tensor-unknown"),
        ([*maps(3), *maps(4), zeros(B3 + "weight", BF16, 160, 160)], "tensor-unknown"),
        ([zeros(B3 + "codes", I8, 160, 159), *maps(3)[1:], *maps(4)], "tensor-shape"),
        ([zeros(B3 + "codes", I8, 159, 160), *maps(3)[1:], *maps(4)], "tensor-shape"),
        ([zeros(B3 + "codes", I8, 160 * 160), *maps(3)[1:], *maps(4)], "tensor-shape"),
        ([zeros(B3 + "codes", F32, 160, 160), *maps(3)[1:], *maps(4)], "tensor-type"),
        ([zeros(B3 + "codes", I8, 160, 160, fill=b"\x80"), *maps(3)[1:], *maps(4)], "code-value"),
        ([maps(3)[0], zeros(B3 + "scale", BF16, 1, 160), maps(3)[2], *maps(4)], "tensor-shape"),
        ([maps(3)[0], zeros(B3 + "scale", BF16, 2, 160, fill=b"\0"), maps(3)[2], *maps(4)], "scale-value"),
        ([maps(3)[0], zeros(B3 + "scale", BF16, 2, 160, fill=b"\xc0\x7f"), maps(3)[2], *maps(4)], "scale-value"),
        ([maps(3)[0], zeros(B3 + "scale", BF16, 2, 160, fill=b"\x80\x7f"), maps(3)[2], *maps(4)], "scale-value"),
        ([maps(3)[0], zeros(B3 + "scale", BF16, 2, 160, fill=b"\x80\xbf"), maps(3)[2], *maps(4)], "scale-value"),
        ([*maps(3)[:2], zeros(B3 + "bias", F32, 160, fill=b"\0\0\xc0\x7f"), *maps(4)], "bias-value"),
        ([*maps(3)[:2], zeros(B3 + "bias", F32, 160, fill=b"\0\0\x80\xff"), *maps(4)], "bias-value"),
        ([*maps(3), *maps(4), zeros(B3 + "state", F32, 4, 4, 2)], "key-missing"),
        ([*maps(3), *maps(4), zeros("ridgefill.score", F32, 99)], "tensor-shape"),
        ([*maps(3), *maps(4), zeros("ridgefill.score", F32, 100, fill=b"\0\0\xc0\x7f")], "score-value"),
        ([*maps(3), *maps(4), zeros("ridgefill.final.bias", F32, 160)], "tensor-missing"),
    ],
)
def test_tensors(tmp_path: Path, tensors: list[Tensor], code: str) -> None:
    assert refusal(write(tmp_path / "s.gguf", tensors=tensors)).code == code


def test_state_order(tmp_path: Path) -> None:
    tensors = [*maps(3), *maps(4), zeros(B3 + "state", F32, 4, 4, 2)]
    keys = {"ridgefill.state.head_order": ("str", "mixed")}
    assert refusal(write(tmp_path / "s.gguf", keys, tensors)).code == "state-order"
    keys = {"ridgefill.state.head_order": ("str", "tiled")}
    assert open_sidefile(write(tmp_path / "s.gguf", keys, tensors)).states == (3,)
    bad = [*tensors[:-1], zeros(B3 + "state", F32, 4, 4, 2, fill=b"\0\0\x80\x7f")]
    assert refusal(write(tmp_path / "s.gguf", keys, bad)).code == "state-value"
    kinds = {**keys, "ridgefill.base.layer_kinds": ("str", "aaaaa")}
    assert refusal(write(tmp_path / "s.gguf", kinds, tensors), None).code == "state-layer"
    other = [*tensors, zeros("blk.4.ridgefill.state", F32, 4, 4, 3)]
    assert refusal(write(tmp_path / "s.gguf", keys, other)).code == "tensor-shape"


def test_split_at_the_ngram_layer(tmp_path: Path) -> None:
    assert refusal(write(tmp_path / "s.gguf"), replace(BASE, min_split=3)).code == "split-ngram"


def test_warnings(tmp_path: Path) -> None:
    drop = {"ridgefill.base.tokenizer_sha256": None, "ridgefill.base.vocab_size": None}
    drop |= {"ridgefill.base.layer_kinds": None, "ridgefill.base.name": ("str", "another\x1b[31m")}
    side = open_sidefile(write(tmp_path / "s.gguf", drop), BASE)
    assert [w.split(":")[0] for w in side.warnings] == [
        "base-name",
        "tokenizer-unchecked",
        "vocab-unchecked",
        "kinds-unchecked",
    ]
    assert all(w.isprintable() for w in side.warnings)


def test_cut_files(tmp_path: Path) -> None:
    good = write(tmp_path / "s.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    assert len(good) % 32 == 0
    for length in (len(good) // 2, len(good) - 1, len(good) * 99 // 100, 24, 23, 5, 200):
        cut.write_bytes(good[:length])
        assert refusal(cut).code == "truncated", length
    for raw, code in (
        (b"", "not-gguf"),
        (b"GGU", "not-gguf"),
        (b"<!DOCTYPE html>" * 50, "not-gguf"),
        (b"GGUF", "truncated"),
    ):
        cut.write_bytes(raw)
        assert refusal(cut).code == code
    assert refusal(tmp_path).code == "no-file"
    assert refusal(tmp_path / "absent.gguf").code == "no-file"


def test_other_gguf(tmp_path: Path) -> None:
    assert refusal(toy_model(tmp_path / "model.gguf", "llama")).code == "not-ridgefill"
    write_gguf(
        tmp_path / "lora.gguf", [Key("general.type", "str", "adapter"), Key("general.architecture", "str", "llama")], []
    )
    assert refusal(tmp_path / "lora.gguf").code == "not-ridgefill"


def patched(tmp_path: Path, find: bytes, skip: int, new: bytes) -> Path:
    """A good file with `new` written `skip` bytes after the first occurrence of `find`."""
    raw = bytearray(write(tmp_path / "s.gguf").read_bytes())
    at = raw.index(find) + len(find) + skip
    raw[at : at + len(new)] = new
    (tmp_path / "s.gguf").write_bytes(raw)
    return tmp_path / "s.gguf"


U64 = struct.Struct("<Q").pack
U32 = struct.Struct("<I").pack
CODES = b"blk.3.ridgefill.codes"


@pytest.mark.parametrize(
    ("find", "skip", "new", "code"),
    [
        (b"GGUF", 0, U32(2), "not-gguf"),
        (b"GGUF", 0, b"\0\0\0\3", "not-gguf"),
        (b"GGUF", 4, U64(1 << 40), "header"),
        (b"GGUF", 4, U64(4000), "header"),
        (b"GGUF", 12, U64(1 << 63), "header"),
        (b"GGUF", 12, U64(1000), "header"),
        (b"GGUF", 20, U64(1 << 62), "header"),
        (b"GGUF", 20, U64(1 << 20), "truncated"),
        (b"general.architecture", 0, U32(13), "header"),
        (b"general.architecture", 0, U32(9) + U32(9), "header"),
        (b"general.architecture", 0, U32(9) + U32(8) + U64(1 << 60), "truncated"),
        (b"general.architecture", 0, U32(9) + U32(4) + U64(1 << 61), "truncated"),
        (b"ridgefill.group_size", 0, U32(7), "header"),
        (b"ridgefill.group_size", 0, U32(6), "key-type"),
        (CODES, 0, U32(0), "header"),
        (CODES, 0, U32(5), "header"),
        (CODES, 4, U64(0), "header"),
        (CODES, 4, U64(1 << 62) + U64(4), "header"),
        (CODES, 4, U64(1 << 40) + U64(1 << 40), "header"),
        (CODES, 4, U64(1 << 30) + U64(1 << 20), "truncated"),
        (CODES, 20, U32(8), "tensor-span"),
        (CODES, 20, U32(99), "tensor-type"),
        (CODES, 24, U64(32), "tensor-span"),
        (CODES, 24, U64(1 << 63), "tensor-span"),
        (CODES[:4], 0, b"\n", "header"),
        (CODES[:4], 0, b"\x80", "header"),
    ],
)
def test_header_bytes(tmp_path: Path, find: bytes, skip: int, new: bytes, code: str) -> None:
    error = refusal(patched(tmp_path, find, skip, new))
    assert error.code == code and str(error).isprintable()


def test_key_twice(tmp_path: Path) -> None:
    write_gguf(tmp_path / "s.gguf", [Key("a", "u32", 1), Key("a", "u32", 1)], [])
    assert refusal(tmp_path / "s.gguf").code == "header"


def test_changed_after_open(tmp_path: Path) -> None:
    side = open_sidefile(write(tmp_path / "s.gguf"))
    (tmp_path / "s.gguf").write_bytes(b"x")
    with pytest.raises(RidgefillError):
        side.weight(3)


def test_every_code_is_tested() -> None:
    """The table of docs/format.md and the codes in this folder's tests name the same refusals."""
    table = FORMAT.read_text().split("## Errors")[1].split("Checks against the model")[0]
    documented = {
        code for line in re.findall(r"^\|(.*?)\|", table, re.M) for code in re.findall("`([a-z0-9-]+)`", line)
    }
    tests = Path(__file__).parent
    used = set(re.findall(r'"([a-z0-9]+(?:-[a-z0-9]+)*)"', "".join(p.read_text() for p in tests.glob("test_*.py"))))
    assert documented <= used | {"weight-value"}, documented - used


def test_base_of(tmp_path: Path) -> None:
    model = toy_model(tmp_path / "m.gguf", "llama", llama__nextn_predict_layers=("u32", 1))
    texts = [b"t%d" % i for i in range(1023)] + [b""]
    assert base_of(model) == Base("llama", 3, 64, 1024, "toy-next", tokenizer_sha256(texts), "rrr")
    assert tokenizer_sha256([b"a", b""]) == tokenizer_sha256([b"a", b"[EMPTY_1]"])
    folder = toy_folder(tmp_path / "f")
    convert(folder, tmp_path / "s.gguf", Options(architecture="qwen4exp"))
    with pytest.raises(RidgefillError) as caught:
        base_of(tmp_path / "s.gguf")
    assert caught.value.code == "not-a-model"


def test_writer_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail() -> list[bytes]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_sidefile(tmp_path / "s.gguf", HEADER, [replace(maps(3)[0], data=fail)])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError, match="bytes given"):
        write_sidefile(tmp_path / "s.gguf", HEADER, [replace(maps(3)[0], data=lambda: [b"x"])])
    assert list(tmp_path.iterdir()) == []


def test_reads_models(tmp_path: Path) -> None:
    tokens = np.array([b"x"] * 70000)
    keys = [Key("general.architecture", "str", "llama"), Key("t", "str[]", tokens.tolist()), Key("f", "f32[]", [0.5])]
    write_gguf(tmp_path / "m.gguf", keys, [zeros("w.weight", F32, 8, 4)])
    model = read_gguf(tmp_path / "m.gguf", model=True)
    assert len(model.keys["t"].data) == 70000 and model.keys["f"].data.tolist() == [0.5]
    assert model.tensors["w.weight"].ne == (8, 4)


def test_every_key_is_documented() -> None:
    """The keys that the writer can write are those of docs/format.md."""
    fit = Fit(1, 1, (3,), (0.1,), (0.1,), (0.1,), (0.1,), "ab" * 32, 1, 1, "zero", 1, 1, 0.5, "bf16")
    credit = Credit("a", "b", "c", "d")
    full = replace(
        HEADER, fit=fit, credit=credit, head_order="tiled", anchors=("a b",), encodings=("a b",), manifest="{}"
    )
    written = {key.name for key in header_keys(full)}
    table = FORMAT.read_text().split("## Keys")[1].split("## Tensors")[0]
    documented = {key for line in re.findall(r"^\|(.*?)\|", table, re.M) for key in re.findall("`([a-z0-9_.]+)`", line)}
    assert written == documented


def test_every_code_is_documented() -> None:
    """Codes in the sources are in docs/format.md."""
    package = Path(__file__).resolve().parents[2] / "python" / "ridgefill_cpp"
    text = "".join(path.read_text() for path in [*package.glob("*.py"), *package.glob("fit/*.py")])
    raised = set(re.findall(r'(?:RidgefillError|self\.fail|self\.bad)\(\s*"([a-z0-9-]+)"', text))
    warned = set(re.findall(r'f?"([a-z0-9]+(?:-[a-z0-9]+)+): ', text))
    documented = set(re.findall(r"`([a-z0-9-]+)`", FORMAT.read_text()))
    assert len(raised) > 30 and raised | warned <= documented, (raised | warned) - documented
