"""Saved states and caches carry which rows were filled, and by which projector."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from llama_helpers import HEAD, TAIL, greedy

N = 250


@pytest.fixture
def speed_state(fresh, ids):
    greedy(fresh, ids[:N], n=2)
    return fresh.save_state()


def test_a_state_carries_its_mark_through_pickle(fresh, speed_state):
    copy = pickle.loads(pickle.dumps(speed_state))
    assert copy.ridgefill == {
        "identity": fresh.ridgefill.identity,
        "mode": "speed",
        "begin": HEAD,
        "end": N - TAIL,
    }


def test_load_restores_the_mark(fresh, speed_state, ids):
    fresh.reset()
    assert fresh._control.filled() == (0, 0)
    fresh.load_state(speed_state)
    assert fresh._control.filled() == (HEAD, N - TAIL)
    tokens, _ = greedy(fresh, ids[:N], n=2)
    fresh.load_state(speed_state)
    assert greedy(fresh, ids[:N], n=2)[0] == tokens


def test_an_off_prompt_after_a_load_reuses_no_filled_row(fresh, speed_state, ids):
    fresh.load_state(speed_state)
    greedy(fresh, ids[:N], n=1, ridgefill_mode="off")
    assert fresh.ridgefill.last.n_exact == N - HEAD


@pytest.mark.parametrize(
    "options, why",
    [
        ({"ridgefill": None}, "no side file"),
        ({"ridgefill_mode": "off"}, "mode 'off'"),
        ({"split": 25}, "with projector"),
        ({"logits_all": True}, "logits_all"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(make_llama, identity, speed_state, options, why):
    options = dict(options)
    if "split" in options:
        options["ridgefill"] = identity(options.pop("split"))
    other = make_llama(n_ctx=speed_state.input_ids.size, **options)
    with pytest.raises(ValueError, match=why) as error:
        other.load_state(speed_state)
    assert f"found rows {HEAD}..{N - TAIL - 1} filled in mode 'speed' by projector" in str(error.value)
    assert other.n_tokens == 0
    other.close()


def test_exact_states_load_anywhere(make_llama, fresh, ids):
    greedy(fresh, ids[:N], n=1, ridgefill_mode="off")
    state = fresh.save_state()
    assert state.ridgefill["begin"] == state.ridgefill["end"] == 0
    other = make_llama(ridgefill=None)
    other.load_state(state)
    assert other.n_tokens == N
    other.close()


def test_a_state_without_a_mark_is_exact(fresh, ids):
    greedy(fresh, ids[:N], n=1, ridgefill_mode="off")
    state = fresh.save_state()
    del state.ridgefill
    fresh.reset()
    fresh.load_state(state)
    assert fresh._control.filled() == (0, 0)
    greedy(fresh, ids[:N], n=1, ridgefill_mode="off")
    assert fresh.ridgefill.last.n_exact == 1  # the whole prompt was reused, one row refreshes the logits


@pytest.mark.parametrize(
    "mark", [{}, {"identity": 1, "begin": 5, "end": 2}, {"identity": "", "begin": 0, "end": 9999}, 3]
)
def test_a_bad_mark_is_refused(fresh, speed_state, mark):
    speed_state.ridgefill = mark
    with pytest.raises(ValueError, match="mark"):
        fresh.load_state(speed_state)


def test_ram_cache_serves_speed_and_misses_for_off(fresh, ids, text):
    from ridgefill_cpp import LlamaRAMCache

    fresh.set_cache(LlamaRAMCache())
    fresh.create_completion(ids[:N], max_tokens=1, temperature=0.0)
    other = ids[N : N + 60]
    fresh.create_completion(other, max_tokens=1, temperature=0.0)
    fresh.create_completion(ids[:N], max_tokens=1, temperature=0.0, ridgefill_mode="off")
    assert (fresh.ridgefill.last.n_filled, fresh.ridgefill.last.n_exact) == (0, N)
    fresh.create_completion(other, max_tokens=1, temperature=0.0)
    fresh.create_completion(ids[:N], max_tokens=1, temperature=0.0)
    assert fresh.ridgefill.last.n_exact <= 1


def test_disk_cache_keeps_the_mark(fresh, ids, tmp_path):
    from ridgefill_cpp import LlamaDiskCache

    fresh.set_cache(LlamaDiskCache(str(tmp_path)))
    fresh.create_completion(ids[:N], max_tokens=1, temperature=0.0)
    fresh.reset()
    fresh.create_completion(ids[:N], max_tokens=1, temperature=0.0, ridgefill_mode="off")
    assert fresh.ridgefill.last.n_exact == N


def test_restored_scores_keep_their_shape(fresh, speed_state):
    fresh.load_state(speed_state)
    assert np.array_equal(fresh.input_ids, speed_state.input_ids)
