#!/usr/bin/env python3
"""Can a fact that stands only in the filled part of a prompt still be found? Needles in held-out text, by mode.

    tools/needles.py -m model.gguf -p proj.gguf [--arms exact,speed,quality] [--items 20] [--tokens 1536] [--tail 512]

Each item: a held-out text with the sentence "The magic number of <word> is <5 digits>." at a depth inside the bulk, and
the beginning of the same sentence as the prompt's end. Found: greedy decoding continues with exactly these digits.
Prints one line per arm; --json FILE writes them.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

import numpy as np
from ridgefill_cpp._arms import nll_of
from ridgefill_cpp._projector import make_params
from ridgefill_cpp._session import Session
from ridgefill_cpp.fit.stdlib import stdlib_texts
from ridgefill_cpp.modes import parse_quality

WORDS = ("Lisbon", "Oslo", "Quito", "Nairobi", "Lima", "Hanoi", "Tunis", "Riga", "Sofia", "Accra", "Doha", "Minsk")


def make_items(session: Session, count: int, tokens: int, tail: int, head: int, seed: int) -> list[tuple[list, list]]:
    """(prompt ids, answer ids) of each item; the needle lies wholly in the bulk."""
    rng = random.Random(seed)
    texts = [ids for ids in (session.tokenize(d.text) for d in stdlib_texts()[1]) if len(ids) > tokens]
    items = []
    for i in range(count):
        word, number = rng.choice(WORDS), f"{rng.randrange(100000):05d}"
        stem = f" The magic number of {word} is"
        needle = session.tokenize(f"\n{stem.strip()} {number}.\n")
        question = session.tokenize(f"\n\nQuestion: What is the magic number of {word}?\nAnswer:{stem}")
        answer = session.tokenize(f" {number}")
        ids = texts[i % len(texts)]
        room = tokens - len(question) - len(needle)
        start = rng.randrange(len(ids) - room + 1)
        filler = ids[start : start + room]
        # anywhere between head and tail
        at = rng.randrange(head + 16, tokens - tail - len(needle) - 16)
        items.append((filler[:at] + needle + filler[at:] + question, answer))
    return items


def measure(session: Session, items: list, projector: object, params: object) -> tuple[int, float]:
    """(found, nats per answer token)"""
    session.attach(projector, params)
    found, nll = 0, []
    for prompt, answer in items:
        ids, n = prompt + answer, len(prompt)
        top, loss = [], []
        for first, logits in session.decode(ids, range(n - 1, len(ids) - 1), (), params, n_prompt=n):
            one, best = nll_of(logits, ids[first + 1 : first + 1 + len(logits)])
            loss += list(one)
            top += list(best)
        found += top == answer
        nll.append(float(np.mean(loss)))
    return found, float(np.mean(nll))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-p", "--projector", required=True)
    parser.add_argument("--arms", default="exact,speed,quality,quality:spans:0.1,quality:rows:0.25")
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=1536)
    parser.add_argument("--tail", type=int, default=512)
    parser.add_argument("--head", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    rows = []
    with Session(args.model, args.tokens + 64) as session:
        projector = session.load(args.projector)
        items = make_items(session, args.items, args.tokens, args.tail, args.head, args.seed)
        for arm in args.arms.split(","):
            quality = parse_quality(arm)
            if arm not in ("exact", "speed") and quality is None:
                parser.error(f"--arms: found {arm!r}, allowed exact, speed, quality, quality:SELECT:SHARE")
            mode = {"exact": "off", "speed": "speed"}.get(arm, "quality")
            params = make_params(mode, args.tail, args.head, 0, *(quality or ()))
            found, nll = measure(session, items, projector, params)
            rows.append({"arm": arm, "items": len(items), "found": found, "nll": round(nll, 4)})
            print(f"{arm:24} found {found:3} of {len(items)}, answer {nll:.3f} nats per token", flush=True)
    if args.json:
        args.json.write_text(
            json.dumps({"tokens": args.tokens, "tail": args.tail, "seed": args.seed, "arms": rows}, indent=1)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
