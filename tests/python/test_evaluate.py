"""The evaluation and the benchmark: their arithmetic, and a small run of each on a real model."""

from __future__ import annotations

import json

import numpy as np
import pytest
from ridgefill_cpp import cli, evaluate
from ridgefill_cpp._arms import Arms


def test_nll_against_the_definition():
    from ridgefill_cpp._arms import nll_of

    rng = np.random.default_rng(0)
    logits = (50 * rng.standard_normal((70, 11))).astype(np.float32)
    targets = rng.integers(0, 11, 70).tolist()
    nll, top = nll_of(logits, targets)
    wide = logits.astype(np.float64)
    want = np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1)) + wide.max(1) - wide[np.arange(70), targets]
    assert np.allclose(nll, want, rtol=1e-6, atol=1e-5)
    assert np.array_equal(top, logits.argmax(1))


def test_bootstrap_is_repeatable_and_contains_the_mean():
    values = [0.1, 0.2, 0.4, 0.05, 0.3]
    low, high = evaluate.bootstrap(values)
    assert (low, high) == evaluate.bootstrap(values)
    assert low < np.mean(values) < high
    assert evaluate.bootstrap([0.25]) == (0.25, 0.25)


@pytest.fixture(scope="module")
def report(smollm2, identity, text):
    documents = [text[:200], text[2000:5000], text[9000:12000], text[20000:23000]]  # the first is too short
    return evaluate.tail_loss(
        smollm2, {"s20": identity(20), "s29": identity(29)}, documents, tokens=200, tail=48, documents=2, threads=2
    )


def test_tail_loss_of_known_maps(report):
    assert report.documents == 2 and 1 < report.exact < 6
    names = [(arm.label, arm.mode) for arm in report.arms]
    assert names == [("s20", "fill"), ("s20", "identity"), ("s29", "fill"), ("s29", "identity"), ("", "dropped")]
    # the side file is the identity, so both arms are one
    assert report.arm("fill", "s20").losses == report.arm("identity", "s20").losses
    assert report.arm("fill", "s20").loss > 0.01
    # after split 29 of 30 no layer is filled: equal to exact up to rounding
    assert abs(report.arm("fill", "s29").loss) < 2e-3 and report.arm("fill", "s29").top1 > 0.98
    assert report.arm("dropped").documents == 2


def test_a_shortened_prompt_keeps_the_leading_token():
    class Leading:
        def tokenize(self, text: str) -> list[int]:
            return [7, *text.encode()]

    arms = Arms(Leading(), 6, 2, 1)
    assert arms.shortened([7, 1, 2, 3, 4, 5], 3) == [7, 3, 4, 5]
    assert arms.shortened([7, 1, 2, 3, 4, 5], 6) == [7, 1, 2, 3, 4, 5]


def test_table_has_a_line_for_each_arm(report):
    lines = evaluate.table(report).splitlines()
    assert len(lines) == 2 + len(report.arms)
    assert "2 documents of 200 tokens, tail 48, head 16" in lines[0]
    assert lines[-1].startswith("dropped")


def test_no_document_is_long_enough(smollm2, identity):
    with pytest.raises(ValueError, match="no document of 300 tokens"):
        evaluate.tail_loss(smollm2, {"": identity(29)}, ["short"], tokens=300, tail=64, modes=("fill",))


@pytest.mark.parametrize(
    "extra, words",
    [
        (["--modes", "fill,all"], "--modes: found 'all', allowed fill, uncorrected, identity, dropped, quality"),
        (["--tail", "1"], "--tail: found 1, allowed 2 or more"),
        (["--tokens", "500"], "--tokens: found 500"),
        (["--docs", "-1"], "--docs: found -1"),
        (["--stdlib"], "text: found both -f and --stdlib"),
    ],
)
def test_usage_errors_exit_2(smollm2, identity, tmp_path, capsys, extra, words):
    (tmp_path / "a.txt").write_text("text")
    argv = ["eval", "-m", str(smollm2), "-p", str(identity(20)), "-f", str(tmp_path), *extra]
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and words in err


def test_a_refused_side_file_exits_1(smollm2, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "bad.gguf").write_text("<html>")
    argv = ["eval", "-m", str(smollm2), "-p", str(tmp_path / "bad.gguf"), "-f", str(tmp_path / "a.txt")]
    assert cli.main(argv) == 1
    out, err = capsys.readouterr()
    assert out == "" and "bad.gguf" in err and "Traceback" not in err


def test_eval_prints_json(smollm2, identity, text, tmp_path, capsys):
    (tmp_path / "a.txt").write_text(text[:3000])
    argv = ["eval", "-m", str(smollm2), "-p", str(identity(29)), "-f", str(tmp_path), "--tokens", "200", "--tail", "32"]
    assert cli.main([*argv, "--modes", "fill", "--json", "-t", "2"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["documents"] == 1 and [arm["mode"] for arm in data["arms"]] == ["fill"]


def test_bench_writes_the_promised_fields(smollm2, identity, tmp_path, capsys):
    path = tmp_path / "bench.json"
    argv = ["bench", "-m", str(smollm2), "-p", str(identity(10)), "--lengths", "200,300", "--tail", "64", "--reps", "1"]
    assert cli.main([*argv, "-t", "2", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())
    fields = (
        "n_prompt split tail t_stock_ms t_fill_ms ratio ratio_ideal n_filled n_exact loss loss_identity loss_dropped "
        "mode n_selected"
    )
    assert [list(row) for row in rows] == [fields.split()] * 2
    assert [(row["n_prompt"], row["n_filled"], row["n_exact"]) for row in rows] == [(200, 120, 80), (300, 220, 80)]
    assert rows[0]["loss"] is None and rows[0]["ratio_ideal"] > 1
    assert len(capsys.readouterr().out.splitlines()) == 3
