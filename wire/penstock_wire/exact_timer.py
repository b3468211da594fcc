"""A timer with a precision of microseconds: uvloop's timers are in whole ms, most of a short batch's time."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Callable

_LIBC = ctypes.CDLL(None, use_errno=True)
_MONOTONIC = 1


class _Spec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns")]


class ExactTimer:
    """Calls `ring` once for each time set, on the running loop: a `timerfd`.

    Args:
        ring: called when the time has come.

    Raises:
        OSError: the process has no file descriptor left for it.
    """

    def __init__(self, ring: Callable[[], object]) -> None:
        self._file: int = _LIBC.timerfd_create(_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._ring = ring
        self._spec = _Spec()
        self._pointer = ctypes.byref(self._spec)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._file, self._rang)
        self._armed = False

    def ring_at(self, when: float) -> None:
        """Ring at this time of `time.monotonic`; it replaces any time set before."""
        whole = int(when)
        self._set(whole, max(1, int((when - whole) * 1e9)))
        self._armed = True

    def cancel(self) -> None:
        """Do not ring."""
        if self._armed:
            self._armed = False
            self._set(0, 0)

    def close(self) -> None:
        """Never ring again."""
        self._loop.remove_reader(self._file)
        os.close(self._file)

    def _set(self, seconds: int, nanoseconds: int) -> None:
        self._spec.at_s, self._spec.at_ns = seconds, nanoseconds
        _LIBC.timerfd_settime(self._file, 1, self._pointer, None)

    def _rang(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._file, 8)
            self._armed = False
            self._ring()
