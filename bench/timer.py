"""A timer to the microsecond: uvloop's own are in whole milliseconds, which is most of a short batch."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Callable

_LIBC = ctypes.CDLL(None, use_errno=True)
_MONOTONIC, _NONBLOCK, _ABSOLUTE = 1, 0o4000, 1
_SET_TIMER_SLACK = 29


class _Spec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns")]


def precise() -> None:
    """Let this process and its children sleep to the microsecond (the kernel's own slack is 50 µs)."""
    _LIBC.prctl(_SET_TIMER_SLACK, 1000, 0, 0, 0)


def urgent() -> bool:
    """Let this process run before all others of its core (real-time class); returns whether it may."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    except OSError:
        return False
    return True


class Timer:
    """Calls back once for each time it was set.

    Args:
        loop: the loop that calls.
        call: what it calls.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self._file = _LIBC.timerfd_create(_MONOTONIC, _NONBLOCK)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._call = call
        self._loop = loop
        self._spec = _Spec()
        self._pointer = ctypes.byref(self._spec)
        loop.add_reader(self._file, self._ring)

    def at(self, when: float) -> None:
        """Call at this time of `time.monotonic`, or at once if it is past."""
        whole = int(when)
        self._spec.at_s, self._spec.at_ns = whole, max(1, int((when - whole) * 1e9))
        _LIBC.timerfd_settime(self._file, _ABSOLUTE, self._pointer, None)

    def close(self) -> None:
        """Never call again."""
        self._loop.remove_reader(self._file)
        os.close(self._file)

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._file, 8)
            self._call()
