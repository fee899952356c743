"""Slot files: a filled slot is not saved; an exact one is saved and restored as upstream does."""

from __future__ import annotations

from pathlib import Path

from http_server import TAIL, Server

N = 300


def test_a_filled_slot_is_not_saved(server: Server, prompt) -> None:
    server.complete(prompt(N))
    status, reply = server.request("POST", "/slots/0?action=save", {"filename": "filled.bin"})
    assert status == 501, reply
    assert "filled by RidgeFill" in reply["error"]["message"]
    assert f"16 to {N - TAIL}" in reply["error"]["message"]


def test_an_exact_slot_is_saved_as_upstream_saves_it(server: Server, plain: Server, prompt, slot_files: Path) -> None:
    ids = prompt(N)
    for who, name in ((server, "ours.bin"), (plain, "plain.bin")):
        who.erase()
        who.complete(ids, ridgefill="off", cache_prompt=False)
        who.post("/slots/0?action=save", {"filename": name})
    assert (slot_files / "ours.bin").read_bytes() == (slot_files / "plain.bin").read_bytes()


def test_a_restored_slot_holds_exact_rows(server: Server, prompt) -> None:
    ids = prompt(N)
    before = server.complete(ids, ridgefill="off")
    server.post("/slots/0?action=save", {"filename": "exact.bin"})
    server.complete(prompt(N, 1))  # the slot holds filled rows now
    server.post("/slots/0?action=restore", {"filename": "exact.bin"})
    after = server.complete(ids, ridgefill="off")
    assert (after.n_cached, after.text) == (N - 1, before.text)


def test_erasing_forgets_what_was_filled(server: Server, prompt) -> None:
    server.complete(prompt(N))
    server.erase()
    server.complete(prompt(64, 1), ridgefill="off")
    server.post("/slots/0?action=save", {"filename": "erased.bin"})
