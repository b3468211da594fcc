"""A pending call: it can be awaited, waited for in a thread, or passed to another call as an argument."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine, Generator
from typing import Any, Never

from penstock.handles import scope


class HandleResponse:
    """The pending answer of a call. Await it, call `result`, or pass it to another call as an argument.

    Several waiters are allowed. The call is cancelled when all of them have been cancelled.

    Args:
        work: the call.
        loop: the loop in which it runs.
        endpoint: its name, for messages.
    """

    __slots__ = ("_endpoint", "_loop", "_waiters", "_work")

    def __init__(
        self, work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop, endpoint: str
    ) -> None:
        self._endpoint = endpoint
        self._loop = loop
        self._waiters: set[object] = set()
        self._work: asyncio.Task[Any] | concurrent.futures.Future[Any]
        if running_loop() is loop:
            self._work = loop.create_task(work)
        else:
            self._work = asyncio.run_coroutine_threadsafe(work, loop)
        over = scope.adopt(self.cancel)
        self._work.add_done_callback(lambda _: over())

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait().__await__()

    def result(self, timeout: float | None = None, **other: Never) -> Any:
        """Wait for the answer in a thread.

        Args:
            timeout: seconds, after which the call still goes on; None = as long as the call takes.
            other: nothing; the error for another name says which there is.

        Raises:
            RuntimeError: an event loop runs in this thread, and would be blocked.
            TimeoutError: there is no answer after this time.
            EndpointNotFound, UpstreamError: the call failed.
        """
        if other:
            raise TypeError(
                f"{self._endpoint}: expected result(timeout), in seconds, found {', '.join(other)}"
            )
        refuse_running_loop("await the call instead of .result()")
        work = self._work
        if not isinstance(work, asyncio.Task):
            return work.result(timeout)
        return asyncio.run_coroutine_threadsafe(self._wait(), self._loop).result(timeout)

    def cancel(self) -> None:
        """Cancel the call, even if others wait for it; no-op if it is over."""
        if isinstance(self._work, asyncio.Task) and running_loop() is not self._loop:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._work.cancel)
        else:
            self._work.cancel()

    def done(self) -> bool:
        """Whether it is over."""
        return self._work.done()

    async def _wait(self) -> Any:
        work = self._work
        if isinstance(work, asyncio.Task):
            if running_loop() is not self._loop:
                raise RuntimeError(
                    f"{self._endpoint}: expected a call to be awaited in the event loop in which it was "
                    "made, found another"
                )
            future: asyncio.Future[Any] = work
        else:
            future = asyncio.wrap_future(work)
        waiter = object()
        self._waiters.add(waiter)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._waiters.discard(waiter)
            if not self._waiters:
                self._work.cancel()
            raise
        finally:
            self._waiters.discard(waiter)

    def __repr__(self) -> str:
        return f"<call of {self._endpoint}, {'over' if self.done() else 'under way'}>"

    def __reduce__(self) -> Any:
        raise TypeError(f"{self!r} cannot be pickled: await it, and pickle its value")

    def __iter__(self) -> Any:
        raise TypeError(
            f"{self!r} is not a stream: for the pieces of a generator call handle.options(stream=True)"
        )

    __aiter__ = __iter__


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread; None for none."""
    return asyncio._get_running_loop()  # noqa: SLF001 - documented; the public one raises if there is none


def refuse_running_loop(instead: str) -> None:
    """Raise RuntimeError if an event loop runs in this thread, since waiting would block it.

    Args:
        instead: what to do instead.
    """
    if running_loop() is not None:
        raise RuntimeError(f"expected a thread without a running event loop, found one: {instead}")
