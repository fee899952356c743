"""Every way of giving a prompt: the mode of a call holds for that call, streams included."""

from __future__ import annotations

import pytest
from llama_helpers import HEAD, TAIL

N = 250


@pytest.fixture(scope="module")
def prompt(llm, ids) -> str:
    return llm.detokenize(ids[:N]).decode()


@pytest.fixture(scope="module")
def messages(prompt):
    return [{"role": "user", "content": prompt}]


def last(llm):
    counts = llm.ridgefill.last
    return counts.mode, counts.n_filled, counts.reason


def filled(llm, n_prompt: int) -> int:
    return n_prompt - HEAD - TAIL


def test_call_and_create_completion(fresh, prompt):
    out = fresh(prompt, max_tokens=2, temperature=0.0)
    n = out["usage"]["prompt_tokens"]
    assert last(fresh) == ("speed", filled(fresh, n), "none")
    out = fresh.create_completion(prompt, max_tokens=2, temperature=0.0, ridgefill_mode="off")
    assert last(fresh) == ("off", 0, "off")
    assert fresh.ridgefill.mode == "speed"


def test_echo_gives_the_prompt_back(fresh, prompt):
    out = fresh(prompt, max_tokens=1, echo=True)
    assert out["choices"][0]["text"].startswith(prompt)
    assert last(fresh)[0] == "speed"


def test_stream_keeps_its_mode_between_other_work(fresh, prompt):
    stream = fresh(prompt, max_tokens=3, temperature=0.0, stream=True, ridgefill_mode="off")
    fresh.eval([1, 2, 3])  # other work in the default mode before the stream is read
    assert last(fresh) == ("speed", 0, "short")
    text = "".join(chunk["choices"][0]["text"] for chunk in stream)
    assert last(fresh) == ("off", 0, "off")
    fresh.reset()
    assert text == fresh(prompt, max_tokens=3, temperature=0.0, ridgefill_mode="off")["choices"][0]["text"]


def test_a_stream_that_is_dropped_leaves_no_override(fresh, prompt):
    stream = fresh(prompt, max_tokens=8, stream=True, ridgefill_mode="off", ridgefill_tail=9)
    next(stream)
    stream.close()
    assert fresh._control.params().mode == 2 and fresh._control.params().n_tail == TAIL
    fresh.reset()
    fresh(prompt, max_tokens=1)
    assert last(fresh)[0] == "speed" and last(fresh)[1] > 0


def test_chat(fresh, messages):
    answer = fresh.create_chat_completion(messages, max_tokens=2, temperature=0.0)
    n = answer["usage"]["prompt_tokens"]
    assert last(fresh) == ("speed", filled(fresh, n), "none")
    fresh.create_chat_completion(messages, max_tokens=2, temperature=0.0, ridgefill_mode="off")
    assert last(fresh) == ("off", 0, "off")


def test_chat_stream(fresh, messages):
    stream = fresh.create_chat_completion(messages, max_tokens=2, temperature=0.0, stream=True, ridgefill_tail=100)
    deltas = [chunk["choices"][0]["delta"] for chunk in stream]
    assert deltas[0]["role"] == "assistant"
    counts = fresh.ridgefill.last
    assert counts.mode == "speed" and counts.n_exact == 100 + HEAD


def test_a_handler_that_starts_late_still_sees_the_mode(fresh, ids):
    def late(*, llama, **_):
        def run():
            yield from llama.create_completion(ids[:N], max_tokens=1, stream=True)

        return run()

    fresh.chat_handler = late
    try:
        list(fresh.create_chat_completion([], stream=True, ridgefill_mode="off"))
    finally:
        fresh.chat_handler = None
    assert last(fresh) == ("off", 0, "off")


def test_generate_accepts_tokens_sent_back(make_llama, ids):
    llm = make_llama(logits_all=True, n_ctx=128)  # the base class samples every row that was sent
    steps = llm.generate(ids[:100], temp=0.0)
    next(steps)
    steps.send([ids[100], ids[101]])
    assert llm.n_tokens <= 103 and list(llm.input_ids[:100]) == ids[:100]
    assert last(llm) == ("speed", 0, "short")
    steps.close()
    llm.close()


def test_generate_stops_with_the_base_class(fresh, ids):
    assert list(fresh.generate(ids[:N], temp=0.0, stopping_criteria=lambda tokens, logits: True)) == []
    assert last(fresh)[1] == filled(fresh, N)
