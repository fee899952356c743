"""What is filled, what is exact, and what a later call may reuse."""

from __future__ import annotations

import numpy as np
import pytest
from llama_helpers import HEAD, N_CTX, TAIL, greedy, last_logits

N = 400


@pytest.fixture(scope="module")
def cold(make_llama, ids):
    """What a fresh object without a side file answers: (tokens, logits) of ids[:N]."""
    from ridgefill_cpp._llama_cpp import Llama as Base

    plain = make_llama(ridgefill=None)
    base = Base(plain.model_path, n_ctx=N_CTX, n_threads=2, n_threads_batch=2, seed=1, verbose=False)
    a, b = greedy(plain, ids[:N]), greedy(base, ids[:N])
    assert a[0] == b[0] and np.array_equal(a[1], b[1])
    base.close()
    plain.close()
    return b


def last(llm):
    counts = llm.ridgefill.last
    return counts.mode, counts.n_filled, counts.n_exact, counts.reason


def test_off_equals_the_base_class(fresh, ids, cold):
    tokens, logits = greedy(fresh, ids[:N], ridgefill_mode="off")
    assert tokens == cold[0] and np.array_equal(logits, cold[1])
    assert last(fresh) == ("off", 0, N, "off")


def test_plumb_equals_exact(fresh, ids, cold):
    tokens, logits = greedy(fresh, ids[:N], ridgefill_mode="plumb")
    assert tokens == cold[0] and np.abs(logits - cold[1]).max() <= 1e-5 * np.abs(cold[1]).max() + 1
    assert last(fresh)[:2] == ("plumb", 0)


def test_speed_fills_the_bulk(fresh, ids, cold):
    _, logits = greedy(fresh, ids[:N])
    assert last(fresh) == ("speed", N - TAIL - HEAD, TAIL + HEAD, "none")
    assert not np.array_equal(logits, cold[1])
    assert fresh._control.filled() == (HEAD, N - TAIL)


@pytest.mark.parametrize("n_batch", [768, 100])
def test_quality_selects_a_share(make_llama, ids, n_batch):
    llm = make_llama(n_batch=n_batch, n_ubatch=64, ridgefill_mode="quality", ridgefill_share=0.5)
    greedy(llm, ids[:N], n=2)
    n_bulk = N - TAIL - HEAD
    assert last(llm) == ("quality", n_bulk // 2, N - n_bulk // 2, "none")
    assert llm.ridgefill.last.n_selected == n_bulk // 2
    assert (llm.ridgefill.select, llm.ridgefill.share) == ("attention", 0.5)
    # what it filled was chosen for that prompt's end, so nothing of it is reused
    greedy(llm, ids[:N], n=1)
    assert last(llm) == ("quality", n_bulk // 2, N - HEAD - n_bulk // 2, "none")
    llm.close()


def test_quality_with_every_row_equals_exact(make_llama, ids, cold):
    llm = make_llama(ridgefill_mode="quality", ridgefill_select="all")
    tokens, logits = greedy(llm, ids[:N])
    assert tokens == cold[0]
    # the rows ran in other batches, and with them the rounding
    assert np.abs(logits - cold[1]).max() < 0.5
    llm.close()


def test_decode_steps_do_not_count(fresh, ids):
    greedy(fresh, ids[:N], n=8)
    assert last(fresh) == ("speed", N - TAIL - HEAD, TAIL + HEAD, "none")


def test_tail_of_a_call(fresh, ids):
    greedy(fresh, ids[:N], ridgefill_tail=150)
    assert last(fresh) == ("speed", N - 150 - HEAD, 150 + HEAD, "none")
    assert fresh.ridgefill.tail == TAIL


def test_short_prompts_are_exact(fresh, ids):
    greedy(fresh, ids[:100])
    assert last(fresh) == ("speed", 0, 100, "short")


@pytest.mark.parametrize("n_batch", [768, 100])
def test_counts_do_not_depend_on_the_batch(make_llama, ids, n_batch):
    llm = make_llama(n_batch=n_batch, n_ubatch=64)
    greedy(llm, ids[:N], n=1)
    assert last(llm) == ("speed", N - TAIL - HEAD, TAIL + HEAD, "none")
    llm.close()


def test_off_after_speed_equals_cold(fresh, ids, cold):
    greedy(fresh, ids[:N])
    tokens, logits = greedy(fresh, ids[:N], ridgefill_mode="off")
    assert tokens == cold[0]
    # rows 0..15 were exact and are reused, so the batches differ and with them the rounding
    assert np.abs(logits - cold[1]).max() < 0.5
    assert last(fresh) == ("off", 0, N - HEAD, "off")


def test_speed_after_off_reuses_exact_rows(fresh, ids, cold):
    greedy(fresh, ids[:N], n=1, ridgefill_mode="off")
    tokens, _ = greedy(fresh, ids[:N])
    assert tokens == cold[0]


def test_speed_reuses_filled_rows_outside_the_new_tail(fresh, ids):
    greedy(fresh, ids[:N], n=1)
    greedy(fresh, ids[: N + 200], n=1)
    mode, n_filled, n_exact, _ = last(fresh)
    assert (mode, n_filled + n_exact) == ("speed", 200)
    assert n_exact >= TAIL


def test_filled_rows_of_a_new_tail_run_again(fresh, ids):
    greedy(fresh, ids[:N], n=1)
    greedy(fresh, ids[:250], n=1)  # ends inside the old bulk
    assert last(fresh)[2] == TAIL
    assert fresh._control.filled() == (HEAD, 250 - TAIL)


def test_a_prompt_too_short_to_fill_reuses_no_filled_row(fresh, ids):
    greedy(fresh, ids[:N], n=1)
    greedy(fresh, ids[:100], n=1)
    assert last(fresh) == ("speed", 0, 100 - HEAD, "short")
    assert fresh._control.filled() == (0, 0)


def test_continuing_filled_rows_in_mode_off_is_refused(fresh, ids):
    greedy(fresh, ids[:N], n=1)
    with pytest.raises(ValueError, match=r"after rows 16\.\.335 that were filled"):
        next(fresh.generate(ids[N : N + 5], reset=False, ridgefill_mode="off"))
    with pytest.raises(ValueError, match="allowed 'speed'"):
        fresh.eval(ids[N : N + 5], ridgefill_mode="off")
    fresh.eval(ids[N : N + 5])
    assert last(fresh) == ("speed", 0, 5, "short")


def test_eval_of_a_prompt_is_planned(fresh, ids):
    fresh.eval(ids[:N])
    assert last(fresh) == ("speed", N - TAIL - HEAD, TAIL + HEAD, "none")
    fresh.eval(ids[N : N + 1])
    assert last(fresh) == ("speed", N - TAIL - HEAD, TAIL + HEAD, "none")
    assert fresh.n_tokens == N + 1 and list(fresh.input_ids[: N + 1]) == ids[: N + 1]


def test_the_same_prompt_again_samples_at_once(fresh, ids):
    fresh.eval(ids[:N])
    logits = last_logits(fresh)
    greedy(fresh, ids[:N], n=1)
    assert np.array_equal(last_logits(fresh), logits)
    assert last(fresh)[1:3] == (0, 0)


def test_logits_all_runs_exactly(make_llama, ids):
    llm = make_llama(logits_all=True, n_ctx=512)
    out = llm.create_completion(ids[:300], max_tokens=2, logprobs=1, echo=False, temperature=0.0)
    assert out["choices"][0]["logprobs"]["token_logprobs"]
    assert last(llm) == ("speed", 0, 300, "outputs")
    llm.close()


def test_a_draft_model_runs_exactly(make_llama, ids):
    from ridgefill_cpp._llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    llm = make_llama(draft_model=LlamaPromptLookupDecoding(num_pred_tokens=4), n_ctx=512)
    llm.create_completion(ids[:300], max_tokens=8, temperature=0.0)
    assert last(llm) == ("speed", 0, 300, "outputs")
    llm.close()


def test_embeddings_are_exact(make_llama, text):
    words = text[:2000]
    got = make_llama(embedding=True, n_ctx=1024, n_batch=1024, n_ubatch=1024)
    want = make_llama(embedding=True, n_ctx=1024, n_batch=1024, n_ubatch=1024, ridgefill=None)
    assert np.array_equal(got.embed(words), want.embed(words))
    got.close()
    want.close()
