"""Sends a request and waits for its answer in the caller's task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock_wire.http import (
    ALL_BYTES,
    AT_HEAD,
    Request,
    Response,
    SenderFailed,
    Upstream,
    UpstreamAnswer,
    UpstreamError,
)


async def send(
    upstream: Upstream,
    host: str,
    port: int,
    request: Request,
    *,
    timeout: float,
    connected: Callable[[], object] | None = None,
) -> Response:
    """Send a request and return the whole answer, whatever its status.

    Args:
        host: see `Upstream.begin`, as the following.
        timeout: seconds for the whole exchange, connecting included.

    Raises:
        ConnectFailed: surely not executed.
        RequestUnread: sent on a kept connection, and surely not executed.
        ConnectionLost: sent, answer incomplete.
        UpstreamTimeout: the time is over.
    """
    waiter = _Waiter()
    give_up = upstream.begin(host, port, request, timeout, timeout, ALL_BYTES, waiter.opened, connected)
    answer = await waiter.answer(give_up)
    assert isinstance(answer, Response)  # noqa: S101 - as asked
    return answer


async def open_answer(
    upstream: Upstream,
    host: str,
    port: int,
    request: Request,
    *,
    timeout: float,
    idle: float | None = None,
    connected: Callable[[], object] | None = None,
) -> UpstreamAnswer:
    """Send a request, its stream as it comes, and return when the answer's head has come.

    Args:
        host: see `Upstream.begin`, as the following.
        timeout: seconds until the head of the answer.
        idle: None = as `timeout`.

    Raises:
        ConnectFailed: surely not executed.
        ConnectionLost: sent, no answer.
        UpstreamTimeout: the time is over.
        ClientGone: the request's stream ended early.
    """
    waiter = _Waiter()
    pause = timeout if idle is None else idle
    give_up = upstream.begin(host, port, request, timeout, pause, AT_HEAD, waiter.opened, connected)
    answer = await waiter.answer(give_up)
    assert not isinstance(answer, Response)  # noqa: S101 - as asked
    return answer


class _Waiter:
    """Waits for the answer of one exchange."""

    __slots__ = ("_came",)

    def __init__(self) -> None:
        self._came: asyncio.Future[Response | UpstreamAnswer | UpstreamError] = (
            asyncio.get_running_loop().create_future()
        )

    def opened(self, answer: Response | UpstreamAnswer | UpstreamError) -> None:
        """Take the answer, or the error instead of it."""
        if self._came.done():
            _abort(answer)  # its task was cancelled in this turn of the loop
        else:
            self._came.set_result(answer)

    async def answer(self, give_up: Callable[[], None]) -> Response | UpstreamAnswer:
        """Wait for the answer; a cancellation gives the exchange up.

        Raises:
            UpstreamError: there is none.
        """
        try:
            answer = await self._came
        except asyncio.CancelledError:
            give_up()
            if not self._came.cancelled():  # it came in the same turn of the loop
                _abort(self._came.result())
            raise
        if isinstance(answer, SenderFailed):
            raise answer.error
        if isinstance(answer, UpstreamError):
            raise answer
        return answer


def _abort(answer: Response | UpstreamAnswer | UpstreamError) -> None:
    if not isinstance(answer, (Response, UpstreamError)):
        answer.abort()
