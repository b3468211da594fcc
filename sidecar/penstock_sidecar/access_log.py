"""The access log of a sidecar. While it is off, none of its code runs for a request."""

from __future__ import annotations

from collections.abc import Callable

from penstock_sidecar.model.answers import model_reason
from penstock_wire.access_log import AccessLog
from penstock_wire.errors import Reason
from penstock_wire.headers import REASON, REQUEST_ID, SERVER_TIMING, Headers, get
from penstock_wire.http import Exchange, Request, Response, Service, Tunnel


def logged(service: Service, access: AccessLog, clock: Callable[[], float]) -> Service:
    """Wrap a service so that its requests are logged.

    Args:
        service: answers the requests.
        access: logs them.
        clock: the time in seconds.
    """

    def begin(exchange: Exchange) -> None:
        service(_Logged(exchange, access, clock))

    return begin


class _Logged:
    """An exchange whose end is logged."""

    __slots__ = ("_access", "_arrived", "_clock", "_exchange", "_gone", "_received", "request")

    def __init__(self, exchange: Exchange, access: AccessLog, clock: Callable[[], float]) -> None:
        self.request: Request = exchange.request
        self._exchange = exchange
        self._access = access
        self._clock = clock
        self._arrived = clock()
        # NB: read now: the body of a refused request is dropped.
        self._received = len(self.request.body) or self.request.length or 0
        self._gone: Callable[[], object] | None = None
        exchange.gone = self._left

    @property
    def gone(self) -> Callable[[], object] | None:
        return self._gone

    @gone.setter
    def gone(self, act: Callable[[], object] | None) -> None:
        self._gone = act

    def answer(self, response: Response) -> None:
        self._gone = None  # NB: its owner refers to this exchange, and would be kept alive
        fields = response.fields
        value = get(fields, REASON)
        reason = value.decode() if value is not None else model_reason(response.status, fields)
        self._write(response, response.status, reason, fields)
        self._exchange.answer(response)

    def interim(self, status: int, headers: Headers) -> None:
        self._exchange.interim(status, headers)

    def switch(self, headers: Headers) -> Tunnel:
        self._gone = None
        self._write(None, 101, "", headers)
        return self._exchange.switch(headers)

    def _left(self) -> None:
        self._write(None, 499, Reason.CLIENT_GONE.value, self.request.headers)
        gone, self._gone = self._gone, None
        if gone is not None:
            gone()

    def _write(self, answer: Response | None, status: int, reason: str, fields: Headers) -> None:
        self._access.write(
            self.request,
            answer,
            request_id=(get(fields, REQUEST_ID) or b"").decode("latin-1"),
            status=status,
            reason=reason,
            seconds=self._clock() - self._arrived,
            received=self._received,
            timing=(get(fields, SERVER_TIMING) or b"").decode("latin-1"),
        )
