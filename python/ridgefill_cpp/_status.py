"""What `llm.ridgefill` shows: the side file, the defaults and what the last call did. Plain values, no native code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RidgefillCounts:
    """What happened to the rows of the last prompt. Rows reused from the cache count as neither filled nor exact."""

    mode: str = "off"
    n_filled: int = 0
    n_exact: int = 0
    n_selected: int = 0
    """Of n_exact: bulk rows that quality mode selected."""
    reason: str = "no_projector"
    """Why nothing was filled, "none" when rows were: a word of `llama_ridgefill_reason_name`."""


@dataclass(frozen=True)
class RidgefillStatus:
    """A snapshot. Without a side file identity, name, split, target and native are None and the mode is "off"."""

    mode: str
    tail: int
    head: int
    min_bulk: int
    identity: str | None = None
    name: str | None = None
    path: str | None = None
    split: int | None = None
    n_maps: int = 0
    target: str | None = None
    native: bool | None = None
    share: float = 0.13
    select: str = "attention"
    warnings: tuple[str, ...] = ()
    """What differs from the model or could not be compared, each "<code>: ..." (docs/format.md)."""
    refused: str | None = None
    """Why the side file was refused, with ridgefill_strict=False; everything then runs exactly."""
    last: RidgefillCounts = RidgefillCounts()
