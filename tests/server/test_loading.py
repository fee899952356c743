"""Side files that are refused, reloading after sleep, presets."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from http_server import PLAN, ServerDied

SMALL = ("-c", 1024, "-np", 1, "--no-warmup")


def bad_file(kind: str, side_file: Path, smollm2: Path, folder: Path) -> Path:
    path = folder / "bad.gguf"
    whole = side_file.read_bytes()
    if kind == "missing":
        return folder / "no such file.gguf"
    if kind == "the model itself":
        return smollm2
    path.write_bytes(
        {"empty": b"", "cut": whole[: len(whole) // 2], "a web page": b"<html><body>404</body></html>"}[kind]
    )
    return path


@pytest.mark.parametrize("kind", ("missing", "empty", "cut", "a web page", "the model itself"))
def test_strict_ends_with_status_1(start, side_file: Path, smollm2: Path, tmp_path: Path, kind: str) -> None:
    path = bad_file(kind, side_file, smollm2, tmp_path)
    with pytest.raises(ServerDied) as ended:
        start("--ridgefill", path, "--ridgefill-strict", *SMALL)
    assert ended.value.status == 1
    lines = [line for line in ended.value.log.splitlines() if "ridgefill: " in line]
    assert len(lines) == 1 and path.name in lines[0] and " E " in lines[0]


def test_without_strict_one_warning_and_exact(start, side_file: Path, smollm2: Path, tmp_path: Path, prose) -> None:
    path = bad_file("cut", side_file, smollm2, tmp_path)
    server = start("--ridgefill", path, *PLAN, *SMALL)
    lines = [line for line in server.log.splitlines() if "ridgefill: " in line]
    assert len(lines) == 1 and path.name in lines[0] and " W " in lines[0] and "every prompt runs exactly" in lines[0]
    answer = server.complete(prose[:300])
    assert (answer.fill["mode"], answer.fill["n_filled"], answer.fill["reason"]) == ("speed", 0, "no_projector")
    (why,) = server.get("/props")["ridgefill"].values()
    assert why.startswith("truncated: ") and why in lines[0]
    server.close()


def test_warnings_are_in_the_log_and_in_props(start, side_file: Path, smollm2: Path, tmp_path: Path) -> None:
    """A file for a model of another name and other norms loads; one that does not state its fingerprints says so."""
    from ridgefill_cpp.anchors import anchors
    from ridgefill_cpp.gguf_reader import read_gguf
    from ridgefill_cpp.rewrite import write_copy
    from ridgefill_cpp.sidefile import open_sidefile

    side = open_sidefile(side_file)
    base = replace(side.header.base, name="another", tokenizer_sha256=None)
    names = [entry.split()[0] for entry in anchors(read_gguf(smollm2, model=True), 10)]
    other = tuple(f"{name} {'0' * 64}" for name in names)
    write_copy(side, tmp_path / "w.gguf", replace(side.header, base=base, anchors=other), [])
    server = start("--ridgefill", tmp_path / "w.gguf", *PLAN, *SMALL)
    found = server.get("/props")["ridgefill"]["warnings"]
    codes = [text.split(":")[0] for text in found]
    assert codes == ["base-name", "tokenizer-unchecked", "base-anchors", "encodings-unchecked"]
    assert all(text in server.log for text in found)
    server.close()


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--ridgefill-mode", "fast", "off, plumb, speed"),
        ("--ridgefill-tail", "0", "1 to 2147483647"),
        ("--ridgefill-tail", "12x", "1 to 2147483647"),
        ("--ridgefill-head", "-1", "0 to 2147483647"),
        ("--ridgefill-min-bulk", "9999999999", "0 to 2147483647"),
    ],
)
def test_a_bad_option(start, option: str, value: str, allowed: str) -> None:
    with pytest.raises(ServerDied) as ended:
        start(option, value)
    assert ended.value.status == 1
    assert f"\"{option}\": found '{value}', allowed: {allowed}" in ended.value.log


def test_the_side_file_is_back_after_sleep(start, side_file: Path, prose) -> None:
    server = start("--ridgefill", side_file, *PLAN, *SMALL, "--sleep-idle-seconds", 1)
    first = server.complete(prose[:300])
    deadline = time.monotonic() + 30
    while not server.get("/props")["is_sleeping"]:
        assert time.monotonic() < deadline, "did not fall asleep"
        time.sleep(0.2)
    assert server.get("/props")["ridgefill"]["split"] == 10
    again = server.complete(prose[:300])
    assert (again.n_cached, again.fill, again.text) == (0, first.fill, first.text)
    server.close()


def test_presets_know_the_options(start, side_file: Path, smollm2: Path, tmp_path: Path, prose) -> None:
    preset = tmp_path / "models.ini"
    preset.write_text(
        f"version = 1\n[*]\nmodel = {smollm2}\nc = 1024\nnp = 1\nridgefill = {side_file}\nridgefill-tail = 128\n"
        "ridgefill-min-bulk = 64\n[filled]\nridgefill-head = 32\n[exact]\nridgefill-mode = off\n[none]\nridgefill =\n"
    )
    server = start("--models-preset", preset, model=None)
    want = {"filled": ("speed", None), "exact": ("off", "off"), "none": ("off", "no_projector")}
    for name, report in want.items():
        reply = server.post("/v1/completions", {"model": name, "prompt": prose[:300], "max_tokens": 1})
        fill = reply["timings"]["ridgefill"]
        assert (fill["mode"], fill.get("reason")) == report, name
        assert fill["n_filled"] == (300 - 128 - 32 if name == "filled" else 0)
    server.close()
