"""Durations as users write them: `30s`, `1m30s`, `250ms`."""

from __future__ import annotations

import re

PATTERN = r"^([0-9]+(ms|s|m|h))+$"
_PART = re.compile(r"([0-9]+)(ms|s|m|h)")
_WHOLE = re.compile(PATTERN)
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


def parse_ms(text: str) -> int:
    """Return a duration in milliseconds.

    Args:
        text: numbers with units, as in `1m30s`; units ms, s, m, h.

    Raises:
        ValueError: the text is not of that form.
    """
    if not _WHOLE.match(text):
        raise ValueError(f"expected a duration such as 250ms, 30s or 1m30s, found {text!r}")
    return sum(int(number) * _UNIT_MS[unit] for number, unit in _PART.findall(text))


def format_ms(milliseconds: int) -> str:
    """Return the shortest spelling of a duration in one unit: 90000 → `90s`, 1500 → `1500ms`, 0 → `0s`."""
    for unit in ("h", "m", "s"):
        size = _UNIT_MS[unit]
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms" if milliseconds else "0s"
