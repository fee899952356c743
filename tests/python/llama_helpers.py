"""Reading what a Llama object computed."""

from __future__ import annotations

import itertools

import numpy as np

TAIL, HEAD, N_CTX = 64, 16, 768


def last_logits(llm) -> np.ndarray:
    """Logits of the last decoded row, F32 [n_vocab]."""
    return np.ctypeslib.as_array(llm._ctx.get_logits_ith(-1), shape=(llm.n_vocab(),)).copy()


def greedy(llm, ids, n: int = 4, **kwargs) -> tuple[list[int], np.ndarray]:
    """(n greedy tokens, logits from which the first was taken)."""
    steps = llm.generate(ids, temp=0.0, top_k=1, **kwargs)
    first = next(steps)
    logits = last_logits(llm)
    tokens = [first, *itertools.islice(steps, n - 1)]
    steps.close()
    return tokens, logits
