"""Serves the admin port in a separate thread, so that kubelet's probes are answered even on a busy router.

The event loop that serves requests can be late by seconds if CPU is short. A probe answered late would take a
live router out of its Service, and the nodes would refuse its clients' connections. So a thread with its own
event loop answers probes from the router's present state; it hands all other requests on the admin port to
the router's loop.

A probe must detect a loop that stands still. The loop beats once a second; after `STILL_SECONDS` without a
beat, the process is broken: even in a starved process, the loop makes a turn within that time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from typing import Protocol

import uvloop

from penstock_wire.http import Handler, Request, Response
from penstock_wire.http.server.server import H1Front

BEAT_SECONDS = 1.0
STILL_SECONDS = 30.0
"""A loop that made no turn for this long stands still."""


class Probe(Protocol):
    """Answers a request without the router's loop."""

    def __call__(self, request: Request, *, still: bool) -> Response | None:
        """Return the answer; None if only that loop can give it.

        Args:
            still: whether the router's loop stands still.
        """
        ...


class AdminThread:
    """Serves a port in a separate thread.

    Args:
        probe: called first, in the thread; it must only read state that is safe to read from a thread.
        handler: answers all other requests, in the router's loop.
    """

    def __init__(self, probe: Probe, handler: Handler) -> None:
        self._probe = probe
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._beaten = time.monotonic()
        self._heart: asyncio.TimerHandle | None = None
        self._listening: concurrent.futures.Future[tuple[str, int]] = concurrent.futures.Future()
        self._own: asyncio.AbstractEventLoop | None = None
        self._closing = asyncio.Event()  # the thread's
        self._thread: threading.Thread | None = None

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Start serving; returns the address.

        Raises:
            OSError: the address cannot be bound.
        """
        self._beat()
        self._thread = threading.Thread(target=self._run, args=(host, port), name="admin", daemon=True)
        self._thread.start()
        return await asyncio.wrap_future(self._listening)

    async def close(self) -> None:
        """Stop serving, requests in progress included."""
        if self._heart is not None:
            self._heart.cancel()
        if self._own is not None:
            self._own.call_soon_threadsafe(self._closing.set)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _beat(self) -> None:
        self._beaten = time.monotonic()
        self._heart = self._loop.call_later(BEAT_SECONDS, self._beat)

    def _run(self, host: str, port: int) -> None:
        try:
            uvloop.run(self._serve(host, port))
        except BaseException as error:
            if self._listening.done():
                raise
            self._listening.set_exception(error)

    async def _serve(self, host: str, port: int) -> None:
        front = H1Front()
        listener = await front.listen(host, port, self._answer)
        self._own = asyncio.get_running_loop()
        self._listening.set_result(listener.address)
        await self._closing.wait()
        await front.close(0)

    async def _answer(self, request: Request) -> Response:
        still = time.monotonic() - self._beaten > STILL_SECONDS
        answer = self._probe(request, still=still)
        if answer is not None:
            return answer
        asked = asyncio.run_coroutine_threadsafe(self._ask(request), self._loop)
        return await asyncio.wrap_future(asked)

    async def _ask(self, request: Request) -> Response:
        return await self._handler(request)
