#!/usr/bin/env python3
"""Time to the first token of models of published shape with random weights, fill off and on by turns.

usage: e2e_gpu.py [--shapes llama-8b,qwen3-8b] [--weights q8_0,bf16] [--lengths 8192,32768] [--ubatch 2048,512] ...

Speed does not depend on what the weights say, so no download is needed; quality cannot be seen here. Models are written
into --folder (memory, where there is /dev/shm) and removed again. Prints a line per case and, with --csv, writes them.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "build" / "python") not in sys.path and "PYTHONPATH" not in os.environ:
    sys.path.insert(0, str(ROOT / "build" / "python"))

import numpy as np  # noqa: E402
from _e2e.random_files import TYPES, write_maps, write_model  # noqa: E402
from _e2e.shapes import SHAPES  # noqa: E402
from ridgefill_cpp import _capi  # noqa: E402
from ridgefill_cpp._session import Session  # noqa: E402
from ridgefill_cpp.flops import dims_of, fill_flops, ratio_ideal, stock_flops  # noqa: E402

SAME = 1e-5  # of the largest logit; the same graphs in the same order: expected 0


@dataclass
class Row:
    """Times are medians in ms; share = ratio / ideal; TFLOP/s count what the FLOP ideal counts."""

    shape: str
    weights: str
    maps: str
    split: int
    n_prompt: int
    tail: int
    ubatch: int
    t_stock_ms: float
    t_fill_ms: float
    ratio: float
    ideal: float
    share: float
    stock_tflops: float
    fill_tflops: float
    n_filled: int
    spread: float  # of the times, (largest - smallest) / median, the worse of the two


class Prompts(Session):
    """Batches end where --batch ends, and nowhere else: the last row shares its batch, as in the server."""

    def _pieces(self, n_rows: int, outputs: range, cuts: Any) -> Any:
        return ((begin, min(begin + self.n_batch, n_rows)) for begin in range(0, n_rows, self.n_batch))


def measure(args: argparse.Namespace, name: str, weights: str, model: Path, maps: Path, ubatch: int) -> list[Row]:
    shape = SHAPES[name]()
    dims = dims_of(model)
    ids = np.random.default_rng(3).integers(0, shape.number("vocab_size"), max(args.lengths))
    rows = []
    layers = 999 if args.device == "gpu" else 0
    batch = max(args.batch, ubatch)
    with Prompts(model, max(args.lengths), n_batch=batch, n_ubatch=ubatch, gpu_layers=layers) as session:
        off = _capi.llama_ridgefill_params(_capi.MODE_OFF, args.tail, args.head, 0)
        on = _capi.llama_ridgefill_params(_capi.MODE_SPEED, args.tail, args.head, 0)
        modes = {"stock": off, "fill": on}
        first: dict[tuple[int, str], np.ndarray] = {}

        def once(n: int, mode: str) -> float:
            begin = time.perf_counter()
            (_, logits), *_ = session.decode(ids[:n], range(n - 1, n), params=modes[mode])
            ms = 1000 * (time.perf_counter() - begin)
            if not np.isfinite(logits).all():
                raise SystemExit(f"e2e_gpu: {name}, {n} rows, {mode}: found logits that are not finite")
            # a run that reads what another graph left behind would show here
            before = first.setdefault((n, mode), logits.copy())
            if (worst := np.abs(logits - before).max() / np.abs(before).max()) > SAME:
                raise SystemExit(
                    f"e2e_gpu: {name}, {n} rows, {mode}: two runs differ by {worst:.1e} of the largest logit"
                )
            return ms

        def compare(n: int, mode: str, key: str) -> None:
            """Keeps the logits for --logits, and says how far they are from those of --against."""
            logits = args.kept[key] = first[n, mode]
            if (other := args.others.get(key)) is not None:
                nmse = float(np.square(logits - other).sum() / np.square(other).sum())
                print(f"{key}: NMSE {nmse:.1e} of the logits against {args.against}", flush=True)

        # a placement at a time: a run behind another projector's would plan its memory anew
        for place, n in itertools.product(args.placement, args.lengths):
            if n == args.lengths[0]:
                session.attach(session.load(maps, place), on)
            times: dict[str, list[float]] = {mode: [] for mode in modes}
            for rep in range(-1, args.reps):  # the first pair warms up
                for mode in times:
                    ms = once(n, mode)
                    if rep >= 0:
                        times[mode].append(ms)
                counts = session.counts()
                if counts.n_filled != n - args.tail - args.head:
                    raise SystemExit(f"e2e_gpu: {name}, {n} rows: found {counts.n_filled} filled ({counts.reason})")
            stock, fill = (statistics.median(times[mode]) for mode in times)
            spread = max((max(t) - min(t)) / statistics.median(t) for t in times.values())
            cut = (n, args.tail, args.head, shape.split, shape.source_width, shape.width)
            ideal = ratio_ideal(dims, *cut)
            tflops = (stock_flops(dims, n) / stock * 1e-9, fill_flops(dims, *cut) / fill * 1e-9)
            encoding = args.maps if place == "device" else f"{args.maps}-{place}"
            case = (name, weights, encoding, shape.split, n, args.tail, ubatch)
            ratios = (stock / fill, ideal, stock / fill / ideal)
            row = Row(*case, stock, fill, *ratios, *tflops, counts.n_filled, spread)
            rows.append(row)
            print(line(row), flush=True)
            for mode in modes:
                compare(n, mode, f"{name} {weights} {n} {mode}")
    return rows


HEADER = (
    "shape      weights maps     prompt ubatch  stock ms   fill ms  ratio  ideal  share  stock/fill TFLOP/s  spread"
)


def line(r: Row) -> str:
    return (
        f"{r.shape:<11}{r.weights:<8}{r.maps:<8}{r.n_prompt:>7}{r.ubatch:>7}{r.t_stock_ms:>10.1f}{r.t_fill_ms:>10.1f}"
        f"{r.ratio:>7.2f}{r.ideal:>7.2f}{100 * r.share:>6.0f}%{r.stock_tflops:>10.0f}{r.fill_tflops:>8.0f}"
        f"{100 * r.spread:>7.1f}%"
    )


def machine() -> str:
    """GPU and driver, or the processor."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    if shutil.which(command[0]):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().replace("\n", "; ")
    return platform.processor() or platform.machine()


def write_csv(path: Path, rows: list[Row], note: str) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(f"# tools/e2e_gpu.py: medians of alternating runs, random weights. {note}\n")
        table = csv.writer(file, lineterminator="\n")
        table.writerow([column.name for column in fields(Row)])
        for row in rows:
            table.writerow(
                [f"{v:.4g}" if isinstance(v, float) and not math.isinf(v) else v for v in asdict(row).values()]
            )


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def parse(argv: list[str]) -> argparse.Namespace:
    shm = Path("/dev/shm")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", default="llama-8b,qwen3-8b", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--weights", default="q8_0,bf16", help=f"of {', '.join(TYPES)}")
    parser.add_argument(
        "--maps", default="i8", choices=["i8", "q8_0", "bf16"], help="encoding of the maps (default i8)"
    )
    parser.add_argument(
        "--placement", default="device", help="of the maps: device, host or device,host; their logits must agree"
    )
    parser.add_argument("--lengths", type=numbers, default=[8192, 32768], help="prompt rows (default 8192,32768)")
    parser.add_argument("--ubatch", type=numbers, default=[2048], help="rows of a ubatch (default 2048)")
    parser.add_argument("--batch", type=int, default=2048, help="rows given at once (default 2048, at least a ubatch)")
    parser.add_argument("--tail", type=int, default=2048, help="last rows that run exactly (default 2048)")
    parser.add_argument("--head", type=int, default=16, help="first rows that run exactly (default 16)")
    parser.add_argument("--reps", type=int, default=3, help="runs of each, after one that warms up (default 3)")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--folder", type=Path, default=shm if shm.is_dir() else Path("/tmp"), help="for the models")
    parser.add_argument("--csv", type=Path, default=None, help="write the rows here too")
    parser.add_argument("--logits", type=Path, default=None, help="write the last row's logits here (.npz)")
    parser.add_argument("--against", type=Path, default=None, help="compare them with these, of another backend")
    parser.add_argument("--note", default="", help="for the head of the CSV")
    args = parser.parse_args(argv)
    args.shapes, args.weights = args.shapes.split(","), args.weights.split(",")
    args.placement = args.placement.split(",")
    for given, allowed in ((args.shapes, SHAPES), (args.weights, TYPES), (args.placement, _capi.PLACEMENTS)):
        if unknown := set(given) - set(allowed):
            parser.error(f"found {', '.join(sorted(unknown))}, allowed {', '.join(allowed)}")
    if min(args.lengths) <= args.tail + args.head or args.reps < 1 or args.tail < 1 or args.head < 0:
        parser.error("lengths must exceed tail + head, tail and reps be 1 or more, head 0 or more")
    return args


def main(argv: list[str]) -> int:
    args = parse(argv)
    args.kept, args.others = {}, dict(np.load(args.against)) if args.against else {}
    rows: list[Row] = []
    print(f"{machine()}\n{HEADER}", flush=True)
    for name in args.shapes:
        for weights in args.weights:
            model = args.folder / f"e2e-{name}-{weights}.gguf"
            maps = args.folder / f"e2e-{name}-maps.gguf"
            try:
                write_model(model, SHAPES[name](), weights)
                write_maps(maps, SHAPES[name](), args.maps)
                for ubatch in args.ubatch:
                    rows += measure(args, name, weights, model, maps, ubatch)
            finally:
                model.unlink(missing_ok=True)
                maps.unlink(missing_ok=True)
            if args.csv:
                write_csv(args.csv, rows, f"{machine()}. {args.note}".strip())
            if args.logits:
                np.savez(args.logits, **args.kept)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
