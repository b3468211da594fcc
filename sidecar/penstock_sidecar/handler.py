"""A request from its arrival to its answer: read it, accept it, wait, answer it once."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections.abc import Callable
from typing import Protocol

from penstock_sidecar.dispatch import Dispatcher
from penstock_sidecar.exchange import Batchable
from penstock_sidecar.keys import sort_fields
from penstock_sidecar.work import Key, Outcome, Work
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import QUEUE, REQUEST_ID, get, timeout_ms
from penstock_wire.http import Request, Response
from penstock_wire.process import log

_REQUEST_ID = re.compile(rb"[!-+\--~]{1,128}")  # visible ASCII, no comma: a batch joins ids with commas
_JSON_LIKE = frozenset(
    {
        b"application/json",
        b"text/json",
        b"text/plain",
        # What `curl -d` says of any body; KServe and TensorFlow Serving take it for JSON too.
        b"application/x-www-form-urlencoded",
    }
)


class Tally(Protocol):
    """Counts requests by their end."""

    def arrived(self, items: int) -> None:
        """A request with so many items could be read."""
        ...

    def ended(self, status: int, reason: Reason | None, items: int) -> None:
        """A request ended.

        Args:
            status: status of its answer.
            reason: why, where the answer is an error of ours.
            items: its items, 0 where it could not be read.
        """
        ...


class SidecarHandler:
    """Answers the requests of the data port.

    Args:
        dispatcher: takes what was read.
        protocol: reads bodies.
        tally: counts.
        clock: the time in seconds.
        backend: name of the backend, for error documents; asked each time, since settings bring it.
        pod: name of the pod, for error documents.
        first: called when a request arrives while nothing is queued or ongoing.
    """

    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        protocol: Batchable,
        tally: Tally,
        clock: Callable[[], float],
        backend: Callable[[], str] = lambda: "",
        pod: str = "",
        first: Callable[[], None] = lambda: None,
    ) -> None:
        self._dispatcher = dispatcher
        self._protocol = protocol
        self._tally = tally
        self._clock = clock
        self._backend = backend
        self._pod = pod
        self._first = first
        self._lone = itertools.count(1)

    async def __call__(self, request: Request) -> Response:
        """Answer one request; only its cancellation (the client went away) is raised."""
        sent_id = get(request.headers, REQUEST_ID)
        valid = sent_id is not None and _REQUEST_ID.fullmatch(sent_id)
        request_id = sent_id.decode() if sent_id is not None and valid else os.urandom(16).hex()
        items = 0
        outcome: Outcome
        try:
            if self._dispatcher.refusing is not None:
                raise self._dispatcher.refusing.with_traceback(None)
            if request.method == "POST":
                work = self._read(request, request_id)
                items = work.size
                self._arrived(items)
                outcome = await self._dispatcher.answer(work)
            else:
                items = 1
                self._arrived(items)
                outcome = await self._dispatcher.pass_through(request, request_id, self._deadline(request))
        except PenstockError as error:
            outcome = error
        except asyncio.CancelledError:
            self._tally.ended(499, Reason.CLIENT_GONE, items)
            raise
        except Exception as error:
            log("request failed", level="error", error=repr(error))
            outcome = PenstockError(Reason.INTERNAL, "the request could not be handled")
        return self._finish(outcome, request_id, items)

    def _arrived(self, items: int) -> None:
        dispatcher = self._dispatcher
        self._tally.arrived(items)
        if not dispatcher.queued and not dispatcher.ongoing:
            self._first()

    def _finish(self, outcome: Outcome, request_id: str, items: int) -> Response:
        reason = None
        if isinstance(outcome, PenstockError):
            reason = outcome.reason
            answer = outcome.response(request_id=request_id, backend=self._backend(), pod=self._pod)
        else:
            answer = outcome
            kept = [field for field in answer.headers if field[0] != REQUEST_ID]
            answer.headers = (*kept, (REQUEST_ID, request_id.encode()))
        answer.headers = (*answer.headers, (QUEUE, b"%d" % self._dispatcher.queued))
        self._tally.ended(answer.status, reason, items)
        return answer

    def _deadline(self, request: Request) -> float:
        milliseconds = self._dispatcher.batching.default_timeout_ms
        asked = timeout_ms(request.headers)
        if asked is not None:
            milliseconds = min(milliseconds, asked)
        return self._clock() + milliseconds / 1000

    def _read(self, request: Request, request_id: str) -> Work:
        """The work that a request is; raises PenstockError where it cannot be read."""
        fields, shared = sort_fields(request.headers, self._dispatcher.key_names)
        self._check_media_type(request)
        parsed = self._protocol.parse(request.body)
        return Work(
            key=Key(
                request.method,
                request.target,
                fields,
                parsed.parameters,
                # A request without items has nothing to be joined by: the model alone knows what it means.
                0 if parsed.items else next(self._lone),
            ),
            request=request,
            request_id=request_id,
            items=parsed.items,
            shared=shared,
            arrived=self._clock(),
            deadline=self._deadline(request),
            future=asyncio.get_running_loop().create_future(),
        )

    @staticmethod
    def _check_media_type(request: Request) -> None:
        for name, value in request.headers:
            if name == b"content-type":
                media = value.partition(b";")[0].strip().lower()
                if media not in _JSON_LIKE and not media.endswith(b"+json"):
                    raise PenstockError(
                        Reason.BAD_MEDIA_TYPE,
                        f"content-type: expected application/json, found {media.decode('latin-1')[:100]}",
                    )
            elif name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
                raise PenstockError(
                    Reason.BAD_MEDIA_TYPE,
                    f"content-encoding: expected none, found {value.decode('latin-1')[:100]}",
                )
