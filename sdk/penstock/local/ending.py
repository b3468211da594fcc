"""Ends the children of this process, with all processes that they started, even if this one is killed.

Each child leads its own process group. A guard process, forked before anything else runs, holds the numbers
of the groups and one end of a pipe. When the pipe's other end closes, because this process has ended in any
way, the guard kills the remaining groups.
"""

from __future__ import annotations

import contextlib
import os
import signal


def end_group(leader: int) -> None:
    """Kill a child's process group: the child, if it is running, and the processes that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


class Guard:
    """The guard, seen from this process; must be made while that has one thread and no event loop."""

    def __init__(self) -> None:
        reading, self._writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._writing)
            _guard(reading)
        os.close(reading)

    def add(self, leader: int) -> None:
        """Put a group under guard."""
        os.write(self._writing, b"+%d\n" % leader)

    def remove(self, leader: int) -> None:
        """Remove a group that has ended: its number can soon be reused."""
        os.write(self._writing, b"-%d\n" % leader)

    def close(self) -> None:
        """End the guard and all remaining groups."""
        os.close(self._writing)
        os.waitpid(self._pid, 0)


def _guard(reading: int) -> None:
    try:
        os.setsid()  # signals to this process's group, by a terminal or a user, must not end the guard
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        # Close the inherited output: its reader waits until all processes that can write to it have ended.
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        groups: set[int] = set()
        with open(reading, "rb") as lines:
            for line in lines:
                leader = int(line[1:])
                (groups.add if line[:1] == b"+" else groups.discard)(leader)
        for leader in groups:
            end_group(leader)
    finally:
        os._exit(0)  # NB: skips all clean-up of the forked process
