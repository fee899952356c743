"""Every command's options, output, errors and exit status, kept as text files beside this test.

RIDGEFILL_SNAPSHOT=1 writes them anew; look at the difference before committing it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ridgefill_cpp.cli import COMMANDS, build_parser, main
from toys import toy_file, toy_folder, toy_model

SNAPSHOTS = Path(__file__).parent / "snapshots"


def check(name: str, text: str) -> None:
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("RIDGEFILL_SNAPSHOT") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.is_file() and path.read_text() == text, f"{path} differs; RIDGEFILL_SNAPSHOT=1 writes it anew"


def described(parser: argparse.ArgumentParser) -> str:
    """What --help says, in a form that does not depend on the Python version."""
    lines = [parser.description or "", ""]
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        name = ", ".join(action.option_strings) or str(action.metavar)
        value = f" {action.metavar}" if action.option_strings and action.metavar else ""
        choices = f" {{{','.join(map(str, action.choices))}}}" if action.choices else ""
        required = " (required)" if action.required else ""
        lines.append(f"{name}{value}{choices}{required}: {action.help}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser, _ = build_parser()
    (table,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    check(f"help-{command}", described(table.choices[command]))
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    output = capsys.readouterr()
    assert output.out.startswith("usage: ridgefill " + command) and output.err == ""


def test_help_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    """Bare `ridgefill` prints the commands to stderr and fails; --help prints the same to stdout and does not."""
    parser, _ = build_parser()
    (table,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    commands = "".join(f"{action.dest}: {action.help}\n" for action in table._choices_actions)
    check("help", f"{parser.description}\n\n--version: print the version and exit\n\n{commands}")
    assert main([]) == 2
    bare = capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    asked = capsys.readouterr()
    assert caught.value.code == 0 and asked.err == bare.out == "" and asked.out == bare.err
    assert all(f"\n    {command} " in bare.err for command in COMMANDS)
    assert main(["--version"]) == 0 and re.fullmatch(r"ridgefill \S.*\n", capsys.readouterr().out)


def test_every_option_says_what_it_does() -> None:
    parser, modules = build_parser()
    (table,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    assert list(table.choices) == list(modules) == list(COMMANDS)
    for command, own in table.choices.items():
        assert own.description and all(action.help for action in own._actions), command


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one of each kind of file, as the current one."""
    toy_folder(tmp_path / "folder")
    toy_file(tmp_path / "dense.safetensors", 64, 64)
    toy_model(tmp_path / "model.gguf")
    toy_model(tmp_path / "other.gguf", "llama", general__name=("str", "other"))
    toy_model(tmp_path / "two.gguf", "llama", llama__block_count=("u32", 2))
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "kva.json").write_text("{}")
    (tmp_path / "bad.jsonl").write_text('{"text": 3}\n')
    (tmp_path / "page.html").write_text("<!DOCTYPE html><title>404</title>")
    (tmp_path / "empty.gguf").touch()
    monkeypatch.chdir(tmp_path)
    for name in ("RIDGEFILL_PROGRESS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    assert main(["convert", "folder", "-o", "good.gguf", "--base", "model.gguf"]) == 0
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "good.gguf").read_bytes()[:9000])
    return tmp_path


CASES = {
    "unknown-command": "frobnicate",
    "convert": "convert folder -o new.gguf --base model.gguf",
    "convert-without-base": "convert folder -o new.gguf",
    "convert-dense": "convert dense.safetensors -o new.gguf --arch llama --type q8_0",
    "convert-dense-unknown": "convert dense.safetensors -o new.gguf",
    "convert-no-output": "convert folder",
    "convert-bad-type": "convert folder -o new.gguf --type q4_0",
    "convert-exists": "convert folder -o good.gguf",
    "convert-absent": "convert absent -o new.gguf",
    "convert-onto-folder": "convert folder -o folder",
    "convert-no-folder": "convert folder -o absent/new.gguf",
    "convert-other-model": "convert folder -o new.gguf --base other.gguf",
    "convert-html": "convert page.html -o new.gguf --arch llama",
    "convert-manifest": "convert folder/ridgefill.json -o new.gguf",
    "export": "export good.gguf -o back",
    "export-exists": "export good.gguf -o folder",
    "inspect": "inspect good.gguf --base model.gguf --source folder",
    "inspect-json": "inspect good.gguf --json",
    "inspect-cut": "inspect cut.gguf",
    "inspect-empty": "inspect empty.gguf",
    "inspect-html": "inspect page.html",
    "inspect-model": "inspect model.gguf",
    "inspect-other-base": "inspect good.gguf --base other.gguf",
    "inspect-bad-base": "inspect good.gguf --base good.gguf",
    "inspect-other-source": "inspect good.gguf --source dense.safetensors",
    "fit-no-split": "fit -m model.gguf -f page.html -o p.gguf",
    "fit-no-text": "fit -m model.gguf -o p.gguf --split 2",
    "fit-bad-split": "fit -m model.gguf -f page.html -o p.gguf --split 0",
    "fit-bad-splits": "fit -m model.gguf -f page.html -o p.gguf --split 2,2",
    "fit-bad-lambda": "fit -m model.gguf -f page.html -o p.gguf --split 2 --lambda 0.1,0",
    "fit-bad-share": "fit -m model.gguf -f page.html -o p.gguf --split 2 --held-out 1",
    "fit-no-folder": "fit -m model.gguf -f page.html -o absent/p.gguf --split 2",
    "fit-prior": "fit -m model.gguf -f page.html -o p.gguf --split 2 --target block_input --prior identity",
    "fit-split-range": "fit -m model.gguf -f page.html -o p.gguf --split 3",
    "fit-absent-text": "fit -m model.gguf -f absent.txt -o p.gguf --split 2",
    "fit-side-file": "fit -m good.gguf -f page.html -o p.gguf --split 2",
    "fit-exists": "fit -m model.gguf -f page.html -o good.gguf --split 2",
    "fit-bad-loss": "fit -m model.gguf -f page.html -o p.gguf --split auto --max-loss 0",
    "fit-auto-few-layers": "fit -m two.gguf -f page.html -o p.gguf --split auto",
    "fit-bad-line": "fit -m model.gguf -f bad.jsonl -o p.gguf --split 2",
    "score-no-text": "score -m model.gguf -p good.gguf -o p.gguf",
    "score-absent-text": "score -m model.gguf -p good.gguf -f absent.txt -o p.gguf",
    "score-exists": "score -m model.gguf -p good.gguf -f page.html -o good.gguf",
    "score-other-model": "score -m other.gguf -p good.gguf -f page.html -o p.gguf",
    "score-tokenizer": "score -m model.gguf -p good.gguf -f page.html -o p.gguf",
    "eval-no-model": "eval -p good.gguf --stdlib",
    "eval-no-text": "eval -m model.gguf -p good.gguf",
    "eval-two-texts": "eval -m model.gguf -p good.gguf --stdlib -f page.html",
    "eval-bad-mode": "eval -m model.gguf -p good.gguf --stdlib --modes fill,best",
    "eval-bad-tail": "eval -m model.gguf -p good.gguf --stdlib --tail 1",
    "eval-bad-docs": "eval -m model.gguf -p good.gguf --stdlib --docs 0",
    "eval-bad-tokens": "eval -m model.gguf -p good.gguf --stdlib --tokens 528",
    "eval-absent-text": "eval -m model.gguf -p good.gguf -f absent.txt",
    "bench-no-projector": "bench -m model.gguf",
    "bench-bad-lengths": "bench -m model.gguf -p good.gguf --lengths 2k",
    "bench-short-length": "bench -m model.gguf -p good.gguf --lengths 4096,500",
    "bench-bad-reps": "bench -m model.gguf -p good.gguf --reps 0",
    "bench-absent-text": "bench -m model.gguf -p good.gguf -f absent.txt",
    "convert-old": "convert old -o new.gguf",
}


@pytest.mark.parametrize("name", CASES)
def test_runs(place: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    try:
        status = main(CASES[name].split())
    except SystemExit as exit:
        status = exit.code
    output = capsys.readouterr()
    usage = re.compile(r"^usage: .*?(?=^ridgefill|\Z)", re.M | re.S)  # differs between Python versions
    err = usage.sub("usage: ...\n", output.err).replace(str(place), "<place>")
    err = re.sub(r"invalid choice: '?(\w+)'? \(choose from .*\)", r"invalid choice: \1 (choose from ...)", err)
    out = usage.sub("usage: ...\n", output.out)
    check(name, f"$ ridgefill {CASES[name]}\nstatus {status}\n--- stdout\n{out}--- stderr\n{err}")
    assert "\x1b" not in output.out + output.err and str(place) not in output.out
    if status:
        assert not (place / "new.gguf").exists() and not (place / "back").exists()


def test_program_and_shim(place: Path) -> None:
    """The field's name for the converter, and the module, as processes; data on stdout only."""
    shim = Path(__file__).resolve().parents[2] / "tools" / "convert_ridgefill_to_gguf.py"
    done = subprocess.run([sys.executable, shim, "folder", "-o", "s.gguf"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "s.gguf\n") and "base-unchecked" in done.stderr
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    module = [sys.executable, "-m", "ridgefill_cpp", "inspect", "s.gguf"]
    done = subprocess.run(module, capture_output=True, text=True, env=env)
    assert done.returncode == 0 and done.stdout.startswith("file ")
    closed = subprocess.run(f"{' '.join(module)} | head -c 1", shell=True, capture_output=True, text=True, env=env)
    assert closed.stderr.count("Traceback") == 0


def test_progress(place: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RIDGEFILL_PROGRESS": "1"}
    command = [sys.executable, "-m", "ridgefill_cpp", "convert", "folder", "-o", "s.gguf"]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.stdout == "s.gguf\n" and "convert [####" in done.stderr and "\x1b" not in done.stderr
    env["RIDGEFILL_PROGRESS"] = ""
    done = subprocess.run([*command, "--force"], capture_output=True, text=True, env=env)
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("ridgefill: base-unchecked")
