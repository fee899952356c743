"""The streamed ridge against the plain closed form in float64."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from ridgefill_cpp.fit.ridge import RidgeSums


def data(rows: int, n_in: int, widths: tuple[int, ...], offset: float = 0.0, seed: int = 0):
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(n_in, n_in)) * np.geomspace(1, 1e-2, n_in)
    x = (rng.normal(size=(rows, n_in)) @ mix + offset * rng.normal(size=n_in)).astype(np.float32)
    ys = [(x @ rng.normal(size=(n_in, w)) + rng.normal(size=(rows, w)) + offset).astype(np.float32) for w in widths]
    return x, ys


def closed_form(x, y, weights, lam, prior="zero"):
    """W = (D + p P) (C + p I)^-1 with explicit centring, by a linear solve."""
    x, y, w = x.astype(np.float64), y.astype(np.float64), weights[:, None]
    mx, my = (w * x).sum(0) / w.sum(), (w * y).sum(0) / w.sum()
    dx, dy = x - mx, y - my
    c, d = (w * dx).T @ dx, (w * dy).T @ dx
    p = lam * np.trace(c) / len(c)
    goal = d + p * np.eye(len(c)) if prior == "identity" else d
    weight = np.linalg.solve(c + p * np.eye(len(c)), goal.T).T
    return weight, my - weight @ mx


def relative(found, wanted) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("offset", [0.0, 3.0, 1000.0])
@pytest.mark.parametrize("prior", ["zero", "identity"])
def test_closed_form(offset: float, prior: str) -> None:
    x, ys = data(1500, 48, (48, 48), offset)
    sums = RidgeSums(48, (48, 48))
    weights = np.empty(len(x))
    for begin in range(0, len(x), 128):
        rows, weight = slice(begin, begin + 128), 1.0 + begin % 3
        weights[rows] = weight
        sums.add(x[rows], [y[rows] for y in ys], weight)
    solver = sums.decompose()
    for lam in (1e-4, 0.003, 0.1, 10.0):
        for i, y in enumerate(ys):
            weight, bias = solver.solve(i, lam, prior)
            wanted = closed_form(x, y, weights, lam, prior)
            assert relative(weight, wanted[0]) < 1e-9
            assert relative(bias, wanted[1]) < 1e-9


def test_other_widths() -> None:
    x, (y,) = data(300, 20, (7,))
    sums = RidgeSums(20, (7,))
    sums.add(x, [y])
    weight, bias = sums.decompose().solve(0, 0.01)
    wanted = closed_form(x, y, np.ones(len(x)), 0.01)
    assert weight.shape == (7, 20) and relative(weight, wanted[0]) < 1e-9 and relative(bias, wanted[1]) < 1e-9


def test_sizes_of_lambda() -> None:
    x, (y,) = data(400, 16, (16,))
    sums = RidgeSums(16, (16,))
    sums.add(x, [y])
    solver = sums.decompose()
    assert relative(solver.solve(0, 1e12, "identity")[0], np.eye(16)) < 1e-9
    assert np.abs(solver.solve(0, 1e12)[0]).max() < 1e-6
    least_squares = np.linalg.lstsq(x - x.mean(0), y - y.mean(0), rcond=None)[0].T
    assert relative(solver.solve(0, 1e-13)[0], least_squares) < 1e-4
    assert solver.condition(1e-6) > solver.condition(1.0) > 1


def test_bad_rows_are_dropped() -> None:
    x, ys = data(600, 24, (24, 24), 5.0)
    good = np.ones(len(x), bool)
    broken_x, broken_y = x.copy(), [y.copy() for y in ys]
    for row, place in ((0, broken_x), (3, broken_y[1]), (400, broken_x), (599, broken_y[0])):
        place[row, 5] = (np.nan, np.inf, -np.inf)[row % 3]
        good[row] = False
    sums, clean = RidgeSums(24, (24, 24)), RidgeSums(24, (24, 24))
    for begin in range(0, 600, 200):
        rows = slice(begin, begin + 200)
        sums.add(broken_x[rows], [y[rows] for y in broken_y])
        clean.add(x[rows][good[rows]], [y[rows][good[rows]] for y in ys])
    assert (sums.n_dropped, sums.n_rows) == (4, 596)
    for name, array in clean.state().items():
        if name != "counts":
            assert (sums.state()[name] == array).all(), name


def test_no_rows() -> None:
    sums = RidgeSums(4, (4,))
    with pytest.raises(ValueError, match="no rows"):
        sums.decompose()
    sums.add(np.full((3, 4), np.nan, np.float32), [np.zeros((3, 4), np.float32)])
    assert sums.n_dropped == 3
    sums.add(np.ones((5, 4), np.float32), [np.ones((5, 4), np.float32)])
    with pytest.raises(ValueError, match="equal"):
        sums.decompose()


def test_absorb_and_state() -> None:
    """Two formats summed apart and mixed by weight equal one weighted sum; a stored state goes on exactly."""
    x, ys = data(900, 24, (24, 30), 50.0)
    raw, chat, whole = (RidgeSums(24, (24, 30)) for _ in range(3))
    weights = np.where(np.arange(900) < 500, 1.0, 0.37)
    raw.add(x[:500], [y[:500] for y in ys])
    chat.add(x[500:], [y[500:] for y in ys])
    mixed = RidgeSums(24, (24, 30))
    mixed.absorb(raw)
    mixed.absorb(chat, 0.37)
    whole.add(x[:500], [y[:500] for y in ys])
    whole.add(x[500:], [y[500:] for y in ys], 0.37)
    for i, y in enumerate(ys):
        wanted = closed_form(x, y, weights, 0.01)
        assert relative(mixed.decompose().solve(i, 0.01)[0], wanted[0]) < 1e-9
        assert relative(whole.decompose().solve(i, 0.01)[0], wanted[0]) < 1e-9
    again = RidgeSums.restored({k: v.copy() for k, v in raw.state().items()}, 2)
    for sums in (raw, again):
        sums.add(x[500:], [y[500:] for y in ys])
    assert all((again.state()[name] == array).all() for name, array in raw.state().items())


def test_memory_does_not_grow() -> None:
    peaks = []
    for chunks in (3, 30):
        x, ys = data(256, 64, (64,) * 4)
        sums = RidgeSums(64, (64,) * 4)
        tracemalloc.start()
        for _ in range(chunks):
            sums.add(x, ys)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] <= peaks[0] * 1.02
