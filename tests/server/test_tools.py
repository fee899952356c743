"""llama-completion, llama-cli, llama-bench and llama-perplexity with --ridgefill."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from http_server import PLAN


@pytest.fixture
def text_file(plain, prose, tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(plain.post("/detokenize", {"tokens": prose[:600]})["content"])
    return path


@pytest.fixture
def run(program, smollm2: Path):
    def call(name: str, *args: object) -> subprocess.CompletedProcess[str]:
        command = [str(program(name)), "-m", str(smollm2), "-t", "2", *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)

    return call


def test_completion_announces_its_prompt(run, side_file: Path, text_file: Path) -> None:
    args = ("-f", text_file, "-n", 4, "-no-cnv", "-c", 1024, "--temp", 0, "--ridgefill", side_file, *PLAN)
    done = run("llama-completion", *args)
    assert done.returncode == 0, done.stderr
    assert "ridgefill: speed, prompt rows [16, " in done.stderr + done.stdout


def test_a_session_file_keeps_completion_exact(run, side_file: Path, text_file: Path, tmp_path: Path) -> None:
    args = ("-f", text_file, "-n", 1, "-no-cnv", "-c", 1024, "--ridgefill", side_file, *PLAN)
    done = run("llama-completion", *args, "--prompt-cache", tmp_path / "session.bin")
    assert done.returncode == 0, done.stderr
    assert "the prompt runs exactly: a session file" in done.stderr + done.stdout


def test_cli_fills(run, side_file: Path, text_file: Path) -> None:
    args = ("-f", text_file, "-n", 2, "-st", "-c", 1024, "--simple-io", "--ridgefill", side_file, *PLAN)
    done = run("llama-cli", *args, "-lv", 3, "--log-file", text_file.with_suffix(".log"))
    assert done.returncode == 0, done.stderr
    assert "prompt filled, mode = speed" in text_file.with_suffix(".log").read_text(errors="replace")


def test_bench_compares_modes_in_one_run(run, side_file: Path) -> None:
    args = ("-p", 400, "-n", 0, "-r", 1, "-o", "jsonl", "--ridgefill", side_file, *PLAN)
    done = run("llama-bench", *args, "--ridgefill-mode", "off,speed")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["ridgefill"] for row in rows] == ["off", "speed"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--ridgefill-mode", "fast"), "--ridgefill-mode: found 'fast', allowed: off, plumb, speed"),
        (("--ridgefill-tail", "0"), "--ridgefill-tail: found '0', allowed: 1 to"),
        (("--ridgefill-mode", "speed"), "--ridgefill-mode needs --ridgefill"),
        (("--ridgefill", "/no/such/file.gguf"), "file.gguf"),
    ],
)
def test_bench_refuses(run, args: tuple[str, ...], message: str) -> None:
    done = run("llama-bench", "-p", 16, "-n", 0, "-r", 1, *args)
    assert done.returncode == 1
    assert message in done.stderr


def test_perplexity_is_exact_and_says_so_once(run, side_file: Path, text_file: Path) -> None:
    args = ("-f", text_file, "-c", 256, "-b", 256, "--chunks", 2)
    with_file = run("llama-perplexity", *args, "--ridgefill", side_file, *PLAN)
    without = run("llama-perplexity", *args)
    assert with_file.returncode == 0, with_file.stderr

    def result(done) -> str:
        lines = (done.stdout + done.stderr).splitlines()
        return next(line for line in lines if "Final estimate" in line).split(" I ")[-1]

    assert result(with_file) == result(without)
    assert (with_file.stdout + with_file.stderr).count("so all rows run exactly") == 1
