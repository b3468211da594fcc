"""How often pods report: once a second, routers oftener, all less often while the operator is busy. Pure."""

from __future__ import annotations

SHORTEST, LONGEST = 1.0, 10.0
"""Seconds between two reports of a pod."""

ROUTERS = 0.6
"""Of that interval, for routers: they get their settings with the answers, and new weights are to be in
effect in all of them within a second. There are few of them; two reports a second are taken of each."""

_BUSY, _IDLE = 0.6, 0.35
"""Share of a core above which the interval grows, and below which it shrinks. What lies between is so wide
that one step of either kind does not lead to the other side: the interval settles."""
_LATE, _PROMPT = 0.25, 0.1
"""Likewise for the seconds by which the event loop is late."""
_GROW, _SHRINK = 1.25, 0.9

_BYTES = 512 * 1024
"""A larger report comes less often: once a second for each of these."""


def next_interval(interval: float, *, busy: float, late: float) -> float:
    """The interval for the next second.

    Args:
        interval: in seconds, until now.
        busy: CPU time that the process used in the last second, as a share of a core.
        late: seconds by which the event loop woke too late.
    """
    if busy > _BUSY or late > _LATE:
        return min(LONGEST, interval * _GROW)
    if busy < _IDLE and late < _PROMPT:
        return max(SHORTEST, interval * _SHRINK)
    return interval


def interval_of(size: int, interval: float, *, router: bool = False) -> float:
    """When one reporter is to report again, in seconds.

    Args:
        size: bytes of its report.
        interval: that of all, in seconds.
        router: whether it is a router.
    """
    return max(interval * ROUTERS if router else interval, min(size / _BYTES, LONGEST))
