"""A short run of the fuzzer; RIDGEFILL_FUZZ=20000 makes it long."""

from __future__ import annotations

import os
from pathlib import Path

from fuzz_readers import run


def test_damaged_files(tmp_path: Path) -> None:
    count = int(os.environ.get("RIDGEFILL_FUZZ", "1000"))
    outcomes, findings = run(count, int(os.environ.get("RIDGEFILL_FUZZ_SEED", "0")), tmp_path)
    assert not findings, "\n".join(findings[:20])
    read = sum(times for outcome, times in outcomes.items() if outcome.endswith(": read"))
    assert 0 < read < count / 2, "the damage has no effect, or nothing gets through"
