"""The fit on SmolLM2 through the built library: what is captured, chat copies, a file that the loader takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ridgefill_cpp.base import base_of
from ridgefill_cpp.cli import main
from ridgefill_cpp.fit.capture import Capture
from ridgefill_cpp.fit.vocabulary import Vocabulary
from ridgefill_cpp.gguf_types import BF16, F32
from ridgefill_cpp.gguf_writer import Tensor
from ridgefill_cpp.layout import Header, layer_tensor
from ridgefill_cpp.sidefile import open_sidefile, write_sidefile

TEXT = "The quick brown fox jumps over the lazy dog; then, being a fox, it thinks of something else to do. " * 40


@pytest.mark.parametrize("target", ["layer_input", "block_input"])
def test_capture(build: Path, smollm2: Path, target: str) -> None:
    with Capture(smollm2, 20, target, (20, 21, 29), 128, threads=2) as rows:
        assert (rows.n_in, rows.widths) == (576, (576, 576, 576))
        ids = rows.tokenize(TEXT)[:100]
        x, (y20, y21, y29) = (rows.run(ids), None)[0]
        x, y20, y21 = x.copy(), y20.copy(), y21.copy()
        assert x.shape == y29.shape == (100, 576) and np.isfinite(y29).all()
        if target == "layer_input":
            assert (y20 == x).all() and not np.allclose(y21, x)
        else:  # RMS norm times a gain: the same gain for every row
            gain = y20 / (x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5))
            assert np.allclose(gain, gain[:1], rtol=2e-3, atol=1e-3)
        again = rows.run(ids)
        assert (again[0] == x).all() and (again[1][1] == y21).all()  # from an empty cache each time


def test_frames(build: Path, smollm2: Path) -> None:
    with Capture(smollm2, 20, "layer_input", (29,), 64, threads=2) as rows:
        before, after = rows.chat_frame
        assert rows.frame == ([], [])  # this tokenizer adds nothing
        start, end = rows.tokenize("<|im_start|>", special=True), rows.tokenize("<|im_end|>", special=True)
        assert len(start) == len(end) == 1 and before[0] == start[0] and after[0] == end[0]
        assert before.count(start[0]) == 2  # the template's own system turn, then the user's


@pytest.mark.parametrize("target", ["layer_input", "block_input"])
def test_fit_and_load(
    build: Path, smollm2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    from ridgefill_cpp._session import Session

    for i in range(3):
        (tmp_path / f"{i}.txt").write_text(f"Document {i}. " + TEXT[i * 700 :])
    out = tmp_path / "p.gguf"
    command = f"fit -m {smollm2} -f {tmp_path} -o {out} --split 27 --ctx 128 --max-rows 300 --held-rows 60 --threads 2"
    assert main([*command.split(), "--chat-share", "0.5", "--license", "CC0-1.0", "--target", target]) == 0
    output = capsys.readouterr()
    assert output.out.splitlines()[-1] == str(out) and "few-rows" in output.err
    side = open_sidefile(out, base_of(smollm2))
    assert side.header.layers == (28, 29) and side.header.fit.rows == 300 and side.warnings == []
    assert side.header.credit.license == "CC0-1.0" and side.header.credit.name.endswith("ridgefill S27")
    assert min(side.header.fit.cosine) > 0.7
    with Session(smollm2, 64, threads=2) as session:
        projector = session.load(out)
        assert (projector.split, projector.n_maps, projector.target) == (27, 2, target)


def test_score(build: Path, smollm2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, zero = base_of(smollm2), np.zeros(576, np.float32)
    header = Header(base, 28, 576, 576, "layer_input", "bf16", (29,))
    weight = np.zeros((576, 576), np.uint16)
    tensors = [
        Tensor(layer_tensor(29, "weight"), BF16, (576, 576), lambda: [weight]),
        Tensor(layer_tensor(29, "bias"), F32, (576,), lambda: [zero]),
    ]
    write_sidefile(tmp_path / "p.gguf", header, tensors)
    (tmp_path / "t.txt").write_text("The Llama eats numpy arrays, 42 of them. " * 100)
    command = f"score -m {smollm2} -p {tmp_path / 'p.gguf'} -f {tmp_path / 't.txt'} -o {tmp_path / 's.gguf'}"
    assert main(command.split()) == 0
    assert "49152 vocabulary" in capsys.readouterr().err
    side = open_sidefile(tmp_path / "s.gguf", base)
    table = side.array("ridgefill.score")
    with Vocabulary(smollm2) as vocabulary:
        llama, word, number = (vocabulary.tokenize(text)[-1] for text in (" The", " the", "4"))
        special = vocabulary.tokenize("<|im_end|>", special=True)[0]
    assert np.isfinite(table[llama]) and table[llama] < np.max(table[np.isfinite(table)])
    assert table[word] == table[number] == table[special] == -np.inf
