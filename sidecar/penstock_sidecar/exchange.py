"""A batch's way to the model and its answer's way back to the callers: bytes in, bytes out, no I/O.

A request that has its batch to itself passes byte for byte both ways. Otherwise the protocol joins the items
and splits a 2xx answer by item count; any other answer goes to each request of the batch as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock_sidecar.keys import batch_fields, lone_fields
from penstock_sidecar.work import Outcome, Part
from penstock_wire import instances
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import PREFIX, Headers, without
from penstock_wire.http import (
    AnswerUnreadable,
    ConnectFailed,
    ConnectionLost,
    Request,
    Response,
    UpstreamError,
    UpstreamTimeout,
)


class Batchable(Protocol):
    """A protocol whose requests hold items that can be joined and answers that can be split."""

    def parse(self, body: bytes) -> instances.Parsed:
        """Read a request (raises PenstockError)."""
        ...

    def join(self, items: Sequence[bytes], parameters: instances.Parameters) -> bytes:
        """The body of a batch."""
        ...

    def split(self, body: bytes, counts: Sequence[int]) -> list[bytes]:
        """One body for each count from a batch's answer (raises PenstockError `bad_answer`)."""
        ...

    def merge(self, bodies: Sequence[bytes]) -> bytes:
        """One body from those of the parts of one request."""
        ...


PROTOCOLS: dict[str, Batchable] = {"instances": instances}
"""By the name that `--protocol` takes."""

_ABOUT_WHOLE_BODY = frozenset(
    {b"accept-ranges", b"content-digest", b"content-md5", b"digest", b"etag", b"repr-digest", b"set-cookie"}
)
"""Fields of an answer that are about all of it, or for one caller, and so for no request of a batch."""


def compose(parts: Sequence[Part], protocol: Batchable, timeout: float) -> Request:
    """The one request that a batch sends.

    Args:
        parts: what the batch holds; at least one.
        protocol: joins the items.
        timeout: seconds to the latest deadline.
    """
    first = parts[0].work
    if len(parts) == 1 and parts[0].whole:
        return Request(
            method=first.request.method,
            target=first.request.target,
            headers=lone_fields(first.request, first.request_id, timeout),
            body=first.request.body,
        )
    items = [item for part in parts for item in part.items]
    return Request(
        method=first.key.method,
        target=first.key.target,
        headers=batch_fields([part.work for part in parts], timeout),
        body=protocol.join(items, first.key.parameters),
    )


def distribute(parts: Sequence[Part], protocol: Batchable, answer: Response) -> list[Outcome]:
    """The answer for each part of a batch, in order.

    Args:
        parts: what the batch held.
        protocol: splits the answer.
        answer: what the model answered.
    """
    fields = from_model(answer.headers)
    if len(parts) == 1 and parts[0].whole:
        return [Response(status=answer.status, headers=fields, body=answer.body)]
    fields = without(fields, _ABOUT_WHOLE_BODY)
    if not 200 <= answer.status < 300:
        return [Response(status=answer.status, headers=fields, body=answer.body) for _ in parts]
    try:
        bodies = protocol.split(answer.body, [part.size for part in parts])
    except PenstockError as error:
        return [error] * len(parts)
    return [Response(status=answer.status, headers=fields, body=body) for body in bodies]


def rejoin(answers: Sequence[Response], protocol: Batchable) -> Response:
    """One answer from the answers to the parts of one request; status and fields come from the first."""
    first = answers[0]
    if len(answers) == 1:
        return first
    body = protocol.merge([answer.body for answer in answers])
    return Response(status=first.status, headers=first.headers, body=body)


def from_model(headers: Headers) -> Headers:
    """An answer's fields without those that only Penstock may set."""
    return tuple([field for field in headers if not field[0].startswith(PREFIX)])


def failure(error: UpstreamError, *, executed: bool) -> PenstockError:
    """What a caller is told when the model gave no answer.

    Args:
        error: what happened.
        executed: other parts of the same request may have reached the model before.
    """
    if isinstance(error, ConnectFailed):
        return PenstockError(Reason.MODEL_UNREACHABLE, str(error), not_admitted=not executed)
    if isinstance(error, UpstreamTimeout):
        return PenstockError(Reason.DEADLINE, f"the model: {error}")
    if isinstance(error, AnswerUnreadable):
        return PenstockError(Reason.BAD_ANSWER, f"the model: {error}")
    if isinstance(error, ConnectionLost):
        return PenstockError(Reason.MODEL_UNREACHABLE, str(error))
    return PenstockError(Reason.BAD_REQUEST, str(error))
