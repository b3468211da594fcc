"""Answers to rejected requests: built once for each error, and sent a few at a time.

A rejection must be cheap, since under overload most requests are rejected. Two answers with the same error
differ in the request's id alone, so the rest of the document is kept as bytes.

The remaining cost is the sending. The model's answer comes to a socket like any request: if very many
rejections were sent at once, it would wait behind all of them, and so would the next batch. So one turn of
the event loop sends only a few of them. The others are sent in later turns, and between two turns the loop
reads its sockets. (Meanwhile their clients wait, and so send less.)
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable

from penstock_wire.errors import PenstockError
from penstock_wire.headers import QUEUE, REQUEST_ID, Headers
from penstock_wire.http import Exchange, Response

AT_ONCE = 16
"""Rejections that are sent in one turn of the event loop: about half a millisecond of work."""
_PLACE = "-request-id-goes-here-"
_KEPT = 16


class _Form:
    """The parts that all answers with one error share.

    Args:
        error: the error.
        backend: name of the backend.
        pod: name of the pod.

    `parts` is the text before and after the request's id; empty if the id cannot be found.
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
    """Answers requests with errors.

    Args:
        backend: name of the backend, for error documents; asked each time.
        pod: name of the pod, for error documents.
        queued: items that wait; each answer has their number.
    """

    __slots__ = ("_backend", "_forms", "_line", "_pod", "_queued", "_sent")

    def __init__(self, *, backend: Callable[[], str], pod: str, queued: Callable[[], int]) -> None:
        self._backend = backend
        self._pod = pod
        self._queued = queued
        self._forms: dict[PenstockError, _Form] = {}
        # Rejections sent in this turn of the loop, -1 = no turn is scheduled; and those for the next turns.
        self._sent = -1
        self._line: collections.deque[tuple[Exchange, PenstockError, bytes]] = collections.deque()

    def reject(self, exchange: Exchange, error: PenstockError, request_id: bytes) -> None:
        """Answer a request with an error, now or a few turns of the event loop later.

        Args:
            exchange: the exchange to answer; the caller must not use it any more.
            error: the reason; the same object for the same answer.
            request_id: the request's id, visible ASCII.
        """
        if self._sent < 0:
            self._sent = 0
            asyncio.get_running_loop().call_soon(self._turn)
        if self._sent < AT_ONCE:
            self._sent += 1
            exchange.answer(self.response(error, request_id))
            return
        exchange.request.body = b""  # not needed any more: it frees the memory
        self._line.append((exchange, error, request_id))

    def response(self, error: PenstockError, request_id: bytes) -> Response:
        """Return the answer to one request; it equals the result of `own`.

        Args:
            error: the reason; the same object for the same answer.
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
        """Return the answer with an error that no other request gets; arguments as for `response`."""
        answer = error.response(request_id=request_id.decode(), backend=self._backend(), pod=self._pod)
        answer.headers = (*answer.headers, (QUEUE, b"%d" % self._queued()))
        return answer

    def _turn(self) -> None:
        line = self._line
        if not line:
            self._sent = -1
            return
        asyncio.get_running_loop().call_soon(self._turn)
        self._sent = count = min(AT_ONCE, len(line))
        for _ in range(count):
            exchange, error, request_id = line.popleft()
            exchange.answer(self.response(error, request_id))
