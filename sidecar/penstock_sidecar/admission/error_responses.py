"""The answers of refusals: made once for all that hear the same, and told a few at a time.

A refused request shall cost little, since under overload most are. What differs between two that hear the
same is the request's id; the rest of the document is kept as bytes.

What is left of the cost is the sending. Where very many are to be refused at once, the model's answer, which
comes to a socket like any request, would wait behind all of them; and the next batch with it. So in one turn
of the event loop only a few are told. The others hear in the turns after, between which the loop looks what
has come. (Their clients wait for it meanwhile, and so ask less.)
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable

from penstock_wire.errors import PenstockError
from penstock_wire.headers import QUEUE, REQUEST_ID, Headers
from penstock_wire.http import Exchange, Response

AT_ONCE = 16
"""Refusals that are told in one turn of the event loop: about half a millisecond's worth."""
_PLACE = "-request-id-goes-here-"
_KEPT = 16


class _Form:
    """What one error's answers share.

    Args:
        error: the error.
        backend: name of the backend.
        pod: name of the pod.

    `parts` is what stands before and behind the request's id; empty where that cannot be told.
    """

    __slots__ = ("backend", "fields", "parts", "status")

    def __init__(self, error: PenstockError, backend: str, pod: str) -> None:
        answer = error.response(request_id=_PLACE, backend=backend, pod=pod)
        self.backend = backend
        self.status = answer.status
        self.fields: Headers = tuple(field for field in answer.headers if field[0] != REQUEST_ID)
        parts = answer.body.split(_PLACE.encode())
        self.parts = parts if len(parts) == 2 else []


class ErrorResponder:
    """Tells those who are refused.

    Args:
        backend: name of the backend, for error documents; asked each time.
        pod: name of the pod, for error documents.
        queued: items that wait; told with each answer.
    """

    __slots__ = ("_backend", "_forms", "_line", "_pod", "_queued", "_told")

    def __init__(self, *, backend: Callable[[], str], pod: str, queued: Callable[[], int]) -> None:
        self._backend = backend
        self._pod = pod
        self._queued = queued
        self._forms: dict[PenstockError, _Form] = {}
        # How many were told in this turn of the loop, -1 = none so far; and who is told in the next ones.
        self._told = -1
        self._line: collections.deque[tuple[Exchange, PenstockError, bytes]] = collections.deque()

    def tell(self, exchange: Exchange, error: PenstockError, request_id: bytes) -> None:
        """Answer a request with an error, now or a few turns of the event loop later.

        Args:
            exchange: where to; whoever gave it takes no more interest in it.
            error: why; the same object for all that hear the same.
            request_id: the request's id, visible ASCII.
        """
        if self._told < 0:
            self._told = 0
            asyncio.get_running_loop().call_soon(self._turn)
        if self._told < AT_ONCE:
            self._told += 1
            exchange.answer(self.response(error, request_id))
            return
        exchange.request.body = b""  # nobody reads it any more
        self._line.append((exchange, error, request_id))

    def response(self, error: PenstockError, request_id: bytes) -> Response:
        """The answer to one request; equal to the error's own.

        Args:
            error: why; the same object for all that hear the same.
            request_id: the request's id, visible ASCII.
        """
        backend = self._backend()
        form = self._forms.get(error)
        if form is None or form.backend != backend:
            if len(self._forms) >= _KEPT:
                self._forms.clear()
            form = self._forms[error] = _Form(error, backend, self._pod)
        parts = form.parts
        if not parts or b'"' in request_id or b"\\" in request_id:  # JSON writes these otherwise
            return self.own(error, request_id)
        answer = Response(form.status, form.fields, b"%b%b%b" % (parts[0], request_id, parts[1]))
        answer.lines = b"%b: %b\r\n%b: %d\r\n" % (REQUEST_ID, request_id, QUEUE, self._queued())
        return answer

    def own(self, error: PenstockError, request_id: bytes) -> Response:
        """The answer to the one request that hears this error; arguments as for `response`."""
        answer = error.response(request_id=request_id.decode(), backend=self._backend(), pod=self._pod)
        answer.headers = (*answer.headers, (QUEUE, b"%d" % self._queued()))
        return answer

    def _turn(self) -> None:
        line = self._line
        if not line:
            self._told = -1
            return
        asyncio.get_running_loop().call_soon(self._turn)
        self._told = told = min(AT_ONCE, len(line))
        for _ in range(told):
            exchange, error, request_id = line.popleft()
            exchange.answer(self.response(error, request_id))
