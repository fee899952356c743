"""Token classes, scores and the selection rule, against values worked out from the published rule."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from ridgefill_cpp.convert import Options, convert
from ridgefill_cpp.errors import RidgefillError
from ridgefill_cpp.gguf_reader import read_gguf
from ridgefill_cpp.gguf_types import F32
from ridgefill_cpp.gguf_writer import Key, Tensor, write_gguf
from ridgefill_cpp.rewrite import write_copy
from ridgefill_cpp.sidefile import open_sidefile
from ridgefill_cpp.tokens import byte_map, count_tokens, scores, select, token_class, token_texts
from toys import VOCAB, toy_folder, toy_model


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "space"),
        (" \n\t", "space"),
        ("42", "number"),
        (" 3.14", "number"),
        ("1,000%", "number"),
        ("...", "punctuation"),
        (" (", "punctuation"),
        (" the", "word"),
        ("\nthe", "word"),
        ("ing", "piece"),
        (" London", "cap"),
        ("Lon", "cap"),
        ("É", "cap"),
        ("été", "piece"),
        ("日本", "piece"),
        ("x1", "mixed"),
        ("don't", "mixed"),
        ("_name", "mixed"),
        ("\ufffd", "mixed"),
        ("²", "mixed"),
        ("…", "mixed"),
    ],
)
def test_classes(text: str, kind: str) -> None:
    assert token_class(text) == kind


def model(path: Path, kind: str, tokens: list[bytes], types: list[int]) -> Path:
    keys = [
        Key("general.architecture", "str", "llama"),
        Key("tokenizer.ggml.model", "str", kind),
        Key("tokenizer.ggml.tokens", "str[]", tokens),
        Key("tokenizer.ggml.token_type", "u32[]", types),
    ]
    write_gguf(path, keys, [], force=True)
    return path


def test_texts(tmp_path: Path) -> None:
    tokens = ["Ġthe".encode(), "Ã©".encode(), "Ċ".encode(), b"<|end|>", "Ã".encode(), "日".encode()]
    bpe = read_gguf(model(tmp_path / "m.gguf", "gpt2", tokens, [1, 1, 1, 3, 1, 1]), model=True)
    assert token_texts(bpe) == [" the", "é", "\n", None, "\ufffd", "日"]
    tokens = ["▁the".encode(), b"<0x0A>", b"<s>", b"ing", b"<pad0>"]
    spm = read_gguf(model(tmp_path / "m.gguf", "llama", tokens, [1, 6, 3, 1, 5]), model=True)
    assert token_texts(spm) == [" the", "\n", None, "ing", None]
    for kind, types in (("bert", [1] * 5), ("gpt2", [1] * 4)):
        with pytest.raises(RidgefillError):
            token_texts(read_gguf(model(tmp_path / "m.gguf", kind, tokens, types), model=True))
    assert len(byte_map()) == 256 and sorted(byte_map().values()) == list(range(256))


def test_scores() -> None:
    texts = [" the", " London", "ing", "42", None, "x1"]
    counts = count_tokens([[0, 0, 1, 3], [0, 5]], 6)
    assert counts.tolist() == [3, 1, 0, 1, 0, 1]
    table = scores(texts, counts)
    assert table.dtype == np.float32
    wanted = [-math.inf, math.log(12 / 2), math.log(12 / 1), -math.inf, -math.inf, math.log(12 / 2)]
    assert table.tolist() == pytest.approx(wanted, rel=1e-6)
    unseen = scores(["ing"] * 248320, count_tokens([np.full(1147875, 1)], 248320))
    assert float(unseen[0]) == pytest.approx(14.149, abs=5e-4)  # as in the published table


@pytest.mark.parametrize(
    ("matches", "kept"),
    [(475, 119), (404, 101), (312, 78), (507, 127), (578, 144), (559, 140), (497, 124), (376, 94), (405, 101)],
)
def test_half_to_even(matches: int, kept: int) -> None:
    """The published windows; 578 matches are 144.5 rows, which is 144."""
    table = np.array([0.0, -np.inf], np.float32)
    assert len(select([0] * matches + [1] * 300, table, 0.25)) == kept


def test_selection() -> None:
    table = np.array([3.0, 5.0, -np.inf, np.nan, np.inf, 5.0], np.float32)
    ids = [0, 1, 2, 3, 4, 5, 1, 99, -1]
    assert select(ids, table, 1.0) == [0, 1, 5, 6]
    assert select(ids, table, 0.5) == [1, 5]  # ties go to the lower row
    assert select(ids, np.full(6, -np.inf, np.float32), 1.0) == []
    assert select(ids, np.zeros(6, np.float32), 0.5) == [0, 1, 2, 3]  # 3.5 of 7 rounds to 4, in order of position


def test_copy_with_table(tmp_path: Path) -> None:
    convert(toy_folder(tmp_path / "f"), tmp_path / "a.gguf", Options(base=toy_model(tmp_path / "m.gguf")))
    side = open_sidefile(tmp_path / "a.gguf")
    table = np.arange(VOCAB, dtype=np.float32)
    write_copy(side, tmp_path / "b.gguf", side.header, [Tensor("ridgefill.score", F32, (VOCAB,), lambda: [table])])
    copy = open_sidefile(tmp_path / "b.gguf")
    assert list(copy.gguf.tensors) == list(side.gguf.tensors) and copy.header == side.header
    for name in copy.gguf.tensors:
        same = copy.gguf.read(name).tobytes() == side.gguf.read(name).tobytes()
        assert same == (name != "ridgefill.score")
    assert (copy.array("ridgefill.score") == table).all()
