"""The words of the C API's enums, by value; without the native libraries."""

from __future__ import annotations

MODES = ("off", "plumb", "speed", "quality")
SELECTS = ("attention", "spans", "rows", "class", "random", "all")
PLACEMENTS = ("device", "host")


def parse_dropped(mode: str, tail: int) -> int | None:
    """Rows that an arm named "dropped" (the exact tail) or "dropped:ROWS" keeps; None for any other name."""
    name, *rest = mode.split(":")
    if name != "dropped" or len(rest) > 1 or not all(part.isdigit() for part in rest):
        return None
    return max(tail, int(rest[0])) if rest else tail


def parse_quality(mode: str) -> tuple[str, float] | None:
    """(select, share) of an arm named "quality" or "quality:SELECT:SHARE"; None for any other name."""
    name, *rest = mode.split(":")
    if name != "quality" or len(rest) not in (0, 2):
        return None
    if not rest:
        return "attention", 0.13
    try:
        share = float(rest[1])
    except ValueError:
        return None
    return (rest[0], share) if rest[0] in SELECTS and 0 <= share <= 1 else None
