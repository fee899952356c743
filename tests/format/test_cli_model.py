"""The commands that run a model, as snapshots: output with numbers masked, errors, exit status. Needs the build."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ridgefill_cpp.cli import main
from ridgefill_cpp.sidefile import open_sidefile
from test_cli import check

TEXT = "The quick brown fox jumps over the lazy dog; then, being a fox, it thinks of something else to do. "

# In this order: fit writes what the others read.
CASES = {
    "model-fit": "fit -m model.gguf -f texts -o p.gguf --split 28 --ctx 128 --max-rows 300 --held-rows 60",
    "model-fit-several": "fit -m model.gguf -f texts -o q.gguf --split 27,28 --ctx 128 --max-rows 300 --held-rows 60",
    "model-fit-json": "fit -m model.gguf -f texts -o j.gguf --split 28 --ctx 128 --max-rows 300 --held-rows 60 --json",
    "model-fit-auto": "fit -m model.gguf -f texts -o a.gguf --split auto --tail 32 --docs 1 --max-loss 9 --max-rows 99",
    "model-fit-auto-short": "fit -m model.gguf -f texts -o b.gguf --split auto --tail 4096",
    "model-score": "score -m model.gguf -p p.gguf -f texts -o s.gguf",
    "model-eval": "eval -m model.gguf -p p.gguf -f texts --tokens 160 --tail 64 --docs 1",
    "model-eval-json": "eval -m model.gguf -p p.gguf -f texts --tokens 160 --tail 64 --docs 1 --json --modes fill",
    "model-eval-absent": "eval -m absent.gguf -p p.gguf -f texts",
    "model-eval-no-model": "eval -m page.html -p p.gguf -f texts",
    "model-eval-refused": "eval -m model.gguf -p model.gguf -f texts",
    "model-eval-short-texts": "eval -m model.gguf -p p.gguf -f texts --tokens 4000",
    "model-bench": "bench -m model.gguf -p p.gguf -f texts --lengths 160 --tail 64 --reps 1",
    "model-bench-refused": "bench -m model.gguf -p page.html -f texts --lengths 160 --tail 64 --reps 1",
    "model-bench-short-text": "bench -m model.gguf -p p.gguf -f texts --lengths 40960 --tail 64 --reps 1",
}


@pytest.fixture(scope="module")
def place(build: Path, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "texts").mkdir()
    for i in range(3):
        (folder / "texts" / f"{i}.txt").write_text(f"Document {i}. " + (TEXT * 20)[i * 30 :])
    (folder / "page.html").write_text("<!DOCTYPE html><title>404</title>")
    (folder / "model.gguf").symlink_to(smollm2)
    return folder


def masked(text: str) -> str:
    """Numbers become #, columns one space: what depends on machine and threads."""
    text = re.sub(r"(?<![\w.-])[-+]?\d+(\.\d+)?(e[-+]?\d+)?(?![\w.]*\.(gguf|txt|html))", "#", text)
    return "".join(re.sub(r" +", " ", line).strip() + "\n" for line in text.splitlines())


def test_runs(place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(place)
    monkeypatch.delenv("RIDGEFILL_PROGRESS", raising=False)
    for name, command in CASES.items():
        capfd.readouterr()
        try:
            status = main(command.split())
        except SystemExit as exit:
            status = exit.code
        output = capfd.readouterr()
        out, err = masked(output.out), masked(output.err)
        check(name, f"$ ridgefill {command}\nstatus {status}\n--- stdout\n{out}--- stderr\n{err}")
        assert str(place) not in output.out + output.err
    assert sorted(path.name for path in place.glob("*.gguf")) == [
        *("a.gguf", "j.gguf", "model.gguf", "p.gguf", "q-S27.gguf", "q-S28.gguf", "s.gguf")
    ]
    assert open_sidefile(place / "a.gguf").header.split == 10  # the lowest, as any loss will do
    assert open_sidefile(place / "s.gguf").has_score
