"""Several slots in one batch: each answers as if it were alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from http_server import HEAD, PLAN, SLOTS, TAIL, Answer, Server

WORDS = ("copper", "violet", "window", "pepper")
ROUNDING = 0.5  # log-probabilities of a quantised model move by so much with the shape of the batch


@pytest.fixture(scope="module")
def unified(start, side_file) -> Server:
    return start("--ridgefill", side_file, *PLAN, *SLOTS, "--kv-unified", "--slot-save-path", side_file.parent)


@pytest.fixture(params=("own memory per slot", "unified memory"))
def four(request: pytest.FixtureRequest, server: Server) -> Server:
    if request.param == "unified memory":
        server = request.getfixturevalue("unified")
        for slot in range(4):
            server.erase(slot)
    return server


def ask_all(server: Server, bodies: list[dict]) -> list[Answer]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: server.complete(**body), bodies))


def with_word(server: Server, ids: list[int], word: str) -> list[int]:
    """The prompt, ended by a word so often that rounding (the shape of a batch) does not decide what comes next."""
    return ids + server.tokenize(f" {word}" * 40)


def test_equal_prompts_at_once_give_one_answer(four: Server, prompt) -> None:
    body = {"prompt": with_word(four, prompt(360), "copper"), "id_slot": -1, "n_predict": 8}
    answers = ask_all(four, [body] * 4)
    assert {answer.text for answer in answers} == {" copper" * 8}
    assert {answer.fill["n_filled"] for answer in answers} == {len(body["prompt"]) - TAIL - HEAD}


def test_a_mixed_batch(four: Server, prompt) -> None:
    """Filling, exact, short and checked prompts of many lengths start together, and decode while others are filled."""
    modes, sizes = ("speed", "off", "speed", "plumb"), (500, 250, 80, 380)
    bodies = [
        {"prompt": with_word(four, prompt(size, i % 3), word), "ridgefill": mode, "id_slot": i, "n_predict": 16}
        for i, (mode, size, word) in enumerate(zip(modes, sizes, WORDS, strict=True))
    ]
    together = ask_all(four, bodies)
    assert [answer.fill.get("reason") for answer in together] == [None, "off", "short", "plumb"]
    for body, answer, word in zip(bodies, together, WORDS, strict=True):
        assert answer.text.startswith(f" {word} {word}")
        alone = four.complete(**body, cache_prompt=False)
        assert alone.distance(answer) < ROUNDING
        assert alone.fill["n_filled"] == answer.fill["n_filled"]
