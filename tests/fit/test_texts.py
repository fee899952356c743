"""Documents from files, and the split by document."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ridgefill_cpp.errors import RidgefillError
from ridgefill_cpp.fit.stdlib import stdlib_texts
from ridgefill_cpp.fit.texts import Document, load_documents, split_held_out, text_sha256


def test_forms(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("bé")
    (tmp_path / "a.md").write_text("a")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.py").write_bytes(b"c \xff")
    (tmp_path / "sub" / "ignored.bin").write_text("x")
    (tmp_path / "lines.jsonl").write_text('{"text": "one"}\n\n{"text": "two", "id": 3}\n')
    documents = load_documents([tmp_path])
    assert [d.text for d in documents] == ["a", "bé", "one", "two", "c \ufffd"]
    assert [d.text for d in load_documents([tmp_path / "b.txt", tmp_path])] == ["bé", "a", "one", "two", "c \ufffd"]


@pytest.mark.parametrize("line", ["{", "[]", '{"txt": "a"}', '{"text": 3}', "[" * 9999])
def test_bad_jsonl(tmp_path: Path, line: str) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": "a"}) + "\n" + line + "\n")
    with pytest.raises(RidgefillError) as caught:
        load_documents([tmp_path / "x.jsonl"])
    assert caught.value.code == "jsonl" and caught.value.item == "line 2"


def test_no_text(tmp_path: Path) -> None:
    (tmp_path / "e.txt").write_text("  \n")
    for path, code in ((tmp_path / "e.txt", "no-text"), (tmp_path / "absent", "no-file")):
        with pytest.raises(RidgefillError) as caught:
            load_documents([path])
        assert caught.value.code == code
    (tmp_path / "none").mkdir()
    with pytest.raises(RidgefillError):
        load_documents([tmp_path / "none"])


def test_split_by_document() -> None:
    documents = [Document(f"n{i}", f"text {i} " * (50 + i)) for i in range(40)]
    train, held = split_held_out(documents, 0.1, seed=0)
    assert len(train) + len(held) == 40 and 3 <= len(held) <= 6
    assert not {d.text for d in train} & {d.text for d in held}
    renamed = [Document(f"other{i}", d.text) for i, d in enumerate(reversed(documents))]
    assert {d.text for d in split_held_out(renamed, 0.1, seed=0)[1]} == {d.text for d in held}
    assert split_held_out(documents, 0.1, seed=1)[1] != held
    assert [d for d in documents if d in train] == train


def test_two_and_one_document() -> None:
    two = [Document("a", "a" * 10), Document("b", "b" * 10)]
    train, held = split_held_out(two, 0.99, 0)
    assert len(train) == len(held) == 1
    train, held = split_held_out([Document("a", "line\n" * 100)], 0.1, 0)
    assert train[0].text + held[0].text == "line\n" * 100 and held[0].text == "line\n" * 10


def test_hash() -> None:
    a, b = Document("a", "x"), Document("b", "y")
    assert text_sha256([a, b]) != text_sha256([b, a]) != text_sha256([Document("", "xy")])
    assert text_sha256([a]) == text_sha256([Document("other name", "x")])


def test_stdlib() -> None:
    train, held = stdlib_texts()
    assert len(held) >= 12 and min(len(d.text) for d in held) >= 16_000
    assert sum(len(d.text) for d in train) > 600_000  # 100,000 tokens and more, even of six characters
    paragraphs = [{p for p in d.text.split("\n\n") if len(p) > 80} for d in (*train, *held)]
    assert len(set().union(*paragraphs)) == sum(map(len, paragraphs)), "a paragraph in two documents"
