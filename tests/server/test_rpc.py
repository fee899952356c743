"""Layers spread over two rpc-servers: maps live where their layer lives, and answers are those of one process."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_server import HEAD, PLAN, SLOTS, TAIL, Server

N = 300
SHAPE = 0.5  # an rpc-server multiplies without repacked weights, so its sums round in another order
# rows chosen by attention can differ by a near tie; what an answer depends on here must not
SAME_ROWS = ("--ridgefill-select", "random")


@pytest.fixture(scope="module")
def rpc_servers(program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port,host:port of two servers on loopback."""
    folder = tmp_path_factory.mktemp("rpc")
    running, places = [], []
    for i in range(2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with (folder / f"{i}.log").open("wb") as log:
            command = [str(program("ggml-rpc-server")), "-H", "127.0.0.1", "-p", str(port), "-t", "1"]
            environment = os.environ | {"OMP_WAIT_POLICY": "passive"}
            running.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment))
        places.append(("127.0.0.1", port))
    for place in places:
        for _ in range(200):
            try:
                socket.create_connection(place, 1).close()
                break
            except OSError:
                time.sleep(0.1)
        else:
            raise AssertionError(f"rpc-server {place} does not listen: {[p.poll() for p in running]}")
    yield ",".join(f"{host}:{port}" for host, port in places)
    for process in running:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def spread(start, rpc_servers: str, side_file: Path) -> Server:
    return start("--rpc", rpc_servers, "-ngl", 99, "--ridgefill", side_file, *PLAN, *SLOTS, *SAME_ROWS)


@pytest.fixture(scope="module")
def one_process(start, side_file: Path) -> Server:
    return start("--ridgefill", side_file, *PLAN, *SLOTS, *SAME_ROWS)


def test_the_answer_is_that_of_one_process(spread: Server, one_process: Server, prompt) -> None:
    assert spread.get("/props")["ridgefill"]["native"] is False  # a server may not know the op: the portable path
    times = {}
    for mode in ("off", "speed", "quality"):
        ids = prompt(N, len(times))
        here, there = one_process.complete(ids, ridgefill=mode), spread.complete(ids, ridgefill=mode)
        assert there.fill == here.fill
        assert there.fill["n_exact"] >= TAIL + HEAD
        assert there.distance(here) <= SHAPE, mode
        long = prompt(1200, 10 + len(times))
        begin = time.perf_counter()
        spread.complete(long, ridgefill=mode)
        times[mode] = time.perf_counter() - begin
    print(f"two rpc-servers, 1200 tokens: off / speed {times['off'] / times['speed']:.2f}", end=" ")
    print(f"off / quality {times['off'] / times['quality']:.2f}")
