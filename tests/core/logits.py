"""Runs a fixed prompt and some decode steps and saves all logits: stock libraries, ours without a projector, ours off.

usage: logits.py WHO MODEL OUT.npy FLASH KV [SIDEFILE]     WHO: stock | plain | off
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np

N_UBATCH, N_PROMPT, N_DECODE, N_OUT = 32, 80, 6, 24
KV = {"f16": 1, "q8_0": 8}


def bindings(who: str):
    if who == "stock":
        from llama_cpp import llama_cpp
    else:
        from ridgefill_cpp._llama_cpp import llama_cpp
    return llama_cpp


def main() -> None:
    who, model_path, out, flash, kv, *side = sys.argv[1:]
    c = bindings(who)
    c.llama_backend_init()
    model = c.llama_model_load_from_file(model_path.encode(), c.llama_model_default_params())
    params = c.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 256, 128, N_UBATCH
    params.n_threads = params.n_threads_batch = 1
    params.flash_attn_type = 1 if flash == "on" else 0
    params.type_k = params.type_v = KV[kv]
    ctx = c.llama_init_from_model(model, params)
    n_vocab = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))

    if who == "off":
        from ridgefill_cpp import _capi
        from ridgefill_cpp._projector import Projector, make_params

        projector = Projector(model, side[0])
        projector.attach(ctx, make_params("off", 8, 4, 0))
        plan = _capi.llama_ridgefill_prompt(ctx, 0, 0, N_PROMPT, None)
        assert plan.mode == 0 and plan.bulk_begin == plan.bulk_end

    rows = []

    def decode(first: int, n: int) -> None:
        batch = c.llama_batch_init(n, 0, 1)
        batch.n_tokens = n
        for i in range(n):
            pos = first + i
            batch.token[i] = (pos * 7919 + 11) % n_vocab
            batch.pos[i] = pos
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = pos >= N_PROMPT - N_OUT
        assert c.llama_decode(ctx, batch) == 0
        for i in range(n):
            if batch.logits[i]:
                pointer = ctypes.cast(c.llama_get_logits_ith(ctx, i), ctypes.POINTER(ctypes.c_float))
                rows.append(np.ctypeslib.as_array(pointer, shape=(n_vocab,)).copy())
        c.llama_batch_free(batch)

    decode(0, N_PROMPT)
    for step in range(N_DECODE):
        decode(N_PROMPT + step, 1)
    np.save(out, np.stack(rows))


if __name__ == "__main__":
    main()
