"""A second real architecture: sliding windows, a head of its own size, a leading token."""

from __future__ import annotations

import numpy as np
import pytest
from llama_helpers import HEAD, TAIL, greedy

N = 200


@pytest.fixture(scope="module")
def gemma(gemma3, identity):
    from ridgefill_cpp import Llama

    options = {"n_ctx": 256, "n_batch": 256, "n_threads": 2, "n_threads_batch": 2, "seed": 1, "verbose": False}
    llm = Llama(
        str(gemma3),
        ridgefill=identity(12, gemma3),
        ridgefill_tail=TAIL,
        ridgefill_head=HEAD,
        ridgefill_min_bulk=32,
        **options,
    )
    plain = Llama(str(gemma3), **options)
    yield llm, plain
    llm.close()
    plain.close()


def test_off_equals_exact_and_speed_fills(gemma, text):
    llm, plain = gemma
    ids = plain.tokenize(text.encode())[:N]
    want, want_logits = greedy(plain, ids, n=2)
    got, got_logits = greedy(llm, ids, n=2, ridgefill_mode="off")
    assert got == want and np.array_equal(got_logits, want_logits)
    llm.reset()
    greedy(llm, ids, n=1)
    counts = llm.ridgefill.last
    assert (counts.mode, counts.n_filled, counts.n_exact) == ("speed", N - TAIL - HEAD, TAIL + HEAD)
    assert (llm.ridgefill.split, llm.ridgefill.n_maps) == (12, 5)
