"""A llama-server of the build under test, and the little HTTP that its tests need."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Json = dict[str, Any]

TAIL, HEAD, MIN_BULK = 128, 16, 64
PLAN = ("--ridgefill-tail", TAIL, "--ridgefill-head", HEAD, "--ridgefill-min-bulk", MIN_BULK)
SLOTS = ("-c", 6144, "-np", 4, "-b", 256, "-ub", 256)


class ServerDied(AssertionError):
    """The program ended before it was ready; `status` and `log` say how."""

    def __init__(self, status: int, log: str) -> None:
        super().__init__(f"llama-server ended with status {status}:\n{log[-2000:]}")
        self.status = status
        self.log = log


class Server:
    """A running llama-server; close() ends it."""

    def __init__(self, program: Path, log: Path, *args: object) -> None:
        self.log_path = log
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [str(program), "--host", "127.0.0.1", "--port", str(self.port), "-t", "2", "--offline"]
        environment = os.environ | {"OMP_WAIT_POLICY": "passive"}  # threads that spin starve each other on busy cores
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, *map(str, args)], stdout=out, stderr=subprocess.STDOUT, env=environment
            )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        for _ in range(1200):
            if self.process.poll() is not None:
                raise ServerDied(self.process.returncode, self.log)
            with contextlib.suppress(OSError):
                if self.request("GET", "/health")[0] == 200:
                    return
            time.sleep(0.1)
        raise AssertionError(f"not ready after two minutes:\n{self.log[-2000:]}")

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def request(self, method: str, path: str, body: Json | None = None) -> tuple[int, Any]:
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1200)
        try:
            data = None if body is None else json.dumps(body)
            link.request(method, path, data, {"Content-Type": "application/json"})
            reply = link.getresponse()
            text = reply.read().decode()
            is_json = "json" in reply.headers.get("Content-Type", "json")
            return reply.status, json.loads(text) if is_json and text else text
        finally:
            link.close()

    def get(self, path: str) -> Any:
        status, reply = self.request("GET", path)
        assert status == 200, reply
        return reply

    def post(self, path: str, body: Json) -> Any:
        status, reply = self.request("POST", path, body)
        assert status == 200, reply
        return reply

    def stream(self, path: str, body: Json) -> Iterator[Json]:
        """The events of a streamed answer; closing the iterator drops the connection."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1200)
        try:
            link.request("POST", path, json.dumps(body | {"stream": True}), {"Content-Type": "application/json"})
            reply = link.getresponse()
            assert reply.status == 200, reply.read()
            for line in reply:
                if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                    yield json.loads(line[6:])
        finally:
            if link.sock is not None:
                with contextlib.suppress(OSError):
                    link.sock.shutdown(socket.SHUT_RDWR)
            link.close()

    def tokenize(self, text: str) -> list[int]:
        ids: list[int] = self.post("/tokenize", {"content": text})["tokens"]
        return ids

    def complete(self, prompt: list[int] | str, **fields: Any) -> Answer:
        """A greedy /completion on slot 0."""
        body = {"prompt": prompt, "n_predict": 6, "temperature": 0, "id_slot": 0, "n_probs": 5} | fields
        return Answer(self.post("/completion", body))

    def erase(self, slot: int = 0) -> None:
        self.post(f"/slots/{slot}?action=erase", {})


class Answer:
    """What a /completion answered, with the names that tests ask for."""

    def __init__(self, reply: Json) -> None:
        self.text: str = reply["content"]
        timings = reply["timings"]
        self.n_cached: int = timings["cache_n"]
        self.n_prompt: int = timings["prompt_n"]
        self.fill: Json = timings["ridgefill"]
        first = reply.get("completion_probabilities", [{}])[0].get("top_logprobs", [])
        self.top: dict[int, float] = {token["id"]: token["logprob"] for token in first}

    def distance(self, other: Answer) -> float:
        """Greatest difference of the first token's log-probabilities; infinite when another token is likeliest."""
        if max(self.top, key=self.top.__getitem__) != max(other.top, key=other.top.__getitem__):
            return float("inf")
        return max(abs(self.top[token] - other.top[token]) for token in self.top.keys() & other.top.keys())
