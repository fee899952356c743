"""llama-server as a child process on a free loopback port, and the few requests the demo makes."""

from __future__ import annotations

import ctypes
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

START_S, ANSWER_S = 120, 900


class Server:
    """A context manager; the process is gone when the block ends, however it ends."""

    def __init__(self, program: Path, arguments: Sequence[str]) -> None:
        self.program, self.arguments = program, list(arguments)
        self.port = 0

    def __enter__(self) -> Server:
        self.port = free_port()
        self._log = tempfile.TemporaryFile()
        command = [str(self.program), *self.arguments, "--host", "127.0.0.1", "--port", str(self.port)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, preexec_fn=_die_with_parent
        )
        try:
            self._wait()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                result: dict[str, Any] = json.load(answer)
                return result
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: status {error.code}: {error.read().decode(errors='replace')[:500]}") from None
        except urllib.error.URLError as error:
            raise RuntimeError(f"{path}: {error.reason}\n{self.log_tail()}") from None

    def log_tail(self, n_lines: int = 15) -> str:
        self._log.seek(0)
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-n_lines:])

    def _wait(self) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if (status := self._process.poll()) is not None:
                raise RuntimeError(f"llama-server ended with status {status}:\n{self.log_tail()}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2):
                    return
            except OSError:
                time.sleep(0.2)
        raise RuntimeError(f"llama-server did not start in {START_S} s:\n{self.log_tail()}")

    def _stop(self) -> None:
        for end in (self._process.terminate, self._process.kill):
            if self._process.poll() is None:
                end()
                try:
                    self._process.wait(10)
                except subprocess.TimeoutExpired:
                    continue
        self._log.close()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _die_with_parent() -> None:
    """In the child: end when the demo is killed without a chance to clean up (Linux only)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))  # PR_SET_PDEATHSIG
