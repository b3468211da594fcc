"""A batch's way to the model and its answer's way back to the callers: bytes in, bytes out, no I/O.

A request that has its batch to itself passes byte for byte both ways. Otherwise the protocol joins the items
and splits a 2xx answer by item count; any other answer goes to each request of the batch as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock_sidecar.draft import Draft
from penstock_sidecar.keys import attempt_field, batch_fields, lone_fields, time_left
from penstock_sidecar.work import Outcome, Part
from penstock_wire.batch_protocol import BatchProtocol
from penstock_wire.envelope import ENVELOPE_PROTOCOL
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import PREFIX, REQUEST_ID, Headers
from penstock_wire.http import (
    AnswerUnreadable,
    ConnectFailed,
    ConnectionLost,
    Request,
    Response,
    UpstreamError,
    UpstreamTimeout,
)
from penstock_wire.instances import INSTANCES_PROTOCOL
from penstock_wire.openai import OPENAI_PROTOCOL
from penstock_wire.v2 import V2_PROTOCOL

_JSON: Headers = ((b"content-type", b"application/json"),)
_ALL: tuple[BatchProtocol, ...] = (INSTANCES_PROTOCOL, V2_PROTOCOL, OPENAI_PROTOCOL, ENVELOPE_PROTOCOL)
PROTOCOLS = {protocol.name: protocol for protocol in _ALL}
"""By the name that `--protocol` takes."""

_ABOUT_WHOLE_BODY = frozenset(
    {b"accept-ranges", b"content-digest", b"content-md5", b"digest", b"etag", b"repr-digest", b"set-cookie"}
)
"""Fields of an answer that are about all of it, or for one caller, and so for no request of a batch."""


def alone(parts: Sequence[Part], protocol: BatchProtocol) -> bool:
    """Whether a batch is one whole request that passes byte for byte, both ways."""
    return len(parts) == 1 and parts[0].whole and (protocol.key_fields or not parts[0].work.items)


def compose(parts: Sequence[Part], protocol: BatchProtocol, timeout: float, attempt: int = 0) -> Request:
    """The one request that a batch sends.

    Args:
        parts: what the batch holds; at least one.
        protocol: joins the items.
        timeout: seconds to the latest deadline.
        attempt: 0, or which further run it is of items that were with the model before.
    """
    first = parts[0].work
    key = first.key
    if alone(parts, protocol):
        headers = lone_fields(first.request, first.request_id, timeout)
        body = first.request.body
    else:
        headers, body = _joined(parts, protocol)
        headers = (*headers, time_left(timeout))
    if attempt:
        headers = (*headers, attempt_field(attempt))
    return Request(key.method, key.target, headers, body)


def _joined(parts: Sequence[Part], protocol: BatchProtocol) -> tuple[Headers, bytes]:
    key = parts[0].work.key
    message = protocol.join([part.items for part in parts], key.parameters)
    described = message.headers
    if not described and not any(name == b"content-type" for name, _ in key.fields):
        described = _JSON
    return batch_fields([part.work for part in parts], described), message.body


def prepare(draft: Draft, protocol: BatchProtocol) -> None:
    """Make what a draft sends; where that fails, it is left to `compose`, and to who tells of it.

    Args:
        draft: of at least two requests.
        protocol: joins the items.
    """
    try:
        draft.headers, draft.body = _joined(draft.parts, protocol)
    except Exception:
        draft.headers = None


def compose_draft(draft: Draft, timeout: float) -> Request | None:
    """As `compose`, from what was made before; None where nothing was.

    Args:
        draft: what the batch holds.
        timeout: seconds to the latest deadline.
    """
    if draft.headers is None:
        return None
    key = draft.line.key
    return Request(key.method, key.target, (*draft.headers, time_left(timeout)), draft.body)


def distribute(parts: Sequence[Part], protocol: BatchProtocol, answer: Response) -> Sequence[Outcome]:
    """The answer for each part of a batch, in order.

    Args:
        parts: what the batch held.
        protocol: splits the answer.
        answer: what the model answered; its fields are those that may be passed on.

    Raises:
        PenstockError: `bad_answer`: it cannot be read, or holds not as many answers as there were items.
    """
    if alone(parts, protocol):
        return [answer]
    for field in answer.headers:
        if field[0] in _ABOUT_WHOLE_BODY:
            answer.headers = tuple([each for each in answer.headers if each[0] not in _ABOUT_WHOLE_BODY])
            break
    if not 200 <= answer.status < 300:
        return [Response(answer.status, answer.headers, answer.body) for _ in parts]
    return protocol.split(answer, [part.items for part in parts], parts[0].work.key.parameters)


def rejoin(answers: Sequence[Response], protocol: BatchProtocol) -> Response:
    """One answer from the answers to the parts of one request (raises PenstockError `bad_answer`)."""
    return answers[0] if len(answers) == 1 else protocol.merge(answers)


def from_model(headers: Headers) -> Headers:
    """An answer's fields without those that only Penstock may set, and the batch's own request ids."""
    return tuple([field for field in headers if field[0] != REQUEST_ID and not field[0].startswith(PREFIX)])


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
