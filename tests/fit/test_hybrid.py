"""The correction on a small trained hybrid: fitted, served, and worth having on documents it has not seen."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
from ridgefill_cpp import evaluate
from ridgefill_cpp.cli import main
from ridgefill_cpp.fit.texts import load_documents
from ridgefill_cpp.sidefile import open_sidefile


@pytest.fixture(scope="module")
def sides(build: Path, tiny_hybrid: Path, tmp_path_factory) -> tuple[Path, Path, str, str]:
    """A side file of split 4 of 12 from few rows, the same with a correction, and what `correct` said."""
    folder = tmp_path_factory.mktemp("hybrid")
    texts = tiny_hybrid.parent / "calib"
    plain, corrected = folder / "plain.gguf", folder / "corrected.gguf"
    fit = (
        f"fit -m {tiny_hybrid} -f {texts} -o {plain} --split 4 --ctx 1024 --max-rows 12000 --held-rows 500 --threads 2"
    )
    assert main([*fit.split(), "--held-out", "0.02"]) == 0
    command = f"correct -m {tiny_hybrid} -p {plain} -f {texts} -o {corrected} --docs 16 --rows 1024 --threads 2 --json"
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert main(command.split()) == 0
    return plain, corrected, out.getvalue(), err.getvalue()


def test_correct(sides) -> None:
    _, corrected, out, err = sides
    report = json.loads(out)
    assert "few-states" in err and 4 <= report["prompts"] + report["held_prompts"] <= 16
    assert [layer["layer"] for layer in report["layers"]] == [5, 6, 8, 9, 10]
    assert report["left"] < 1  # of the error energy on documents that it was not fitted on
    side = open_sidefile(corrected)
    assert side.states == (5, 6, 8, 9, 10) and side.header.head_order == "tiled"
    assert side.array("blk.5.ridgefill.state").shape == (8, 64, 64)


def test_arms(sides, tiny_hybrid: Path) -> None:
    plain, corrected, *_ = sides
    documents = [document.text for document in load_documents([tiny_hybrid.parent / "held-long"])]
    report = evaluate.tail_loss(
        tiny_hybrid, {"": corrected, "plain": plain}, documents, tokens=1152, tail=128, documents=2, threads=2
    )
    arms = {(arm.label, arm.mode): arm for arm in report.arms}
    assert ("plain", "uncorrected") not in arms
    # without its correction a file is the plain one, bit for bit
    assert arms["", "uncorrected"].losses == arms["plain", "fill"].losses
    assert arms["", "fill"].losses != arms["plain", "fill"].losses
    assert np.isfinite(arms["", "fill"].loss) and arms["", "fill"].loss < arms["", "dropped"].loss
