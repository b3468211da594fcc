"""Ends what this process started, with all that those processes started, also if this one is killed.

Each child leads a process group of its own. A guard, forked before anything else runs, holds the numbers of
the groups and one end of a pipe; when the pipe's other end is gone, because this process has ended in
whatever way, the guard kills the groups that are left.
"""

from __future__ import annotations

import contextlib
import os
import signal


def end_group(leader: int) -> None:
    """Kill a child's process group: the child, if it runs, and what it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


class Guard:
    """The other process's end of it; made while this process has one thread and no event loop."""

    def __init__(self) -> None:
        reading, self._writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._writing)
            _guard(reading)
        os.close(reading)

    def add(self, leader: int) -> None:
        """A group is under guard."""
        os.write(self._writing, b"+%d\n" % leader)

    def remove(self, leader: int) -> None:
        """A group has ended, and its number may soon be another's."""
        os.write(self._writing, b"-%d\n" % leader)

    def close(self) -> None:
        """End the guard and all groups that are left."""
        os.close(self._writing)
        os.waitpid(self._pid, 0)


def _guard(reading: int) -> None:
    try:
        os.setsid()  # what is sent to this process's group, by a terminal or a person, is not for the guard
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        # Whoever reads this process's output waits for the end of all who can write to it.
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
        os._exit(0)  # NB: nothing of the process that was forked runs here
