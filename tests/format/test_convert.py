"""Conversion: what goes in comes out, the same bytes each time, nothing half written, nothing skipped silently."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ridgefill_cpp import int8
from ridgefill_cpp.base import base_of
from ridgefill_cpp.convert import Options, convert
from ridgefill_cpp.errors import RidgefillError, UsageError
from ridgefill_cpp.inspection import prove
from ridgefill_cpp.safetensors_io import write_safetensors
from ridgefill_cpp.sidefile import open_sidefile
from ridgefill_cpp.source import open_source
from toys import LAYERS, SPLIT, N, W, bf16, edit_manifest, folder_tensors, new, rehash, toy_file, toy_folder, toy_model


@pytest.mark.parametrize("form", ["i8", "bf16"])
@pytest.mark.parametrize("encoding", ["i8", "q8_0", "bf16"])
def test_folder_to_sidefile(tmp_path: Path, form: str, encoding: str) -> None:
    folder, out = toy_folder(tmp_path / "ordner mit ü", form), tmp_path / "out.gguf"
    model = toy_model(tmp_path / "model.gguf")
    convert(folder, out, Options(encoding, base=model))
    side = open_sidefile(out, base_of(model))
    header = side.header
    assert (header.split, header.source_width, header.target_width) == (SPLIT, W, N)
    assert header.layers == (2, 3) and header.late_layers == range(3, LAYERS)
    assert header.target == "block_input" and header.head_order == "grouped"
    assert header.credit.author == "A. Example, B. Example"
    assert side.states == (2,) and side.has_score and side.has_final
    tensors = {t.name: next(iter(t.data())) for ts in folder_tensors(form).values() for t in ts}
    assert side.bias(3).tolist() == int8.bf16_to_f32(tensors["proj.3.bias"]).tolist()
    if form == "i8" and encoding != "bf16":
        exact = int8.dequantize(tensors["proj.3.codes"], tensors["proj.3.scale"])
        assert (side.weight(3) == exact).all()
    assert prove(side, open_source(folder)) == len(side.gguf.tensors)


def test_read_by_gguf_package(tmp_path: Path) -> None:
    """Another reader of the format sees the same keys, types, shapes and values."""
    import gguf

    out = tmp_path / "out.gguf"
    convert(toy_folder(tmp_path / "f"), out, Options(base=toy_model(tmp_path / "m.gguf")))
    reader, side = gguf.GGUFReader(out), open_sidefile(out)
    assert reader.get_field("general.architecture").contents() == "ridgefill"
    assert reader.get_field("ridgefill.split").contents() == SPLIT
    assert [t.name for t in reader.tensors] == list(side.gguf.tensors)
    for tensor in reader.tensors:
        assert tensor.tensor_type.name == side.gguf.tensors[tensor.name].type_name
        assert tuple(tensor.shape.tolist()) == side.gguf.tensors[tensor.name].ne
        assert tensor.data.tobytes() == side.gguf.read(tensor.name).tobytes()


def test_same_input_same_bytes(tmp_path: Path) -> None:
    folder = toy_folder(tmp_path / "f")
    for name in ("a.gguf", "b.gguf"):
        convert(folder, tmp_path / name, Options(architecture="qwen4exp"))
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert str(tmp_path).encode() not in (tmp_path / "a.gguf").read_bytes()


def test_without_base_says_what_is_unchecked(tmp_path: Path) -> None:
    warnings = convert(toy_folder(tmp_path / "f"), tmp_path / "o.gguf", Options())
    assert [w.split(":")[0] for w in warnings] == ["base-unchecked"]
    base = open_sidefile(tmp_path / "o.gguf").header.base
    assert (base.architecture, base.block_count, base.vocab_size, base.tokenizer_sha256) == ("qwen4exp", 4, 1024, None)


def test_single_file(tmp_path: Path) -> None:
    path, model = toy_file(tmp_path / "s.safetensors", N, N), toy_model(tmp_path / "m.gguf", "llama")
    warnings = convert(path, tmp_path / "o.gguf", Options(base=model))
    assert [w.split(":")[0] for w in warnings] == ["target-assumed", "int8-error", "int8-error"]
    side = open_sidefile(tmp_path / "o.gguf", base_of(model))
    source = open_source(path)
    codes, scale = int8.quantize(source.weight(3))
    assert (side.weight(3) == int8.dequantize(codes, scale)).all()
    assert (side.bias(3) == source.bias(3)).all()
    assert not convert(path, tmp_path / "p.gguf", Options("bf16", target="layer_input", base=model))
    assert open_sidefile(tmp_path / "p.gguf").header.target == "layer_input"


def test_single_file_needs_an_architecture(tmp_path: Path) -> None:
    path = toy_file(tmp_path / "s.safetensors")
    with pytest.raises(UsageError, match="architecture is not known"):
        convert(path, tmp_path / "o.gguf", Options())
    convert(path, tmp_path / "o.gguf", Options(architecture="llama"))
    assert open_sidefile(tmp_path / "o.gguf").header.source_width == 576  # a short last group


def test_overwrite_needs_force(tmp_path: Path) -> None:
    folder, out = toy_folder(tmp_path / "f"), tmp_path / "o.gguf"
    out.write_text("mine")
    with pytest.raises(RidgefillError) as caught:
        convert(folder, out, Options())
    assert caught.value.code == "output-exists" and out.read_text() == "mine"
    convert(folder, out, Options(force=True))
    open_sidefile(out)


def refused(path: Path, options: Options = Options()) -> RidgefillError:  # noqa: B008
    """The refusal of a conversion, which leaves nothing behind."""
    out = path.parent / "refused.gguf"
    with pytest.raises(RidgefillError) as caught:
        convert(path, out, options)
    assert not list(path.parent.glob("*refused*"))
    return caught.value


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"format": 2}, "manifest-format"),
        ({"format": True}, "manifest-format"),
        ({"split": 0}, "manifest"),
        ({"split": 1}, "manifest"),
        ({"split": "2"}, "manifest"),
        ({"stream_width": 127}, "manifest"),
        ({"stream_width": 256}, "tensor-shape"),
        ({"block_in_width": 32}, "tensor-shape"),
        ({"layers": {"2": "recurrent", "4": "full_attn"}}, "manifest"),
        ({"layers": {"2": "recurrent", "3": "full_attn", "4": "recurrent"}}, "tensor-missing"),
        ({"layers": {"2": "recurrent"}}, "tensor-unknown"),
        ({"layers": []}, "manifest"),
        ({"projector": {"dtype": "i4"}}, "manifest"),
        ({"projector": {"dtype": "bf16"}}, "tensor-missing"),
        ({"projector": 3}, "manifest"),
        ({"files": {}}, "manifest"),
        ({"files": {"../x.safetensors": "0" * 64}}, "file-name"),
        ({"files": {"a/b": "0" * 64}}, "file-name"),
        ({"files": {"..": "0" * 64}}, "file-name"),
        ({"files": {"x.safetensors": "0" * 64}}, "file-missing"),
        ({"files": {"chat_template.jinja": "xyz"}}, "manifest"),
        ({"files": {"chat_template.jinja": "0" * 64}}, "file-hash"),
    ],
)
def test_manifest_refusals(tmp_path: Path, changes: dict, code: str) -> None:
    folder = toy_folder(tmp_path / "f", final=False)
    edit_manifest(folder, **changes)
    assert refused(folder).code == code


def test_folder_refusals(tmp_path: Path) -> None:
    assert refused(tmp_path / "absent").code == "no-file"
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "kva.json").write_text("{}")
    error = refused(tmp_path / "old")
    assert error.code == "manifest-old" and "credit" in error.hint
    for raw in (b"", b"[", b"[]", b"\xff", b'{"format": 1, "format": 1}', b"[" * 5000, b'{"format": NaN}'):
        (tmp_path / "old" / "ridgefill.json").write_bytes(raw)
        assert refused(tmp_path / "old").code == "manifest"


def test_cut_and_changed_files(tmp_path: Path) -> None:
    folder = toy_folder(tmp_path / "f")
    file = folder / "proj8.L3.safetensors"
    good = file.read_bytes()
    for bad in (good[: len(good) // 2], good[:-1], good[:-1] + b"x", b""):
        file.write_bytes(bad)
        assert refused(folder).code == "file-hash" and refused(folder).file.endswith(file.name)
    for bad, code in ((good[: len(good) // 2], "truncated"), (good + b"\0", "tensor-span"), (b"", "not-safetensors")):
        file.write_bytes(bad)
        rehash(folder)
        assert refused(folder).code == code
    file.unlink()
    assert refused(folder).code == "file-missing"
    rehash(folder)
    error = refused(folder)
    assert error.code == "tensor-missing" and "proj.3.codes" in error.item


def test_tensor_refusals(tmp_path: Path) -> None:
    folder = toy_folder(tmp_path / "f")
    files = folder_tensors()
    maps = files["proj8.L3.safetensors"]
    codes, scale, bias = (next(iter(t.data())) for t in maps)

    def rewrite(*tensors: object) -> RidgefillError:
        write_safetensors(folder / "proj8.L3.safetensors", {}, list(tensors), force=True)
        rehash(folder)
        return refused(folder)

    assert rewrite(*maps, new("extra", "F32", np.zeros(2, np.float32))).code == "tensor-unknown"
    assert rewrite(*maps, new("proj.3.weight", "BF16", bf16(np.random.default_rng(0), N, W))).code == "tensor-unknown"
    assert rewrite(*maps, new("proj.2.bias", "BF16", bias)).code == "tensor-twice"
    assert rewrite(*maps[:2], new("proj.3.bias", "F32", np.zeros(N, np.float32))).code == "tensor-type"
    assert rewrite(*maps[:2], new("proj.3.bias", "BF16", np.zeros(N + 1, np.uint16))).code == "tensor-shape"
    assert rewrite(maps[0], maps[1], new("proj.3.bias", "BF16", np.full(N, 0x7FC0, np.uint16))).code == "bias-value"
    for bits in (0, 0x7F80, 0x7FC0, 0xBF80):
        damaged = np.where(np.arange(scale.size).reshape(scale.shape) == 5, np.uint16(bits), scale)
        assert rewrite(maps[0], new("proj.3.scale", "BF16", damaged), maps[2]).code == "scale-value"
    codes[7, 9] = -128
    assert rewrite(new("proj.3.codes", "I8", codes), *maps[1:]).code == "code-value"


def test_small_scales(tmp_path: Path) -> None:
    """Q8_0 cannot hold a bf16 scale of 8 significant bits under 2^-17: refused, never rounded."""
    rng = np.random.default_rng(3)
    tiny = int8.f32_to_bf16(rng.normal(size=(64, 65)).astype(np.float32) * np.float32(1e-4))
    write_safetensors(tmp_path / "s.safetensors", {}, [new("layer.2", "BF16", tiny), new("layer.3", "BF16", tiny)])
    error = refused(tmp_path / "s.safetensors", Options("q8_0", architecture="llama"))
    assert error.code == "scale-f16" and "--type i8" in error.hint
    convert(tmp_path / "s.safetensors", tmp_path / "o.gguf", Options(architecture="llama"))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"qwen4exp__block_count": ("u32", 5)}, "base-meta"),
        ({"qwen4exp__embedding_length": ("u32", 32)}, "base-meta"),
        ({"qwen4exp__hyper_connection__count": ("u32", 4)}, "base-meta"),
        ({"qwen4exp__ssm__inner_size": ("u32", 192)}, "base-meta"),
        ({"qwen4exp__full_attention_interval": ("u32", 2)}, "base-meta"),
        ({"qwen4exp__expert_count": None}, "model-key"),
        ({"tokenizer__ggml__tokens": ("str[]", ["a"])}, "base-meta"),
        ({"general__architecture": ("str", "llama")}, "not-a-model"),
        ({"general__architecture": ("str", "ridgefill")}, "not-a-model"),
    ],
)
def test_other_model(tmp_path: Path, changes: dict, code: str) -> None:
    model = toy_model(tmp_path / "m.gguf", **changes)
    assert refused(toy_folder(tmp_path / "f"), Options(base=model)).code == code


def test_other_architecture(tmp_path: Path) -> None:
    model = toy_model(tmp_path / "m.gguf", "qwen35")
    assert refused(toy_folder(tmp_path / "f"), Options(base=model)).code == "base-architecture"


def test_file_refusals(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "s.safetensors"
    options = Options(architecture="llama")

    def rewrite(*tensors: object) -> str:
        write_safetensors(path, {}, list(tensors), force=True)
        return refused(path, options).code

    good = [new(f"layer.{layer}", "BF16", bf16(rng, 64, 65)) for layer in (2, 3, 4)]
    assert rewrite(good[0], good[2]) == "layer-missing"
    assert rewrite(new("layer.0", "BF16", bf16(rng, 64, 65))) == "layer-missing"
    assert rewrite(*good, new("layer.05", "BF16", bf16(rng, 64, 65))) == "tensor-unknown"
    assert rewrite(new("final", "BF16", bf16(rng, 64, 65))) == "tensor-missing"
    assert rewrite(good[0], new("layer.3", "BF16", bf16(rng, 64, 66))) == "tensor-shape"
    assert rewrite(good[0], new("layer.3", "F32", np.zeros((64, 65), np.float32))) == "tensor-type"
    assert rewrite(new("layer.2", "BF16", np.full((64, 65), 0x7F80, np.uint16))) == "bias-value"
    for raw in (b"", b"<!DOCTYPE html><html>", b"GGUF" + bytes(60), b"\x10" + bytes(7) + b"{}"):
        path.write_bytes(raw)
        assert refused(path, options).code in ("not-safetensors", "truncated", "not-gguf")


def test_side_file_to_side_file(tmp_path: Path) -> None:
    """i8 and q8_0 go over into each other without loss; --base adds the model's keys; bf16 rounds."""
    model = toy_model(tmp_path / "m.gguf")
    convert(toy_folder(tmp_path / "f"), tmp_path / "a.gguf", Options(base=model))
    assert convert(tmp_path / "a.gguf", tmp_path / "q.gguf", Options("q8_0")) == []
    convert(tmp_path / "q.gguf", tmp_path / "b.gguf", Options("i8"))
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert [w.split(":")[0] for w in convert(tmp_path / "a.gguf", tmp_path / "c.gguf", Options("bf16"))] == [
        "bf16-rounded"
    ]
    prove(open_sidefile(tmp_path / "q.gguf", base_of(model)), open_source(tmp_path / "a.gguf"))
    convert(tmp_path / "f", tmp_path / "n.gguf", Options())
    assert open_sidefile(tmp_path / "n.gguf").header.base.tokenizer_sha256 is None
    convert(tmp_path / "n.gguf", tmp_path / "d.gguf", Options(base=model))
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "d.gguf").read_bytes()
    other = toy_model(tmp_path / "o.gguf", qwen4exp__block_count=("u32", 5))
    assert refused(tmp_path / "a.gguf", Options(base=other)).code == "base-layers"
