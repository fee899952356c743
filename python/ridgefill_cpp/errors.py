"""Errors of the commands and readers: one sentence with the value found and the value allowed, one hint.

Codes are stable and listed in docs/format.md. Text that comes from a file passes through `clean` first, so that a
name with control characters cannot write into a log or a terminal.
"""

from __future__ import annotations

import os


class RidgefillError(ValueError):
    """`<code>: <file>: <item>: found <found>, allowed <allowed>`; hint is a separate line for the user."""

    def __init__(
        self,
        code: str,
        file: str | os.PathLike[str],
        item: str,
        found: object,
        allowed: object,
        hint: str = "",
    ) -> None:
        self.code = code
        self.file = os.fspath(file)
        self.item = item
        self.found = clean(found)
        self.allowed = clean(allowed, 400)
        self.hint = hint
        where = ": ".join(clean(part, 300) for part in (self.file, item) if part)
        super().__init__(f"{code}: {where}: found {self.found}, allowed {self.allowed}")


class UsageError(Exception):
    """A command line that cannot be run; the program exits with status 2."""

    def __init__(self, message: str, hint: str = "") -> None:
        self.hint = hint
        super().__init__(message)


def clean(value: object, limit: int = 120) -> str:
    """`value` as one line of printable text of at most `limit` characters."""
    text = value if isinstance(value, str) else str(value)
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[: limit + 1])
    return text if len(text) <= limit else text[: limit - 3] + "..."
