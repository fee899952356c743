"""One server with an identity side file, one without any, and what a cold exact run answers.

The side file's maps are the identity at split 10 of 30: rows filled by it are so wrong that an answer resting on one of
them is far from the exact answer. Rounding (another partition into batches) moves log-probabilities by less.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from http_server import PLAN, SLOTS, Answer, Server


@pytest.fixture(scope="session")
def side_file(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from ridgefill_cpp._arms import write_identity
    from ridgefill_cpp.base import base_of

    path = tmp_path_factory.mktemp("side") / "identity-10.gguf"
    write_identity(path, base_of(smollm2), 10)
    return path


@pytest.fixture(scope="session")
def start(program, smollm2: Path, tmp_path_factory: pytest.TempPathFactory):
    """start(*args) -> a Server on SmolLM2, ended with the session; `model=None` leaves the model out."""
    folder = tmp_path_factory.mktemp("log")
    running: list[Server] = []

    def make(*args: object, model: Path | None = smollm2) -> Server:
        which = () if model is None else ("-m", model)
        server = Server(program("llama-server"), folder / f"{len(list(folder.iterdir()))}.log", *which, *args)
        running.append(server)
        return server

    yield make
    for server in running:
        server.close()


@pytest.fixture(scope="session")
def slot_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots")


@pytest.fixture(scope="session")
def shared(start, side_file: Path, slot_files: Path) -> Server:
    """The server with a side file; mode speed is its default."""
    return start("--ridgefill", side_file, *PLAN, *SLOTS, "--metrics", "--slot-save-path", slot_files)


@pytest.fixture
def server(shared: Server) -> Server:
    """The shared server with empty slots. Its RAM cache keeps what earlier tests left: take your own prompt."""
    for slot in range(4):
        shared.erase(slot)
    return shared


@pytest.fixture(scope="session")
def plain(start, slot_files: Path) -> Server:
    """The same build without --ridgefill."""
    return start(*SLOTS, "--slot-save-path", slot_files)


@pytest.fixture(scope="session")
def prose(plain: Server) -> list[int]:
    """Some thousand tokens that every Python has."""
    from ridgefill_cpp.bench import default_text

    return plain.tokenize(default_text()[:100_000])


@pytest.fixture
def prompt(request: pytest.FixtureRequest, prose: list[int]):
    """prompt(n, k) -> n tokens of prose that no other test or k uses: the first one is different in each."""
    place = prompt_places.setdefault(request.node.nodeid, 4 * len(prompt_places))

    def take(n: int, k: int = 0) -> list[int]:
        begin = (place + k) * 211 % (len(prose) - n)
        return [2000 + place + k, *prose[begin : begin + n - 1]]

    return take


prompt_places: dict[str, int] = {}


@pytest.fixture(scope="session")
def exact(plain: Server):
    """exact(prompt, n_cached) -> what a cold run without RidgeFill answers, with n_cached rows in its cache.

    The same number of cached rows, so that both runs cut the prompt into the same batches.
    """

    def run(ids: list[int], n_cached: int = 0) -> Answer:
        plain.erase()
        if n_cached > 0:
            other = next(token for token in range(1000, 1002) if token != ids[n_cached])
            plain.complete([*ids[:n_cached], other], n_predict=1, cache_prompt=False)
        answer = plain.complete(ids)
        assert answer.n_cached == n_cached
        return answer

    return run
