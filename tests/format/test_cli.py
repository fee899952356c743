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
OWN = ("convert", "export", "fit", "score", "inspect")


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


@pytest.mark.parametrize("command", OWN)
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser, modules = build_parser()
    if command not in modules:
        pytest.skip(f"no {command} yet")
    (table,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    check(f"help-{command}", described(table.choices[command]))
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    output = capsys.readouterr()
    assert output.out.startswith("usage: ridgefill " + command) and output.err == ""


def test_every_option_says_what_it_does() -> None:
    parser, modules = build_parser()
    (table,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    assert set(table.choices) == set(modules) <= set(COMMANDS)
    for command, own in table.choices.items():
        assert own.description and all(action.help for action in own._actions), command


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one of each kind of file, as the current one."""
    toy_folder(tmp_path / "folder")
    toy_file(tmp_path / "dense.safetensors", 64, 64)
    toy_model(tmp_path / "model.gguf")
    toy_model(tmp_path / "other.gguf", "llama", general__name=("str", "other"))
    (tmp_path / "page.html").write_text("<!DOCTYPE html><title>404</title>")
    (tmp_path / "empty.gguf").touch()
    monkeypatch.chdir(tmp_path)
    for name in ("RIDGEFILL_PROGRESS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    assert main(["convert", "folder", "-o", "good.gguf", "--base", "model.gguf"]) == 0
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "good.gguf").read_bytes()[:9000])
    return tmp_path


CASES = {
    "nothing": "",
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
