#!/usr/bin/env python3
"""The main job on a real model: fit projectors, serve one long prompt with the fill off and on, say what it cost.

usage: demo.py      (make demo)

Everything lands in build/: the projectors and measured losses in build/demo, the table in build/demo.json. A second
run uses them again and only serves.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from _demo import assets
from _demo.assets import BUILD, FOLDER, HEAD, SPLITS, TAIL, say
from _demo.server import Server

REPS = 3
TOKENS = 2560  # of a document whose tail is scored
DOCUMENTS, FEWEST, LOSS_S = 10, 4, 420  # at most, at least, and the time after which the loss is good enough
PROMPT_CHARS = 17_500  # about 4,000 tokens
QUESTION = "\n\nIn two or three sentences: what is the text above about?"


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    assets.use_build()
    from ridgefill_cpp import flops
    from ridgefill_cpp.bench import Row, write_json

    begin = time.monotonic()
    model = assets.model()
    documents = assets.texts()
    files = assets.projectors(model, documents)
    losses = measure_loss(model, files, documents.held)
    dims = flops.dims_of(model)
    stock, fills, answer = serve(model, files, documents.held)
    rows = []
    for split in SPLITS:
        runs = fills[split]
        n_prompt, filled = runs[0]["prompt_n"], runs[0]["ridgefill"]
        t_stock, t_fill = (statistics.median(run["prompt_ms"] for run in each) for each in (stock, runs))
        rows.append(
            Row(
                n_prompt,
                split,
                TAIL,
                t_stock,
                t_fill,
                t_stock / t_fill,
                flops.ratio_ideal(dims, n_prompt, TAIL, HEAD, split),
                filled["n_filled"],
                filled["n_exact"],
                *(losses[f"{mode} {split}"]["loss"] for mode in ("fill", "identity")),
                losses["dropped"]["loss"],
            )
        )
    write_json(BUILD / "demo.json", rows)
    times = {"off": seconds(stock), **{str(split): seconds(runs) for split, runs in fills.items()}}
    print(report(rows, losses, times, answer))
    print(f"\nstart it again:\n  {shell(server_command(model, files[SPLITS[0]]))}")
    say(f"done in {time.monotonic() - begin:.0f} s, table in {short(BUILD / 'demo.json')}")
    return 0


# loss


def measure_loss(model: Path, files: dict[int, Path], held: list[Any]) -> dict[str, Any]:
    """Loss of each arm on held-out documents; measured once for the same files and texts."""
    from ridgefill_cpp.evaluate import tail_loss
    from ridgefill_cpp.fit.texts import text_sha256

    key = {
        "files": {str(split): assets.sha256(file.read_bytes()) for split, file in files.items()},
        "text": text_sha256(held),
        "settings": [TOKENS, TAIL, HEAD],
    }
    store = FOLDER / "loss.json"
    if store.is_file():
        stored = json.loads(store.read_text())
        if stored.get("key") == key:
            say("tail loss of an earlier run")
            return dict(stored["losses"])
    say(f"measuring the tail loss on held-out text, at most {DOCUMENTS} documents")
    begin = time.monotonic()

    def progress(n: int, exact: float, now: Any) -> None:
        shown = ", ".join(f"{mode} {label} {loss:+.3f}".replace("  ", " ") for (label, mode), loss in now.items())
        say(f"document {n}, {time.monotonic() - begin:.0f} s: exact {exact:.3f} nats, {shown}")

    found = tail_loss(
        model,
        {str(split): file for split, file in files.items()},
        (document.text for document in held),
        tokens=TOKENS,
        tail=TAIL,
        head=HEAD,
        documents=DOCUMENTS,
        enough=lambda n: n >= FEWEST and time.monotonic() - begin > LOSS_S,
        progress=progress,
    )
    losses = {f"{arm.mode} {arm.label}".strip(): asdict(arm) for arm in found.arms}
    store.write_text(json.dumps({"key": key, "exact": found.exact, "losses": losses}, indent=1) + "\n")
    return losses


# server


def server_command(model: Path, projector: Path) -> list[str]:
    return [
        *(short(BUILD / "bin" / "llama-server"), "-m", short(model)),
        *("--ridgefill", short(projector), "--ridgefill-tail", str(TAIL), "-c", "8192"),
    ]


def serve(model: Path, files: dict[int, Path], held: list[Any]) -> tuple[list[Any], dict[int, list[Any]], str]:
    """(timings with the fill off, timings by split with the fill on, the default split's answer), by turns."""
    threads = str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    common = ["-m", str(model), "--ridgefill-tail", str(TAIL), "--ridgefill-strict", "-c", "8192", "-np", "1"]
    common += ["-t", threads, "--cache-ram", "0"]
    text = "\n\n".join(document.text for document in held)[:PROMPT_CHARS] + QUESTION
    stock: list[Any] = []
    fills: dict[int, list[Any]] = {split: [] for split in files}
    answer = ""
    with ExitStack() as stack:
        say("starting llama-server with --ridgefill on a loopback port, one for each split")
        program = BUILD / "bin" / "llama-server"
        servers = {
            split: stack.enter_context(Server(program, [*common, "--ridgefill", str(file)]))
            for split, file in files.items()
        }
        for _ in range(REPS):
            timings, _ = ask(servers[SPLITS[0]], text, "off", 1)
            say_timings("off", timings)
            stock.append(timings)
            for split, server in servers.items():
                timings, words = ask(server, text, "speed", 80 if split == SPLITS[0] and not answer else 1)
                say_timings(f"speed, split {split}", timings)
                fills[split].append(timings)
                answer = answer or words
    return stock, fills, answer


def ask(server: Server, text: str, mode: str, n_tokens: int) -> tuple[dict[str, Any], str]:
    body = {
        "messages": [{"role": "user", "content": text}],
        "ridgefill": mode,
        "cache_prompt": False,
        "max_tokens": n_tokens,
        "temperature": 0,
    }
    got = server.post("/v1/chat/completions", body)
    timings = got["timings"]
    done = timings["ridgefill"]
    if timings.get("cache_n", 0) or bool(done["n_filled"]) != (mode == "speed"):
        raise RuntimeError(f"mode {mode}: found timings {timings}, allowed a cold prompt, filled in mode speed only")
    return timings, got["choices"][0]["message"]["content"]


def say_timings(name: str, timings: dict[str, Any]) -> None:
    n_filled, seconds = timings["ridgefill"]["n_filled"], timings["prompt_ms"] / 1000
    say(f"mode {name}: {timings['prompt_n']} rows, {n_filled} filled, {seconds:.2f} s")


# what is printed


def seconds(timings: list[Any]) -> list[float]:
    return sorted(run["prompt_ms"] / 1000 for run in timings)


def report(rows: list[Any], losses: dict[str, Any], times: dict[str, list[float]], answer: str) -> str:
    """times: seconds of each run in ascending order, by split, and "off"."""
    one = rows[0]

    def time_of(name: str) -> str:
        return f"{statistics.median(times[name]):.2f} s ({times[name][0]:.2f} .. {times[name][-1]:.2f})"

    def loss(name: str) -> str:
        arm = losses[name]
        return f"{arm['loss']:+.3f} ({arm['low']:+.3f} .. {arm['high']:+.3f})"

    table = [
        ("", *(f"split {row.split} of 30" for row in rows)),
        ("prompt rows filled / exact", *(f"{row.n_filled} / {row.n_exact}" for row in rows)),
        ("time to first token, off", *(time_of("off") for _ in rows)),
        ("time to first token, fill", *(time_of(str(row.split)) for row in rows)),
        ("off / fill (FLOP ideal)", *(f"{row.ratio:.2f} ({row.ratio_ideal:.2f})" for row in rows)),
        ("loss of the fill, nats", *(loss(f"fill {row.split}") for row in rows)),
        ("  identity instead of maps", *(loss(f"identity {row.split}") for row in rows)),
        ("  bulk dropped", *(loss("dropped") for _ in rows)),
        ("top-1 as exact", *(f"{losses[f'fill {row.split}']['top1']:.1%}" for row in rows)),
    ]
    n_documents = losses["dropped"]["documents"]
    noisy = any(runs[-1] > 1.3 * runs[0] for runs in times.values())
    few = "" if n_documents >= DOCUMENTS else f" (fewer than {DOCUMENTS}: time was up)"
    return "\n".join(
        [
            f"\nSmolLM2 135M, one chat prompt of {one.n_prompt} tokens, tail {TAIL}, head {HEAD}, medians of {REPS}",
            *(f"{name:<28}" + "".join(f"{cell:>26}" for cell in cells) for name, *cells in table),
            f"Loss: last {TAIL - 1} tokens of {n_documents} held-out documents of {TOKENS}{few},",
            "against an exact run of the same tokens, with the 95 % bootstrap interval.",
            *(["Equal requests differ in time by more than 30 %: the machine was busy."] if noisy else []),
            "A model of 135M parameters is a hard case: it needs most of its layers for every row, so split 20 is the",
            "default here and split 10 shows what a deeper cut would gain and cost.",
            f"\nanswer (split {one.split}, fill on): {' '.join(answer.split())}",
        ]
    )


def short(path: Path) -> str:
    """The path as one would type it from here."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)


def shell(words: list[str]) -> str:
    import shlex

    return " ".join(map(shlex.quote, words))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        sys.exit(130)
    except (RuntimeError, ValueError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        if hint := getattr(error, "hint", ""):
            print(f"hint: {hint}", file=sys.stderr)
        sys.exit(1)
