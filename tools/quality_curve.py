#!/usr/bin/env python3
"""What quality mode buys: ratio against tail loss over its share, beside deeper splits and beside dropping the bulk.

usage: quality_curve.py [--out docs/results/quality-curve.csv] [--tokens 4096] [--docs 10] [--reps 3]

SmolLM2 with the demo's text. Loss: nats per token on the last 511 tokens of held-out documents of 2560 tokens, paired
with an exact run. Ratio: time to the first token at --tokens, off over the arm, by turns, medians. "dropped:N": the
last N of 2560 rows are the whole prompt; its ratio is that of dropping the same part of --tokens rows.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from _demo import assets

SHARES = (0.05, 0.1, 0.12, 0.15, 0.25, 0.35, 0.5)
OTHER_SPLITS = (12, 15)
SPLIT = 10
DOCUMENT = 2560  # tokens of a scored document
KEPT = (512, 1024, 1280, 1536, 1792, 2048)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=assets.BUILD / "quality-curve.csv")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--docs", type=int, default=10)
    parser.add_argument("--reps", type=int, default=3)
    args = parser.parse_args()
    assets.use_build()
    from ridgefill_cpp.bench import bench, default_text, say_progress
    from ridgefill_cpp.evaluate import say_progress as say_loss
    from ridgefill_cpp.evaluate import tail_loss

    model, texts = assets.model(), assets.texts()
    files = {**assets.projectors(model, texts), **assets.projectors(model, texts, OTHER_SPLITS)}
    quality = [f"quality:attention:{share:g}" for share in SHARES]
    held = [document.text for document in texts.held]
    rows = []

    def measure(split: int, modes: list[str]) -> None:
        timed = bench(
            *(model, files[split], default_text(), [args.tokens]),
            tail=assets.TAIL,
            head=assets.HEAD,
            reps=args.reps,
            modes=modes,
            progress=say_progress,
        )
        arms = ["fill" if mode == "speed" else mode for mode in modes]
        report = tail_loss(model, {"": files[split]}, held, documents=args.docs, modes=arms, progress=say_loss)
        for row, arm in zip(timed, arms, strict=True):
            loss = report.arm(arm)
            assert loss is not None
            rows.append([split, row.mode, row.n_selected, round(row.ratio, 3), round(row.ratio_ideal or 0, 3)])
            rows[-1] += [round(loss.loss, 4), round(loss.low, 4), round(loss.high, 4)]

    measure(SPLIT, ["speed", *quality])
    for split in (*OTHER_SPLITS, 20):
        measure(split, ["speed"])

    # the bulk dropped: an exact prompt of its last rows, as many at --tokens as in the scored documents' proportion
    short = bench(
        *(model, files[SPLIT], default_text(), [n * args.tokens // DOCUMENT for n in KEPT] + [args.tokens]),
        tail=64,
        head=assets.HEAD,
        reps=args.reps,
        progress=say_progress,
    )
    report = tail_loss(
        *(model, {"": files[SPLIT]}, held),
        documents=args.docs,
        modes=[f"dropped:{n}" for n in KEPT],
        progress=say_loss,
    )
    for n, row in zip(KEPT, short, strict=False):
        loss = report.arm(f"dropped:{n}")
        assert loss is not None
        rows.append(["", loss.mode, 0, round(short[-1].t_stock_ms / row.t_stock_ms, 3), ""])
        rows[-1] += [round(loss.loss, 4), round(loss.low, 4), round(loss.high, 4)]

    with args.out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["split", "mode", "n_selected", "ratio", "ratio_flop_ideal", "loss", "low", "high"])
        writer.writerows(rows)
    print(args.out.read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
