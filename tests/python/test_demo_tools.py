"""The demo's parts that need no model: its server never outlives it, and what it prints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
FAKE = """
import http.server, sys
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"{}")
    def do_POST(self):
        self.send_response(400); self.end_headers(); self.wfile.write(b"bad mode")
    def log_message(self, *_): pass
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), H).serve_forever()
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z" if os.path.isdir("/proc") else True


@pytest.fixture
def server(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    from _demo.server import Server

    return Server(Path(sys.executable), ["-c", FAKE])


def test_server_ends_with_the_block(server):
    with server:
        pid = server._process.pid
        assert alive(pid)
        with pytest.raises(RuntimeError, match="/v1: status 400: bad mode"):
            server.post("/v1", {})
    assert not alive(pid)


def test_server_ends_when_the_block_is_interrupted(server):
    with pytest.raises(KeyboardInterrupt), server:
        pid = server._process.pid
        raise KeyboardInterrupt
    assert not alive(pid)


def test_a_server_that_fails_to_start_says_why(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    from _demo.server import Server

    with pytest.raises(RuntimeError, match=r"status 1:\nno such model"):
        Server(Path(sys.executable), ["-c", "import sys; sys.exit('no such model')"]).__enter__()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the parent-death signal is Linux's")
def test_server_ends_when_the_demo_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        f"import sys, time\nfrom pathlib import Path\nsys.path.insert(0, {str(TOOLS)!r})\n"
        "from _demo.server import Server\n"
        f"with Server(Path(sys.executable), ['-c', {FAKE!r}]) as s:\n"
        "    print(s._process.pid, flush=True)\n    time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    end = time.monotonic() + 10
    while alive(child) and time.monotonic() < end:
        time.sleep(0.1)
    assert not alive(child)


def test_report_shows_gain_and_cost_side_by_side(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import demo
    from ridgefill_cpp.bench import Row

    rows = [Row(4000, split, 512, 9000, 9000 / r, r, r + 0.1, 3472, 528) for split, r in ((20, 1.3), (10, 1.9))]
    arm = {"loss": 0.1234, "low": 0.1, "high": 0.15, "top1": 0.9, "documents": 7}
    losses = {f"{mode} {row.split}": arm for mode in ("fill", "identity") for row in rows} | {"dropped": arm}
    times = {"off": [8.9, 9.0, 9.2], "20": [6.9, 7.0, 7.1], "10": [4.0, 4.7, 9.9]}
    text = demo.report(rows, losses, times, "An answer.")
    for part in ("split 20 of 30", "split 10 of 30", "3472 / 528", "1.90 (2.00)", "+0.123 (+0.100 .. +0.150)"):
        assert part in text
    assert "7 held-out documents of 2560 (fewer than 10: time was up)" in text
    assert "4.70 s (4.00 .. 9.90)" in text and "more than 30 %" in text
    assert "30 %" not in demo.report(rows, losses, times | {"10": [4.6, 4.7, 4.8]}, "")
    assert "hard case" in text and "An answer." in text
