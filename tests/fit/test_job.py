"""The fit job on made-up rows: what enters the sums, resuming bit for bit, the file that comes out."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ridgefill_cpp.errors import RidgefillError, UsageError
from ridgefill_cpp.fit.held import HeldRows
from ridgefill_cpp.fit.job import Job, Settings
from ridgefill_cpp.fit.run import Choices, Fingerprints, Report, finish, fit
from ridgefill_cpp.fit.texts import Document
from ridgefill_cpp.layout import Base
from ridgefill_cpp.sidefile import open_sidefile
from synthetic import N_IN, SyntheticRows

BASE = Base("llama", 8, N_IN, 256, "toy", "ab" * 32, "a" * 8)
SETTINGS = Settings(split=4, context=200, held_rows=300)


def texts(count: int, size: int = 900, seed: int = 1) -> list[Document]:
    rng = random.Random(seed)
    return [Document(f"d{i}", "".join(chr(rng.randrange(32, 127)) for _ in range(size + 37 * i))) for i in range(count)]


TRAIN, HELD = texts(12), texts(3, seed=2)


def folder(tmp_path: Path, name: str = "work") -> Path:
    (tmp_path / name).mkdir(exist_ok=True)
    return tmp_path / name


def job(path: Path, rows: SyntheticRows | None = None, settings: Settings = SETTINGS) -> Job:
    return Job(rows or SyntheticRows(), settings, path, {"model": 1})


def written(tmp_path: Path, name: str, settings: Settings = SETTINGS, choices: Choices | None = None) -> Report:
    result = job(folder(tmp_path, name + ".work"), settings=settings).run(TRAIN, HELD)
    return finish(Fingerprints(BASE), result, [5, 6, 7], tmp_path / name, settings, choices or Choices(), "cd" * 32)


def test_end_to_end(tmp_path: Path) -> None:
    report = written(tmp_path, "p.gguf")
    side = open_sidefile(tmp_path / "p.gguf", BASE)
    assert side.header == replace(report.header, fit=side.header.fit) and side.warnings == []
    fit = side.header.fit
    assert fit.layers == (5, 6, 7) and fit.head == 16 and fit.rows == report.result.sums.n_rows
    assert min(fit.cosine) > 0.9 and min(fit.r2) > 0.8 and fit.held_rows == report.result.held.rows <= 300
    truth = SyntheticRows().maps[0].T
    assert np.linalg.norm(side.weight(5) - truth) / np.linalg.norm(truth) < 0.1
    stored = report.result.held.stored
    x, y = stored.piece(0, 0), stored.piece(1, 0)
    predicted = x @ side.weight(5).T + side.bias(5)
    cosine = np.mean([p @ t / np.linalg.norm(p) / np.linalg.norm(t) for p, t in zip(predicted, y, strict=True)])
    assert cosine == pytest.approx(fit.cosine[0], abs=1e-6)  # of the int8 map as stored


def test_same_input_same_bytes(tmp_path: Path) -> None:
    written(tmp_path, "a.gguf")
    written(tmp_path, "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


@pytest.mark.parametrize("stop_after", [1, 17, 50, 143, 147])
def test_resume_bit_for_bit(tmp_path: Path, stop_after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    always = stop_after % 2 == 1
    monkeypatch.setattr("ridgefill_cpp.fit.job.CHECKPOINT_EVERY", -1.0 if always else 0.01)
    monkeypatch.setattr("ridgefill_cpp.fit.job.CHECKPOINT_COST", 0.0)
    settings = replace(SETTINGS, chat_share=0.5)
    written(tmp_path, "whole.gguf", settings)
    work = folder(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        job(work, SyntheticRows(stop_after), settings).run(TRAIN, HELD)
    (work / "held.y1").open("ab").write(b"half a row")  # cut off on opening
    rows = SyntheticRows()
    result = job(work, rows, settings).run(TRAIN, HELD)
    finish(Fingerprints(BASE), result, [5, 6, 7], tmp_path / "resumed.gguf", settings, Choices(), "cd" * 32)
    assert (tmp_path / "whole.gguf").read_bytes() == (tmp_path / "resumed.gguf").read_bytes()
    if always:
        assert rows.seen == total_windows(settings) - stop_after


KILLED = """
import sys
import time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import ridgefill_cpp.fit.job as job
from ridgefill_cpp.fit.blas import limit_blas
from test_job import HELD, TRAIN, SETTINGS, SyntheticRows
limit_blas(1)
class Slow(SyntheticRows):
    def run(self, ids):
        time.sleep(0.01)
        return super().run(ids)
job.CHECKPOINT_EVERY, job.CHECKPOINT_COST = -1.0, 0.0
one = job.Job(Slow(), SETTINGS, Path(sys.argv[2]), {"model": 1})
print("begun", flush=True)
one.run(TRAIN, HELD)
"""


def test_killed_at_random_points(tmp_path: Path) -> None:
    """SIGKILL, several times over, and a last run that goes on: the same bytes as in one go."""
    written(tmp_path, "whole.gguf")
    work, rng = folder(tmp_path), random.Random(5)
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(work)]
    killed = 0
    for _ in range(4):
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as process:
            assert process.stdout is not None and process.stdout.readline() == b"begun\n"
            time.sleep(rng.uniform(0.02, 0.2))
            process.kill()
        killed += process.returncode == -signal.SIGKILL
    assert killed == 4 and (work / "fit.npz").is_file()
    result = job(work).run(TRAIN, HELD)
    finish(Fingerprints(BASE), result, [5, 6, 7], tmp_path / "resumed.gguf", SETTINGS, Choices(), "cd" * 32)
    assert (tmp_path / "whole.gguf").read_bytes() == (tmp_path / "resumed.gguf").read_bytes()


def total_windows(settings: Settings) -> int:
    rows = SyntheticRows()
    one = Job.__new__(Job)
    one.rows, one.settings, one.kinds = rows, settings, ("raw", "chat")
    return len(one.windows(TRAIN)) + len(one.held_windows(HELD))


def test_resume_again_changes_nothing(tmp_path: Path) -> None:
    work, rows = folder(tmp_path), SyntheticRows()
    first = job(work).run(TRAIN, HELD)
    again = job(work, rows).run(TRAIN, HELD)
    assert rows.seen == 0 and again.n_rows == first.n_rows
    assert (again.sums.sxx == first.sums.sxx).all()


def test_resume_refusals(tmp_path: Path) -> None:
    work = folder(tmp_path)
    job(work).run(TRAIN, HELD)
    for settings in (replace(SETTINGS, stride=2), replace(SETTINGS, split=3), replace(SETTINGS, seed=1)):
        with pytest.raises(RidgefillError) as caught:
            job(work, settings=settings)
        assert caught.value.code == "resume" and "another folder" in caught.value.hint
    good = (work / "fit.npz").read_bytes()
    for bad in (good[: len(good) // 2], b"", b"PK"):
        (work / "fit.npz").write_bytes(bad)
        with pytest.raises(RidgefillError) as caught:
            job(work)
        assert caught.value.code == "resume"
    (work / "fit.npz").write_bytes(good)
    (work / "fit.json").write_text("[")
    with pytest.raises(RidgefillError):
        job(work)


def test_rows_that_count(tmp_path: Path) -> None:
    """Head rows and other positions stay out; max_rows is exact; windows start with what the tokenizer adds."""
    one = job(folder(tmp_path))
    windows = one.windows([Document("d", "x" * 450), Document("short", "y" * 40)])
    assert [len(w.ids) for w in windows] == [200, 200, 53]
    assert all(w.ids[0] == 1 for w in windows) and sum(len(w.ids) - 1 for w in windows) == 450 + 0
    assert [one.count(w) for w in windows] == [184, 184, 37]
    one.settings = replace(SETTINGS, stride=8)
    assert one.used(windows[0], 8) == slice(16, 200, 8) and one.count(windows[0]) == 23
    one.settings = replace(SETTINGS, stride=7)
    assert one.used(windows[0], 7).start == 21
    for stride in (1, 3, 8):
        one.settings = replace(SETTINGS, stride=stride)
        for limit in (1, 20, 60, 100):
            kept = one.first_rows(windows, limit)
            assert sum(one.count(w) for w in kept) == min(limit, sum(one.count(w) for w in windows))


def test_max_rows(tmp_path: Path) -> None:
    settings = replace(SETTINGS, max_rows=1000)
    assert job(folder(tmp_path), settings=settings).run(TRAIN, HELD).sums.n_rows == 1000


def test_chat_share(tmp_path: Path) -> None:
    """Chat rows weigh q n_raw / ((1 - q) n_chat), so that they make up the share q of the weight."""
    settings = replace(SETTINGS, chat_share=0.3)
    result = job(folder(tmp_path), settings=settings).run(TRAIN, HELD)
    raw, chat = result.n_rows["raw"], result.n_rows["chat"]
    assert chat > 0 and result.sums.n_rows == raw + chat
    assert result.sums.weight == pytest.approx(raw / 0.7)
    one = job(folder(tmp_path, "b"), settings=settings)
    ids = [w.ids for w in one.windows(TRAIN[:1]) if w.kind == "chat"]
    assert ids[0][:3].tolist() == [1, 2, 3] and ids[0][-2:].tolist() == [4, 5] and len(ids[0]) == 200


class SomeNaN(SyntheticRows):
    def run(self, ids):
        x, ys = super().run(ids)
        ys[1][30, 3], x[40, 0] = np.nan, np.inf
        return x, ys


def test_bad_rows(tmp_path: Path) -> None:
    result = job(folder(tmp_path), SomeNaN()).run(TRAIN, HELD)
    clean = job(folder(tmp_path, "c")).run(TRAIN, HELD)
    windows = len(job(folder(tmp_path, "d")).windows(TRAIN))
    assert clean.sums.n_rows - result.sums.n_rows == 2 * windows and result.dropped >= 2 * windows
    report = finish(Fingerprints(BASE), result, [5, 6, 7], tmp_path / "p.gguf", SETTINGS, Choices(), "cd" * 32)
    assert any(w.startswith("dropped-rows: ") for w in report.warnings)
    assert open_sidefile(tmp_path / "p.gguf").header.fit.dropped_rows == result.dropped


def test_warns_of_few_rows(tmp_path: Path) -> None:
    report = written(tmp_path, "p.gguf", replace(SETTINGS, max_rows=500))
    assert [w.split(":")[0] for w in report.warnings] == ["few-rows"]
    assert written(tmp_path, "q.gguf").warnings == []


def test_choices(tmp_path: Path) -> None:
    each = written(tmp_path, "e.gguf", choices=Choices(per_layer=True, lambdas=(1e-4, 0.1, 3.0)))
    grid = each.solution.profile
    assert list(grid) == [1e-4, 0.1, 3.0] and max(grid, key=lambda lam: grid[lam]) != 3.0
    same = written(tmp_path, "s.gguf", choices=Choices(lambdas=(0.01,)))
    assert {m.lam for m in same.solution.maps} == {0.01}
    strong = written(tmp_path, "i.gguf", choices=Choices(lambdas=(1e9,), prior="identity"))
    assert np.allclose(open_sidefile(tmp_path / "i.gguf").weight(5), np.eye(N_IN), atol=1e-3)
    assert strong.header.fit.prior == "identity"
    with pytest.raises(UsageError):
        fit(Path("absent"), [], [], tmp_path / "x", replace(SETTINGS, target="block_input"), Choices(prior="identity"))


@pytest.mark.parametrize("encoding", ["q8_0", "bf16"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    report = written(tmp_path, "p.gguf", choices=Choices(encoding=encoding))
    assert open_sidefile(tmp_path / "p.gguf", BASE).header.encoding == encoding
    assert min(m.score.cosine for m in report.solution.maps) > 0.9


def test_nothing_held_out(tmp_path: Path) -> None:
    with pytest.raises(RidgefillError) as caught:
        result = job(folder(tmp_path)).run(TRAIN, [Document("d", "short")])
        finish(Fingerprints(BASE), result, [5, 6, 7], tmp_path / "p.gguf", SETTINGS, Choices(), "")
    assert caught.value.code == "held-out"


def test_scores(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5000, 8)).astype(np.float32), rng.normal(size=(5000, 6)).astype(np.float32) + 1
    held = HeldRows(tmp_path, 8, (6,))
    held.append(x[:3000], [y[:3000]])
    held.append(x[3000:], [y[3000:]])
    weight, bias = rng.normal(size=(6, 8)).astype(np.float32), rng.normal(size=6).astype(np.float32)
    (score,) = held.view(0, (1,)).scores(0, [(weight, bias)])
    p = x @ weight.T + bias
    cosine = (p * y).sum(1) / np.linalg.norm(p, axis=1) / np.linalg.norm(y, axis=1)
    assert score.cosine == pytest.approx(cosine.mean(), abs=1e-6)
    assert score.r2 == pytest.approx(1 - ((p - y) ** 2).sum() / ((y - y.mean(0)) ** 2).sum(), rel=1e-5)


def test_memory_does_not_grow(tmp_path: Path) -> None:
    peaks = []
    for count in (1, 12):
        one, windows = job(folder(tmp_path, str(count))), TRAIN[:1] * count
        tracemalloc.start()
        one.run(windows, HELD[:1])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] * 1.15


class LaterSplit(SyntheticRows):
    """The same rows as a fit of split 5 sees them: the input of layer 5 is its source."""

    layers = (6, 7)
    widths = SyntheticRows.widths[1:]

    def run(self, ids):
        _, ys = super().run(ids)
        return ys[0], ys[1:]


def test_several_splits_in_one_pass(tmp_path: Path) -> None:
    together = Job(SyntheticRows(), SETTINGS, folder(tmp_path), {"model": 1}, (5,)).run_all(TRAIN, HELD)
    alone = job(folder(tmp_path, "a")).run(TRAIN, HELD), job(folder(tmp_path, "b"), LaterSplit()).run(TRAIN, HELD)
    assert [r.split for r in together] == [4, 5] and [r.layers for r in together] == [(5, 6, 7), (6, 7)]
    for i, (one, other) in enumerate(zip(together, alone, strict=True)):
        assert (one.sums.sxx == other.sums.sxx).all() and (one.sums.sxy[-1] == other.sums.sxy[-1]).all()
        settings = replace(SETTINGS, split=one.split)
        for result, name in ((one, f"one{i}"), (other, f"other{i}")):
            finish(Fingerprints(BASE), result, list(one.layers), tmp_path / name, settings, Choices(), "cd" * 32)
        assert (tmp_path / f"one{i}").read_bytes() == (tmp_path / f"other{i}").read_bytes()


def test_several_splits_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgefill_cpp.fit.job.CHECKPOINT_EVERY", -1.0)
    monkeypatch.setattr("ridgefill_cpp.fit.job.CHECKPOINT_COST", 0.0)
    whole = Job(SyntheticRows(), SETTINGS, folder(tmp_path, "a"), {}, (5, 6)).run_all(TRAIN, HELD)
    with pytest.raises(KeyboardInterrupt):
        Job(SyntheticRows(20), SETTINGS, folder(tmp_path), {}, (5, 6)).run_all(TRAIN, HELD)
    again = Job(SyntheticRows(), SETTINGS, folder(tmp_path), {}, (5, 6)).run_all(TRAIN, HELD)
    for one, other in zip(whole, again, strict=True):
        assert all((one.sums.state()[name] == other.sums.state()[name]).all() for name in one.sums.state())
    with pytest.raises(RidgefillError):
        Job(SyntheticRows(), SETTINGS, folder(tmp_path), {}, (5,))
