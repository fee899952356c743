"""The choice of a split: candidates, the rule, and that only the chosen file appears."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from ridgefill_cpp.errors import RidgefillError
from ridgefill_cpp.fit import auto
from ridgefill_cpp.fit.auto import Auto, Row, candidates, choose, pick, print_choice
from ridgefill_cpp.fit.command import names
from ridgefill_cpp.fit.job import Settings
from ridgefill_cpp.fit.run import Choices
from ridgefill_cpp.layout import Base


def test_candidates() -> None:
    assert candidates(30) == [10, 15, 20, 25] and candidates(48) == [16, 24, 32, 40]
    assert candidates(4) == [1, 2] and candidates(3) == [1] and candidates(2) == []


@pytest.mark.parametrize(
    ("losses", "chosen"),
    [
        ({10: 0.2, 15: 0.19, 20: 0.03, 25: 0.01}, (20, True)),
        ({10: 0.01, 15: 0.2, 20: 0.03}, (10, True)),
        ({10: 0.2, 15: 0.06, 20: 0.07}, (15, False)),
        ({10: -0.01, 15: 0.0}, (10, True)),
    ],
)
def test_rule(losses: dict[int, float], chosen: tuple[int, bool]) -> None:
    assert pick([Row(split, None, 0.9, loss) for split, loss in losses.items()], 0.05) == chosen


@dataclass
class Fake:
    """Stands in for the fit and the measurement."""

    losses: dict[int, float]

    def fit_splits(self, model, train, held, files, settings, choices, work):
        for split, file in files.items():
            file.write_text(f"split {split}")
        maps = [SimpleNamespace(score=SimpleNamespace(cosine=0.9))]
        return {split: SimpleNamespace(solution=SimpleNamespace(maps=maps)) for split in files}

    def measured(self, model, files, *rest):
        return {split: self.losses[split] for split in files}


@pytest.mark.parametrize("good", [True, False])
def test_choose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], good: bool
) -> None:
    fake = Fake({10: 0.2, 15: 0.1, 20: 0.03 if good else 0.08, 25: 0.04 if good else 0.06})
    monkeypatch.setattr(auto, "fit_splits", fake.fit_splits)
    monkeypatch.setattr(auto, "_losses", fake.measured)
    monkeypatch.setattr(auto, "base_of", lambda path: Base("llama", 30, 64))
    monkeypatch.setattr(auto, "_ideal", lambda *args: 2.0)
    monkeypatch.setattr(auto, "_require_long", lambda *args: None)
    out = tmp_path / "p.gguf"
    choice = choose(tmp_path / "m", [], [], out, Settings(0), Choices(), Auto(), tmp_path / "work")
    assert choice.split == (20 if good else 25) and out.read_text() == f"split {choice.split}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.gguf", "work"]
    print_choice(choice, Auto())
    text = capsys.readouterr().out
    assert text.count("<- chosen") == 1 and text.splitlines()[-1] == (
        "rule: lowest split within 0.05 nats" if good else "rule: least loss, as none is within 0.05 nats"
    )
    with pytest.raises(RidgefillError):
        choose(tmp_path / "m", [], [], out, Settings(0), Choices(), Auto())


def test_names() -> None:
    assert names(Path("a/p.gguf"), (20,)) == {20: Path("a/p.gguf")}
    assert names(Path("a/p.gguf"), (10, 20)) == {10: Path("a/p-S10.gguf"), 20: Path("a/p-S20.gguf")}
