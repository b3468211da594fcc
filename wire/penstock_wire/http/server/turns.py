"""Lets the connections of a front take turns, so that many of them do not hold up other fronts of a process.

The loop serves all connections that have received something, and looks again whether any has, before it
serves others for long: with a thousand busy clients of one tenant, any other waits for thousands of requests.
So a front takes `MOST` in each turn of the loop. Each further connection that it has taken something from is
not read again before its turn comes.
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

    __slots__ = ("_line", "_loop", "_scheduled", "_taken")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._line: collections.deque[TakesTurns] = collections.deque()
        self._taken = 0  # since the last turn that was noticed
        self._scheduled = False

    def took(self, connection: TakesTurns, size: int) -> None:
        """Note that a connection has received some bytes."""
        # NB: a turn is noticed only once there is too much: a front with little pays for an addition.
        self._taken += 1 + (size >> 8)
        if self._taken > MOST:
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._next)
            connection.await_turn()
            self._line.append(connection)

    def _next(self) -> None:
        """A new turn: the first in line are read again, and count as if each took one."""
        line = self._line
        self._taken = min(MOST, len(line))
        for _ in range(self._taken):
            line.popleft().take_turn()
        self._scheduled = bool(line)
        if line:
            self._loop.call_soon(self._next)
