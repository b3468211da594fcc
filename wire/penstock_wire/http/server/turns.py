"""Lets the connections of a front take turns, so that many of them do not hold up other fronts of a process.

The loop serves all connections that have received something, and looks again whether any has, before it
serves others for long: with a thousand busy clients of one tenant, any other waits for thousands of requests.
So a front takes `MOST` in each turn of the loop. Each further connection that it has taken something from is
not read again before its turn comes; one that sent much at once counts as much again, for some turns if need
be. A receipt is served whole: many that come at once to connections that were idle are not put off.
"""

from __future__ import annotations

import asyncio
import collections
from typing import Final

from penstock_wire._mypyc import trait

MOST: Final = 64
"""What a front takes in a turn of the loop: 1 for each receipt, and 1 for each 256 bytes. A short request
counts 1 to 3 and takes 50 to 100 microseconds, so that is about 3 ms."""


@trait
class TakesTurns:
    """A connection that can wait for its turn."""

    __slots__ = ()

    def await_turn(self) -> None:
        """Pause reading until `take_turn`."""
        raise NotImplementedError

    def take_turn(self) -> None:
        """Resume reading, unless something else pauses it."""
        raise NotImplementedError


class Turns:
    """The turns of a front's connections.

    Args:
        loop: the running loop.
    """

    __slots__ = ("_line", "_loop", "_owed", "_scheduled", "_taken")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._line: collections.deque[tuple[TakesTurns, int]] = collections.deque()  # and what each took last
        self._taken = 0  # since the last turn that was noticed
        self._owed = 0  # of it, what those took last that were read again in that turn
        self._scheduled = False

    def took(self, connection: TakesTurns, size: int) -> None:
        """Note that a connection has received some bytes."""
        # NB: a turn is noticed only once there is too much: a front with little pays for an addition.
        count = 1 + (size >> 8)
        self._taken += count
        if self._taken > MOST:
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._next)
            connection.await_turn()
            self._line.append((connection, count))

    def _next(self) -> None:
        """A new turn: the first in line are read again, and count as what they took last."""
        line = self._line
        taken = max(self._owed - MOST, 0)
        while line and taken < MOST:
            connection, count = line.popleft()
            taken += count
            connection.take_turn()
        self._taken = self._owed = taken
        self._scheduled = bool(line) or taken > MOST
        if self._scheduled:
            self._loop.call_soon(self._next)
