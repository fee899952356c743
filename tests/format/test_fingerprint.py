"""Fingerprints of the base model: written, compared, refused or warned of; the published vocabulary hash."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ridgefill_cpp.anchors import anchors, encodings, layer_kinds
from ridgefill_cpp.base import base_of, published_vocab_of, published_vocab_sha256
from ridgefill_cpp.convert import Options, convert
from ridgefill_cpp.errors import RidgefillError
from ridgefill_cpp.gguf_reader import GgufFile, read_gguf
from ridgefill_cpp.gguf_types import BF16, F32, Q8_0
from ridgefill_cpp.gguf_writer import Key, Tensor, write_gguf
from ridgefill_cpp.sidefile import open_sidefile
from toys import VOCAB, edit_manifest, toy_folder, toy_model


def with_tensors(path: Path, norm: float = 1.0, kind: int = Q8_0) -> Path:
    """The toy model with norms and weights in all four layers."""
    plain = read_gguf(toy_model(path), model=True)
    forms = {"string": "str", "int": "u32", "strings": "str[]"}
    keys = [Key(name, forms[value.kind], value.data) for name, value in plain.keys.items()]
    tensors = []
    for layer in range(4):
        gain = np.full(64, norm + layer, np.float32)
        tensors.append(Tensor(f"blk.{layer}.hc_attn_norm.weight", F32, (64,), lambda gain=gain: [gain]))
        for name, form in (("attn_q", kind), ("ffn_gate_exps", kind), ("ssm_conv1d", BF16)):
            tensor = Tensor(f"blk.{layer}.{name}.weight", form, (64, 2), list)
            tensors.append(replace(tensor, data=lambda n=tensor.n_bytes: [bytes(n)]))
    write_gguf(path, keys, tensors, force=True)
    return path


def test_published_vocabulary_vector() -> None:
    digest = published_vocab_sha256([b"tok_a", b"tok_b", b""], [1, 1, 3], [(0, 1)])
    assert digest == "3988fb447f719ad3fc2c75e5a0fa3daeb2b6a5e10e964744619d1dfbc6e95ff6"


def test_published_vocabulary_of_a_model(tmp_path: Path) -> None:
    """Equal hashes say that the vocabulary is checked; unequal ones say nothing, so it is unchecked, not refused."""
    extra = {
        "tokenizer__ggml__token_type": ("u32[]", [1] * VOCAB),
        "tokenizer__ggml__merges": ("str[]", ["t0 t1", "t2 t3"]),
    }
    model = toy_model(tmp_path / "m.gguf", **extra)
    digest = published_vocab_of(read_gguf(model, model=True))
    assert digest is not None and published_vocab_of(read_gguf(toy_model(tmp_path / "n.gguf"), model=True)) is None
    folder = toy_folder(tmp_path / "f")
    assert any("vocab-unchecked" in w for w in convert(folder, tmp_path / "a.gguf", Options(base=model)))
    block = {"arch_id": "qwen4exp", "meta": {}, "vocab_sha256": digest}
    edit_manifest(folder, model=block)
    assert convert(folder, tmp_path / "b.gguf", Options(base=model)) == []


def test_what_is_written(tmp_path: Path) -> None:
    model = with_tensors(tmp_path / "m.gguf")
    convert(toy_folder(tmp_path / "f"), tmp_path / "a.gguf", Options(base=model))
    header = open_sidefile(tmp_path / "a.gguf").header
    assert header.base.layer_kinds == "rrra"
    assert [a.split()[0] for a in header.anchors] == [f"blk.{i}.hc_attn_norm.weight" for i in (1, 2)]
    assert header.encodings[:3] == (
        "blk.1.attn_q.weight Q8_0",
        "blk.1.hc_attn_norm.weight F32",
        "blk.1.ssm_conv1d.weight BF16",
    )
    assert len(header.encodings) == 9 and not any("_exps" in entry for entry in header.encodings)


def test_what_differs(tmp_path: Path) -> None:
    convert(toy_folder(tmp_path / "f"), tmp_path / "a.gguf", Options(base=with_tensors(tmp_path / "m.gguf")))

    def warnings(path: Path) -> list[str]:
        return open_sidefile(tmp_path / "a.gguf", model=read_gguf(path, model=True)).warnings

    assert warnings(tmp_path / "m.gguf") == []
    tuned, other = with_tensors(tmp_path / "t.gguf", norm=2.0), with_tensors(tmp_path / "o.gguf", kind=F32)
    assert [w.split(":")[0] for w in warnings(tuned)] == ["base-anchors"]
    (text,) = warnings(other)
    assert text.startswith(
        "base-encodings: 3 of 9 tensor encodings differ, first blk.1.attn_q.weight: Q8_0 in the file"
    )
    assert [w.split(":")[0] for w in warnings(toy_model(tmp_path / "b.gguf"))] == ["base-anchors", "base-encodings"]


def test_layer_kinds_refuse(tmp_path: Path) -> None:
    convert(toy_folder(tmp_path / "f"), tmp_path / "a.gguf", Options(base=toy_model(tmp_path / "m.gguf")))
    other = toy_model(tmp_path / "o.gguf", qwen4exp__full_attention_interval=("u32", 2))
    with pytest.raises(RidgefillError) as caught:
        open_sidefile(tmp_path / "a.gguf", base_of(other))
    assert caught.value.code == "layer-kinds"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"adapter": "qwen35"}, "base-architecture"),
        ({"layers": {"2": "full_attn", "3": "recurrent"}}, "layer-kinds"),
        ({"layers": {"2": "recurrent", "3": "recurrent"}}, "layer-kinds"),
    ],
)
def test_published_facts_refuse(tmp_path: Path, changes: dict, code: str) -> None:
    folder = toy_folder(tmp_path / "f", **changes)
    with pytest.raises(RidgefillError) as caught:
        convert(folder, tmp_path / "a.gguf", Options(base=toy_model(tmp_path / "m.gguf")))
    assert caught.value.code == code and not (tmp_path / "a.gguf").exists()


def test_nothing_passes_unsaid(tmp_path: Path) -> None:
    """What a published folder or a side file cannot be held against is named, each with a code of its own."""
    model = {"arch_id": "qwen4exp", "name": "other", "meta": {"n_layers": "4", "rope": "1"}, "vocab_sha256": "0" * 64}
    model |= {
        "encodings": {"blk.1.ssm_inz.weight": "i8*bf16[1x128]"},
        "anchors": {"blk.1.attn_hc_norm.weight": "0" * 64},
    }
    folder = toy_folder(tmp_path / "f", model=model, layers={"2": "late", "3": "late"})
    found = convert(folder, tmp_path / "a.gguf", Options(base=toy_model(tmp_path / "m.gguf")))
    assert [w.split(":")[0] for w in found] == [
        "meta-unchecked",
        "kinds-unchecked",
        "vocab-unchecked",
        "encodings-unchecked",
        "anchors-unchecked",
        "base-name",
    ]
    without = toy_folder(tmp_path / "g")
    edit_manifest(without, model=None)
    assert convert(without, tmp_path / "b.gguf", Options(base=tmp_path / "m.gguf"))[0].startswith("fingerprint-unch")

    convert(folder, tmp_path / "c.gguf", Options())
    plain = toy_model(tmp_path / "p.gguf", qwen4exp__full_attention_interval=None)
    for path in (tmp_path / "m.gguf", plain):
        codes = [
            w.split(":")[0] for w in open_sidefile(tmp_path / "c.gguf", model=read_gguf(path, model=True)).warnings
        ]
        assert codes == [
            "base-name",
            "tokenizer-unchecked",
            "vocab-unchecked",
            "kinds-unchecked",
            "anchors-unchecked",
            "encodings-unchecked",
        ]


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, "rrra"),
        ({"qwen4exp__full_attention_interval": ("u32", 2)}, "rara"),
        ({"qwen4exp__full_attention_interval": None}, None),
        ({"qwen4exp__attention__recurrent_layers": ("u32[]", [1, 0, 0, 1])}, "raar"),  # the list is the stronger word
        (
            {"qwen4exp__full_attention_interval": None, "qwen4exp__attention__head_count_kv": ("u32[]", [0, 2, 0, 2])},
            "rara",
        ),
    ],
)
def test_layer_kinds(tmp_path: Path, changes: dict, kinds: str | None) -> None:
    model = read_gguf(toy_model(tmp_path / "m.gguf", **changes), model=True)
    assert layer_kinds(model, "qwen4exp", 4) == kinds


def test_attention_only(tmp_path: Path) -> None:
    model = GgufFile(tmp_path, 0, {}, {})
    assert layer_kinds(model, "llama", 3) == "aaa" and anchors(model, 1) == encodings(model, 1, 3) == ()
