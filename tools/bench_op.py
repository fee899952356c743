#!/usr/bin/env python3
"""The op beside upstream's Q8_0 and bf16 mul_mat, all in one run: a table and build/bench-op.json (make bench-op).

usage: bench_op.py [--backend cpu|cuda|vulkan] [--rows 1,32,...] [--shapes 10240x2560,...] [--csv [FILE]]

us is the median of alternating runs after one that warms up. TOP/s counts 2*k*n*rows operations, whatever they are made
of; bytes are the fewest that must move: weights and x read once, y written once. "ridgefill" rounds x in every op,
"rounded" once for all ops of the graph, as a fill graph does for its maps. Ratios: the other's time over "rounded".
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("RIDGEFILL_BUILD", ROOT / "build"))
DEVICES = {"cpu": "CPU", "cuda": "CUDA0", "vulkan": "Vulkan0"}
SHAPES = "10240x2560,5120x5120,4096x4096"
ROWS = "1,32,128,512,2048"
# bytes of one weight, its share of the scale included
WEIGHT_BYTES = {"ridgefill": 1 + 2 / 128, "rounded": 1 + 2 / 128, "q8_0": 34 / 32, "bf16": 2.0}


def least_bytes(kind: str, k: int, n: int, rows: int) -> int:
    return round(WEIGHT_BYTES[kind] * k * n) + 4 * rows * (k + n)


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    program = BUILD / "bin" / "ridgefill-test-backend-ridgefill"
    if not program.is_file():
        raise SystemExit(f"bench_op: {program} is not there\nhint: make build, then cmake --build build")
    output = BUILD / "bench-op.json"
    command = [str(program), "perf", "-b", DEVICES[args.backend], "-s", args.shapes, "-r", args.rows]
    command += ["-t", str(args.threads), "--time", str(args.time), "--json", str(output)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)  # its own table comes at the end only
    if done.returncode:
        raise SystemExit(f"bench_op: {' '.join(command)}: exit status {done.returncode}")
    args.device = done.stdout.partition("\n")[0].partition(": ")[2]
    rows: list[dict[str, Any]] = json.loads(output.read_text())
    for row in rows:
        row["backend"] = args.backend
    output.write_text(json.dumps(rows, indent=1) + "\n")
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    cases: dict[tuple[int, int, int], dict[str, dict[str, Any]]] = {}
    for row in rows:
        cases.setdefault((row["k"], row["n"], row["rows"]), {})[row["type"]] = row
    head = "".join(f" |{kind:>10} us  TOP/s     MB" for kind in WEIGHT_BYTES)
    lines = [f"     k ->     n rows{head} | q8_0/   bf16/ours"]
    for (k, n, n_rows), kinds in cases.items():
        text = f"{k:>6} ->{n:>6}{n_rows:>5}"
        for kind in WEIGHT_BYTES:
            if kind not in kinds:
                text += f" |{'-':>13}{'-':>7}{'-':>7}"
                continue
            us, tops = kinds[kind]["us"], kinds[kind]["tops"]
            text += f" |{us:>13.1f}{tops:>7.3g}{least_bytes(kind, k, n, n_rows) / 1e6:>7.1f}"
        ours = kinds.get("rounded") or kinds.get("ridgefill")
        text += " |"
        for kind in ("q8_0", "bf16"):
            text += f"{kinds[kind]['us'] / ours['us']:>6.2f}" if ours and kind in kinds else f"{'-':>6}"
        lines.append(text)
    return "\n".join(lines)


def machine(backend: str, threads: int, device: str) -> str:
    if backend != "cpu" and (backend == "cuda" or "NVIDIA" in device) and shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        name, driver = (
            subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].split(", ")
        )
        return f"{name}, driver {driver}"
    if backend == "vulkan":
        return device
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        fields = dict(part.split(":", 1) for part in info.read_text().split("\n\n")[0].splitlines() if ":" in part)
        found = {key.strip(): value.strip() for key, value in fields.items()}
        name = (
            f"{found.get('model name', name)} (family {found.get('cpu family', '?')} model {found.get('model', '?')})"
        )
    return f"{name}, {threads} threads, {platform.system()} {platform.release().split('-')[0]}"


def write_csv(path: Path, rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    commit = args.commit or subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"
    where = machine(args.backend, args.threads, args.device)
    head = f"make bench-op BACKEND={args.backend}: medians of alternating runs. {where}, "
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(f"# {head}{date.today()}, commit {commit}\n")
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["backend", "type", "k", "n", "rows", "us", "tops", "bytes"])
        for row in rows:
            size = least_bytes(row["type"], row["k"], row["n"], row["rows"])
            out.writerow([*(row[name] for name in ("backend", "type", "k", "n", "rows", "us", "tops")), size])


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", choices=list(DEVICES), default="cpu")
    parser.add_argument("--shapes", default=SHAPES, help=f"KxN,... (default {SHAPES})")
    parser.add_argument("--rows", default=ROWS, help=f"(default {ROWS})")
    parser.add_argument("--threads", type=int, default=2, help="of the CPU (default 2)")
    parser.add_argument("--time", type=float, default=1.0, help="seconds per shape, row count and type (default 1)")
    parser.add_argument(
        "--csv", type=Path, nargs="?", const=Path(), default=None, help="file (default in docs/results)"
    )
    parser.add_argument("--commit", default="", help="for the head of the CSV, where there is no git")
    args = parser.parse_args(argv)
    rows = run(args)
    if not rows:
        raise SystemExit(f"bench_op: no figures: {DEVICES[args.backend]} has none of the ops")
    print(machine(args.backend, args.threads, args.device))
    print(table(rows))
    if args.csv is not None:
        path = args.csv if args.csv.name else ROOT / "docs" / "results" / f"op-{args.backend}.csv"
        write_csv(path, rows, args)
        print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
