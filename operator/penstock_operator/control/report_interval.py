"""The interval of reports: a second, less for routers, more for all while the operator is busy. Pure."""

from __future__ import annotations

SHORTEST, LONGEST = 1.0, 10.0
"""Seconds between two reports of a pod."""

ROUTERS = 0.6
"""The share of that interval for routers: their settings come with the answers, and new weights must be in
effect in all routers within a second. Routers are few; each may send two reports a second."""

_BUSY, _IDLE = 0.6, 0.35
"""Share of a core above which the interval grows, and below which it shrinks. The range between is so wide
that one step of either kind does not cross it: the interval settles."""
_LATE, _PROMPT = 0.25, 0.1
"""Likewise for the seconds by which the event loop is late."""
_GROW, _SHRINK = 1.25, 0.9

_BYTES = 512 * 1024
"""Bytes of a report for each second of its interval: larger reports come less often."""


def next_interval(interval: float, *, busy: float, late: float) -> float:
    """Return the interval for the next second.

    Args:
        busy: CPU time that the process used in the last second, as a share of a core.
        late: seconds by which the event loop woke too late.
    """
    if busy > _BUSY or late > _LATE:
        return min(LONGEST, interval * _GROW)
    if busy < _IDLE and late < _PROMPT:
        return max(SHORTEST, interval * _SHRINK)
    return interval


def interval_of(size: int, interval: float, *, router: bool = False) -> float:
    """Return the seconds after which a reporter should report again."""
    return max(interval * ROUTERS if router else interval, min(size / _BYTES, LONGEST))
