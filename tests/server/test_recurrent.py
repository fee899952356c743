"""A model with recurrent layers: the state and what was added to it travel with a slot through the RAM prompt cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from http_server import HEAD, PLAN, TAIL, Answer, Server

FIRST, MORE = 400, 500


@pytest.fixture(scope="module")
def side_files(tiny_hybrid: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Identity maps at split 6 of 12; the second file also corrects its states by made-up constants."""
    from ridgefill_cpp._arms import write_identity
    from ridgefill_cpp.base import base_of
    from ridgefill_cpp.fit.correction import write_correction
    from ridgefill_cpp.sidefile import open_sidefile

    plain, corrected = (tmp_path_factory.mktemp("hybrid") / name for name in ("plain.gguf", "corrected.gguf"))
    write_identity(plain, base_of(tiny_hybrid), 6)
    rng = np.random.default_rng(1)
    constants = {layer: 0.02 * rng.normal(size=(8, 64, 64)).astype(np.float32) for layer in (8, 9, 10)}
    write_correction(open_sidefile(plain), corrected, constants, "grouped")
    return [plain, corrected]


@pytest.fixture(scope="module")
def hybrid(start, side_files, tiny_hybrid: Path, slot_files: Path) -> Server:
    args = ("--ridgefill", side_files[1], *PLAN, "-c", 4096, "-np", 1, "-b", 256, "-ub", 256)
    args += ("--slot-save-path", slot_files)  # erasing a slot needs it
    return start(*args, model=tiny_hybrid)


@pytest.fixture(scope="module")
def ids(hybrid: Server, tiny_hybrid: Path) -> list[int]:
    text = sorted((tiny_hybrid.parent / "held-long").iterdir())[0].read_text()
    return hybrid.tokenize(text[:12_000])


def two_turns(server: Server, ids: list[int], between: list[int] | None) -> tuple[Answer, Answer]:
    """A prompt, and a longer one that goes on from its answer; `between`: another prompt takes the slot meanwhile."""
    fields: dict[str, Any] = {"n_predict": 6, "temperature": 0, "n_probs": 5, "return_tokens": True}
    server.erase(0)
    first = server.post("/completion", {"prompt": ids[:FIRST], **fields})
    if between:
        server.complete(between)
    prompt = [*ids[:FIRST], *first["tokens"], *ids[FIRST : FIRST + MORE]]
    return Answer(first), Answer(server.post("/completion", {"prompt": prompt, **fields}))


def test_two_turns_through_the_ram_cache(hybrid: Server, ids: list[int]) -> None:
    first, straight = two_turns(hybrid, ids, None)
    # 16 .. 272 is filled: the tail begins at 272, and the bulk ends at a multiple of 64
    assert first.fill["n_filled"] == (FIRST - TAIL) // 64 * 64 - HEAD
    assert straight.n_cached >= FIRST and straight.fill["n_filled"] > 200
    _, back = two_turns(hybrid, ids, ids[1000:1300])
    assert (back.n_cached, back.fill["n_filled"]) == (straight.n_cached, straight.fill["n_filled"])
    assert back.distance(straight) == 0


def test_alpha(start, hybrid: Server, side_files, tiny_hybrid: Path, ids: list[int]) -> None:
    """Alpha 0 answers as a file without a correction does; alpha 1 does not."""
    with pytest.raises(AssertionError, match=r"--ridgefill-alpha.*allowed: 0 to 1"):
        start("--ridgefill", side_files[0], "--ridgefill-alpha", "1.5", model=tiny_hybrid)
    common = (*PLAN, "-c", 4096, "-np", 1, "-b", 256, "-ub", 256)
    zero = start("--ridgefill", side_files[1], "--ridgefill-alpha", 0, *common, model=tiny_hybrid)
    plain = start("--ridgefill", side_files[0], *common, model=tiny_hybrid)
    wanted = plain.complete(ids[:FIRST])
    assert zero.complete(ids[:FIRST]).distance(wanted) == 0
    hybrid.erase(0)
    assert hybrid.complete(ids[:FIRST]).distance(wanted) > 0.001
