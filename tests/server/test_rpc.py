"""Layers spread over two rpc-servers: maps live where their layer lives, answers are those of one process, and a server
that dies takes its requests with it, not the program."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from http_server import HEAD, PLAN, SLOTS, TAIL, Server

N = 300
NEAR = 0.05  # equal bits here; threads may split a sum in other places elsewhere
# rows chosen by attention can differ by a near tie; what an answer depends on here must not
SAME_ROWS = ("--ridgefill-select", "random")


class RpcServers:
    """Servers on loopback; `places` is what --rpc takes."""

    def __init__(self, program: Path, folder: Path, n: int = 2) -> None:
        self.running: list[subprocess.Popen[bytes]] = []
        places = []
        for i in range(n):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            with (folder / f"{i}.log").open("wb") as log:
                command = [str(program), "-H", "127.0.0.1", "-p", str(port), "-t", "1"]
                environment = os.environ | {"OMP_WAIT_POLICY": "passive"}
                self.running.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment))
            places.append(("127.0.0.1", port))
        for place in places:
            self._wait(place)
        self.places = ",".join(f"{host}:{port}" for host, port in places)

    def _wait(self, place: tuple[str, int]) -> None:
        for _ in range(200):
            try:
                socket.create_connection(place, 1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise AssertionError(f"rpc-server {place} does not listen: {[p.poll() for p in self.running]}")

    def kill(self, i: int) -> None:
        self.running[i].kill()
        self.running[i].wait(20)

    def close(self) -> None:
        for process in self.running:
            process.terminate()
            process.wait(20)


@pytest.fixture(scope="module")
def rpc_servers(program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RpcServers]:
    servers = RpcServers(program("ggml-rpc-server"), tmp_path_factory.mktemp("rpc"))
    yield servers
    servers.close()


@pytest.fixture
def mortal(program, tmp_path: Path) -> Iterator[RpcServers]:
    """Servers of its own for a test, which it may kill; each serves one program at a time."""
    servers = RpcServers(program("ggml-rpc-server"), tmp_path)
    yield servers
    servers.close()


@pytest.fixture(scope="module")
def spread(start, rpc_servers: RpcServers, side_file: Path) -> Server:
    return start("--rpc", rpc_servers.places, "-ngl", 99, "--ridgefill", side_file, *PLAN, *SLOTS, *SAME_ROWS)


@pytest.fixture(scope="module")
def one_process(start, side_file: Path) -> Server:
    """As an rpc-server computes: maps as Q8_0 (the op rounds x in other groups), weights not repacked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GGML_RIDGEFILL_DISABLE", "1")
        return start("--ridgefill", side_file, "--no-repack", *PLAN, *SLOTS, *SAME_ROWS)


def test_the_answer_is_that_of_one_process(spread: Server, one_process: Server, prompt) -> None:
    assert spread.get("/props")["ridgefill"]["native"] is False  # a server may not know the op: the portable path
    times = {}
    for mode in ("off", "speed", "quality"):
        ids = prompt(N, len(times))
        here, there = one_process.complete(ids, ridgefill=mode), spread.complete(ids, ridgefill=mode)
        assert there.fill == here.fill
        assert there.fill["n_exact"] >= TAIL + HEAD
        assert there.distance(here) <= NEAR, mode
        long = prompt(1200, 10 + len(times))
        begin = time.perf_counter()
        spread.complete(long, ridgefill=mode)
        times[mode] = time.perf_counter() - begin
    print(f"two rpc-servers, 1200 tokens: off / speed {times['off'] / times['speed']:.2f}", end=" ")
    print(f"off / quality {times['off'] / times['quality']:.2f}")


def test_maps_in_host_memory_answer_alike(start, spread: Server, mortal: RpcServers, side_file: Path, prompt) -> None:
    where = ("--ridgefill-placement", "host", "--rpc", mortal.places, "-ngl", 99)
    host = start("--ridgefill", side_file, *where, *PLAN, *SLOTS, *SAME_ROWS)
    on_device, on_host = re.findall(r"maps, 0 states, ([\d.]+) MiB \(and ([\d.]+) MiB in host memory\)", host.log)[0]
    everything = float(re.findall(r"maps, 0 states, ([\d.]+) MiB, ", spread.log)[0])
    assert float(on_device) < everything * 0.6  # two devices with 4 of their maps each, of 19
    assert everything * 0.9 < float(on_host) <= everything
    for k, mode in enumerate(("speed", "quality", "speed")):
        ids = prompt(700, k)
        here, there = spread.complete(ids, ridgefill=mode), host.complete(ids, ridgefill=mode)
        assert there.fill == here.fill and there.fill["n_filled"] > 0
        assert there.top == here.top, mode  # the same maps met the same rows
    with pytest.raises(AssertionError, match=r"--ridgefill-placement.*allowed: device, host"):
        start("--ridgefill", side_file, "--ridgefill-placement", "gpu")


def post(server: Server, ids: list[int], mode: str, n_predict: int = 6) -> tuple[int, Any]:
    body = {"prompt": ids, "n_predict": n_predict, "temperature": 0, "id_slot": 0, "ridgefill": mode}
    return server.request("POST", "/completion", body)


def is_in(server: Server, when: str) -> bool:
    """The slot reads its prompt, or writes its answer."""
    slot = server.get("/slots")[0]
    return slot["is_processing"] and (when == "prompt" or slot["next_token"][0]["n_decoded"] > 0)


@pytest.mark.parametrize(
    ("when", "mode", "which"),
    [("idle", "off", 0), ("prompt", "speed", 1), ("prompt", "quality", 0), ("answer", "off", 1)],
)
def test_a_killed_server_fails_the_request_and_no_more(
    start, mortal: RpcServers, side_file: Path, tmp_path: Path, prompt, when: str, mode: str, which: int
) -> None:
    folder = tmp_path / "slots"
    folder.mkdir()
    args = ("--rpc", mortal.places, "-ngl", 99, "--ridgefill", side_file, *PLAN, "--slot-save-path", folder)
    server = start(*args, "-c", 4096, "-np", 1, "-b", 256, "-ub", 256)
    assert post(server, prompt(300), "off")[0] == 200
    assert server.request("POST", "/slots/0?action=save", {"filename": "alive"})[0] == 200

    if when == "idle":
        mortal.kill(which)
        status, reply = server.request("POST", "/slots/0?action=save", {"filename": "dead"})
        assert (status, reply["error"]["message"]) == (500, "Unable to save slot")
        assert [path.name for path in folder.iterdir()] == ["alive"]
        status, reply = post(server, prompt(300, 1), mode)
    else:
        with ThreadPoolExecutor(1) as pool:
            n_rows, n_predict = (3000, 6) if when == "prompt" else (300, 3000)
            answer = pool.submit(post, server, prompt(n_rows, 1), mode, n_predict)
            while not is_in(server, when):
                assert not answer.done(), answer.result()
                time.sleep(0.02)
            time.sleep(0.2)
            assert not answer.done(), answer.result()
            mortal.kill(which)
            status, reply = answer.result(120)
    port = mortal.places.split(",")[which]
    gone = f"Compute error: RPC{which} ({port}) is gone; start that rpc-server again, then llama-server"
    assert (status, reply["error"]["message"]) == (500, gone)

    for k in range(2, 4):  # its weights are lost; nothing is answered from what was left in memory
        assert server.process.poll() is None
        assert server.get("/health") == {"status": "ok"}
        assert not is_in(server, "prompt")
        status, reply = post(server, prompt(300, k), mode)
        assert (status, reply["error"]["message"]) == (500, gone)

    server.process.terminate()
    assert server.process.wait(30) == 0, server.log[-2000:]
