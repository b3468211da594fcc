"""A request that is begun later, on a connection that is made first."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from penstock_wire.http import GivenUp, GiveUp, Opened, SenderFailed, UpstreamError


class Starting:
    """Gives such a request up.

    Args:
        opened: the callback for its answer.
    """

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self.begun: GiveUp | None = None  # set by the work below
        self._task: asyncio.Task[None] | None = None

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start the work that makes the connection and begins the request."""
        self._task = task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._connected)
        return task

    def give_up(self) -> None:
        """See `GiveUp`."""
        if self.begun is not None:
            self.begun()
        elif self._task is not None:
            self._task.cancel()

    def _connected(self, task: asyncio.Task[None]) -> None:
        """Report why nothing was sent, if that work has failed."""
        if task.cancelled():
            self.opened(GivenUp("the request was given up before there was a connection"))
            return
        error = task.exception()
        if isinstance(error, UpstreamError):
            self.opened(error)
        elif isinstance(error, Exception):
            self.opened(SenderFailed("no request was sent", error))
