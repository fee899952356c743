"""The request field and what answers report, on every completion endpoint."""

from __future__ import annotations

import pytest
from http_server import HEAD, TAIL, Server

ENDPOINTS = ("/completion", "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
BAD = (
    "Speed",
    "fast",
    "",
    True,
    1,
    ["off"],
    {"mode": "fast"},
    {"mode": 1},
    {"tail": 0},
    {"tail": -5},
    {"tail": 1.5},
    {"tail": "64"},
    {"tail": 2**31},
    {"tail": 2**63},
    {"tail": True},
    {"mode": "speed", "head": 1},
    {"share": 1.5},
    {"share": -0.1},
    {"share": "0.5"},
)


def body_of(endpoint: str, text: str) -> dict:
    message = [{"role": "user", "content": text}]
    return {
        "/completion": {"prompt": text, "n_predict": 2},
        "/v1/completions": {"prompt": text, "max_tokens": 2},
        "/v1/chat/completions": {"messages": message, "max_tokens": 2},
        "/v1/responses": {"input": text, "max_output_tokens": 2},
        "/v1/messages": {"messages": message, "max_tokens": 2},
    }[endpoint]


def words(server: Server, ids: list[int]) -> str:
    return server.post("/detokenize", {"tokens": ids})["content"]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("value", BAD, ids=repr)
def test_a_bad_value_is_a_400(server: Server, endpoint: str, value: object) -> None:
    status, reply = server.request("POST", endpoint, body_of(endpoint, "hello") | {"ridgefill": value})
    assert status == 400, reply
    message = reply["error"]["message"]
    assert "ridgefill" in message and "found" in message and 'allowed: "off", "plumb", "speed", "quality"' in message


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_endpoint_obeys_and_reports(server: Server, prompt, endpoint: str) -> None:
    text = words(server, prompt(300))
    filled = server.post(endpoint, body_of(endpoint, text))["timings"]["ridgefill"]
    assert filled["mode"] == "speed" and filled["n_filled"] > 0 and "reason" not in filled
    off = server.post(endpoint, body_of(endpoint, text) | {"ridgefill": "off"})["timings"]["ridgefill"]
    assert (off["mode"], off["n_filled"], off["reason"]) == ("off", 0, "off")


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_streamed_answers_report(server: Server, prompt, endpoint: str) -> None:
    text = words(server, prompt(300))
    reports = [
        event["timings"]["ridgefill"]
        for event in server.stream(endpoint, body_of(endpoint, text))
        if "timings" in event
    ]
    assert reports and reports[-1]["mode"] == "speed" and reports[-1]["n_filled"] > 0


@pytest.mark.parametrize("value", (None, {}, {"mode": None, "tail": None}), ids=repr)
def test_nothing_asked_is_the_servers_default(server: Server, prompt, value: object) -> None:
    assert server.complete(prompt(300), ridgefill=value).fill["n_filled"] == 300 - TAIL - HEAD


def test_a_tail_of_its_own(server: Server, prompt) -> None:
    answer = server.complete(prompt(300), ridgefill={"mode": "speed", "tail": 32})
    assert (answer.fill["n_filled"], answer.fill["n_exact"]) == (300 - 32 - HEAD, 32 + HEAD)


@pytest.mark.parametrize(("asked", "share"), (("quality", 0.13), ({"mode": "quality", "share": 0.5}, 0.5)), ids=repr)
def test_quality_reports_what_it_selected(server: Server, prompt, asked: object, share: float) -> None:
    answer = server.complete(prompt(300), ridgefill=asked)
    n_bulk = 300 - TAIL - HEAD
    n_selected = round(share * n_bulk)
    assert answer.fill == {
        "mode": "quality",
        "n_filled": n_bulk - n_selected,
        "n_exact": TAIL + HEAD + n_selected,
        "n_selected": n_selected,
        "n_filled_cached": 0,
    }


def test_short_prompts_are_exact(server: Server, prompt) -> None:
    answer = server.complete(prompt(100))
    assert answer.fill == {"mode": "speed", "n_filled": 0, "n_exact": 100, "n_filled_cached": 0, "reason": "short"}


def test_without_a_side_file(plain: Server, prompt) -> None:
    ids = prompt(300)
    default = plain.complete(ids)
    assert default.fill == {
        "mode": "off",
        "n_filled": 0,
        "n_exact": 300,
        "n_filled_cached": 0,
        "reason": "no_projector",
    }
    asked = plain.complete(ids, ridgefill="speed", cache_prompt=False)
    assert (asked.fill["mode"], asked.fill["reason"]) == ("speed", "no_projector")
    assert asked.text == default.text
    assert plain.get("/props")["ridgefill"] is None


def test_props_and_metrics(server: Server, prompt) -> None:
    props = server.get("/props")["ridgefill"]
    assert len(props.pop("identity")) == 64
    assert [text.split(":")[0] for text in props.pop("warnings")] == ["anchors-unchecked", "encodings-unchecked"]
    assert props == {
        "name": props["name"],
        "split": 10,
        "native": True,
        "mode": "speed",
        "select": "attention",
        "share": pytest.approx(0.13),
        "tail": TAIL,
        "head": HEAD,
        "min_bulk": 64,
    }

    def counters() -> dict[str, int]:
        lines = server.get("/metrics").splitlines()
        pairs = (line.split(" ") for line in lines if line.startswith("llamacpp:ridgefill_"))
        return {name: int(value) for name, value in pairs}

    before = counters()
    server.complete(prompt(300), cache_prompt=False)
    after = counters()
    grown = {name.split(":")[1]: after[name] - before[name] for name in after}
    n_filled = 300 - TAIL - HEAD
    assert grown == {"ridgefill_rows_filled_total": n_filled, "ridgefill_rows_exact_total": 300 - n_filled}


def test_a_filled_prompt_is_one_line_in_the_log(server: Server, prompt) -> None:
    n = len(server.log)
    server.complete(prompt(300))
    lines = [line for line in server.log[n:].splitlines() if "prompt filled" in line]
    assert len(lines) == 1
    assert "id  0" in lines[0] and "n_filled = 156, n_exact = 144" in lines[0]
