"""Which cached rows a request may use: an answer never depends on the mode of earlier requests."""

from __future__ import annotations

import pytest
from http_server import HEAD, MIN_BULK, TAIL, Server

N = 300
N_BULK = N - TAIL - HEAD
N_PREDICT = 6  # Server.complete's
CLOSE = 0.02  # same rows, same batches: equal but for the machine
SHAPE = 0.5  # same rows, other batches: a quantised model rounds by so much with the shape of a batch
FAR = 0.6  # what filled rows cost with the identity side file; 7 of 20 prompts cost less


def test_the_oracle_has_power(server: Server, prompt, exact) -> None:
    ids = prompt(N)
    assert max(server.complete(p).distance(exact(p)) for p in (ids, prompt(N, 1), prompt(N, 2))) > FAR
    assert server.complete(ids, ridgefill="off", cache_prompt=False).distance(exact(ids)) == 0


def test_modes_on_one_slot(server: Server, prompt, exact) -> None:
    ids = prompt(N)
    speed = server.complete(ids)
    assert (speed.n_cached, speed.n_prompt) == (0, N)
    assert speed.fill == {"mode": "speed", "n_filled": N_BULK, "n_exact": N - N_BULK, "n_filled_cached": 0}

    off = server.complete(ids, ridgefill="off")
    assert off.n_cached in (0, HEAD)
    assert off.fill == {
        "mode": "off",
        "n_filled": 0,
        "n_exact": N - off.n_cached,
        "n_filled_cached": 0,
        "reason": "off",
    }
    assert off.distance(exact(ids, off.n_cached)) <= CLOSE

    again = server.complete(ids)  # exact rows serve every mode
    assert (again.n_cached, again.fill["n_filled_cached"], again.fill["reason"]) == (N - 1, 0, "cached")
    assert again.distance(exact(ids, N - 1)) <= SHAPE

    last = server.complete(ids, ridgefill="off")
    assert last.n_cached == N - 1
    assert last.distance(exact(ids, N - 1)) <= SHAPE


def test_plumb_reuses_like_off(server: Server, prompt, exact) -> None:
    ids = prompt(N)
    server.complete(ids)
    plumb = server.complete(ids, ridgefill="plumb")
    assert plumb.n_cached in (0, HEAD)
    assert (plumb.fill["mode"], plumb.fill["n_filled"], plumb.fill["reason"]) == ("plumb", 0, "plumb")
    assert plumb.distance(exact(ids, plumb.n_cached)) <= CLOSE


def test_quality_reuses_exact_rows_only(server: Server, prompt, exact) -> None:
    ids = prompt(N)
    everything = {"mode": "quality", "share": 1}
    server.complete(ids)
    quality = server.complete(ids, ridgefill=everything)
    assert quality.n_cached in (0, HEAD) and quality.fill["n_selected"] == N_BULK
    # every row ran exactly, in two halves
    assert quality.distance(exact(ids, quality.n_cached)) <= SHAPE
    assert server.complete(ids, ridgefill="off").n_cached in (0, HEAD)
    # exact rows that "off" left in the RAM cache may serve, filled ones never
    assert server.complete(ids, ridgefill="quality").fill["n_filled_cached"] == 0


def test_modes_through_the_ram_cache(server: Server, prompt, exact) -> None:
    ids, other = prompt(N), prompt(200, 1)
    server.complete(ids)
    server.complete(other, ridgefill="off")  # `ids` goes to the RAM cache, filled
    off = server.complete(ids, ridgefill="off")
    assert off.n_cached in (0, HEAD)
    assert off.distance(exact(ids, off.n_cached)) <= CLOSE

    server.complete(other, ridgefill="off")  # now the RAM cache holds `ids` twice
    exact_again = server.complete(ids, ridgefill="off")
    assert exact_again.n_cached == N - 1
    assert exact_again.distance(exact(ids, N - 1)) <= SHAPE

    server.complete(other, ridgefill="off")
    speed = server.complete(ids)
    assert speed.n_cached == N - 1
    assert speed.fill["n_filled_cached"] == N_BULK or speed.distance(exact(ids, N - 1)) <= SHAPE


def test_the_server_chooses_the_state_that_the_mode_may_use(server: Server, prompt, exact) -> None:
    """A short exact state and a long filled one of the same chat are both in RAM."""
    ids, other = prompt(N), prompt(200, 1)
    server.complete(ids)
    server.complete(other, ridgefill="off")
    assert server.complete(ids[:200], ridgefill="off").n_cached in (0, HEAD)
    server.complete(other, ridgefill="off")

    speed = server.complete(ids)
    assert (speed.n_cached, speed.fill["n_filled_cached"]) == (N - 1, N_BULK)
    server.complete(other, ridgefill="off")
    off = server.complete(ids, ridgefill="off")
    assert 200 <= off.n_cached <= 200 + N_PREDICT  # generated tokens may be the prompt's own next ones
    assert off.fill["n_filled_cached"] == 0
    assert off.distance(exact(ids, off.n_cached)) <= 2 * SHAPE  # the batches differ by a row


def test_a_tail_that_falls_into_filled_rows_is_run_again(server: Server, prompt, exact) -> None:
    ids = prompt(400)
    server.complete(ids)  # filled: 16 .. 272
    short = server.complete(ids[:N])
    assert short.n_cached <= N - TAIL
    assert short.fill["n_exact"] >= TAIL
    assert short.n_cached == 0 or short.fill["n_filled_cached"] == short.n_cached - HEAD


def test_a_longer_tail_is_run_again(server: Server, prompt) -> None:
    ids = prompt(N)
    server.complete(ids)
    longer = server.complete(ids, ridgefill={"tail": 200})
    assert longer.fill["mode"] == "speed"
    assert longer.n_cached <= N - 200
    assert longer.fill["n_exact"] >= 200


def test_a_prompt_too_short_to_fill_reuses_exact_rows_only(server: Server, prompt, exact) -> None:
    ids, n = prompt(N), HEAD + MIN_BULK + TAIL - 1
    server.complete(ids)
    short = server.complete(ids[:n])
    assert short.n_cached in (0, HEAD)
    assert (short.fill["n_filled"], short.fill["reason"]) == (0, "short")
    assert short.distance(exact(ids[:n], short.n_cached)) <= CLOSE


def test_the_second_turn_keeps_what_was_filled(server: Server, prompt) -> None:
    ids = prompt(500)
    server.complete(ids[:N])
    second = server.complete(ids)
    assert N <= second.n_cached <= N + N_PREDICT  # generated tokens may be the prompt's own next ones
    assert second.fill["n_filled_cached"] == N_BULK
    assert (second.fill["n_filled"], second.fill["n_exact"]) == (500 - TAIL - second.n_cached, TAIL)


def test_a_cancelled_prompt(server: Server, prompt, exact) -> None:
    ids = prompt(700)
    body = {"prompt": ids, "n_predict": 4, "temperature": 0, "id_slot": 0, "return_progress": True}
    events = server.stream("/completion", body)
    for event in events:
        if event.get("prompt_progress", {}).get("processed", 0) >= 256:
            break
    events.close()

    again = server.complete(ids)
    assert again.n_cached % 256 == 0 or again.n_cached >= 700 - 1 - 4  # a finished chunk, or it was done already
    assert again.fill["n_filled"] + again.fill["n_filled_cached"] > 700 - TAIL - HEAD - MIN_BULK
    assert again.fill["n_filled_cached"] == max(0, min(again.n_cached, 700 - TAIL) - HEAD)
    off = server.complete(ids, ridgefill="off")
    assert off.n_cached in (0, HEAD)
    assert off.distance(exact(ids, off.n_cached)) <= CLOSE


def test_chunks_are_not_moved_where_rows_are_filled(server: Server, prompt) -> None:
    ids = prompt(400)
    cut = ids[:200] + ids[240:]
    server.complete(ids, ridgefill="off")
    moved = server.complete(cut, ridgefill="off", n_cache_reuse=64)
    assert moved.n_cached > 200  # upstream's feature still works on exact rows
    server.erase()

    server.complete(ids)
    kept = server.complete(cut, n_cache_reuse=64)
    assert kept.n_cached == 200
    assert kept.fill["n_exact"] >= TAIL


def test_two_completions_share_one_filled_prompt(server: Server, prompt) -> None:
    replies = server.post("/completion", {"prompt": prompt(N), "n_predict": 6, "temperature": 0, "n_cmpl": 2})
    assert len({reply["content"] for reply in replies}) == 1
    for reply in replies:
        assert reply["timings"]["ridgefill"]["n_filled"] == N_BULK


@pytest.fixture(scope="module")
def shifting(start, side_file) -> Server:
    plan = ("--ridgefill-tail", 64, "--ridgefill-head", 8, "--ridgefill-min-bulk", 32)
    return start("--ridgefill", side_file, *plan, "-c", 256, "-np", 1, "--context-shift", "--cache-ram", 0)


def test_rows_that_a_context_shift_moved_count_as_filled(shifting: Server, prompt) -> None:
    ids = prompt(200)
    shifted = shifting.complete(ids, n_predict=100, ignore_eos=True)
    assert shifted.fill["n_filled"] == 200 - 64 - 8
    assert "context shift" in shifting.log
    off = shifting.complete(ids, ridgefill="off")
    assert off.n_cached == 0
    assert shifting.complete(ids, ridgefill="off", cache_prompt=False).distance(off) == 0
