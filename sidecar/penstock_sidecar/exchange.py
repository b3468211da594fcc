"""A batch's way to the model and its answer's way back to the callers: bytes in, bytes out, no I/O.

A request that has its batch to itself passes byte for byte both ways. Otherwise the protocol joins the items
and splits a 2xx answer by item count. Any other answer is for nobody: it may hold what several clients have
sent (see `unresolved`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from penstock_sidecar.draft import Draft
from penstock_sidecar.isolation import may_be_one_request
from penstock_sidecar.keys import attempt_field, batch_fields, lone_fields, time_left
from penstock_sidecar.own_answers import request_answer
from penstock_sidecar.work import Outcome, Part
from penstock_wire.batch_protocol import BatchProtocol, OwnAnswers
from penstock_wire.envelope import ENVELOPE_PROTOCOL
from penstock_wire.errors import MODEL_ANSWER, MODEL_REASONS, PenstockError, Reason
from penstock_wire.headers import PREFIX, REASON, REQUEST_ID, Headers, get
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
from penstock_wire.item_answers import is_form
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
_BUSY = frozenset({429, 503, 504})
"""Statuses of a model that has too much to do, which clients act upon."""


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
    # A search for a bad request trusts no connection on which a server may have failed.
    return Request(key.method, key.target, headers, body, fresh=attempt > 0)


def _joined(parts: Sequence[Part], protocol: BatchProtocol) -> tuple[Headers, bytes]:
    key = parts[0].work.key
    message = protocol.join([part.items for part in parts], key.parameters)
    described = message.headers
    if not any(name == b"content-type" for name, _ in (*described, *key.fields)):
        described = (*described, *_JSON)
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
    """The answer for each part of a batch, in order; those to single items among them (`own_answers`).

    Args:
        parts: what the batch held.
        protocol: splits the answer.
        answer: what the model answered, with success or to one part alone; its fields are those that may be
            passed on.

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
        return [answer]
    answers = protocol.split(answer, [part.items for part in parts], parts[0].work.key.parameters)
    if not is_form(answer.headers):
        return cast("Sequence[Outcome]", answers)
    outcomes: list[Outcome] = []
    for each, part in zip(answers, parts, strict=True):
        if not isinstance(each, OwnAnswers):
            outcomes.append(each)
            continue
        outcome = request_answer(part, each)
        if isinstance(outcome, Response):
            outcome.headers = from_model(outcome.headers)
        outcomes.append(outcome)
    return outcomes


def rejoin(answers: Sequence[Response], protocol: BatchProtocol) -> Response:
    """One answer from the answers to the parts of one request (raises PenstockError `bad_answer`)."""
    return answers[0] if len(answers) == 1 else protocol.merge(answers)


def from_model(headers: Headers) -> Headers:
    """An answer's fields without those that only Penstock may set, and the batch's own request ids.

    The reason of a problem of the SDK, which is Penstock's too, stays.
    """
    return tuple(
        [
            field
            for field in headers
            if field[0] != REQUEST_ID
            and (not field[0].startswith(PREFIX) or (field[0] == REASON and field[1] in MODEL_REASONS))
        ]
    )


def model_reason(status: int, headers: Headers) -> str:
    """Why the model answered so, for metrics and logs: the SDK's reason, or that another server's is its own.

    Args:
        status: of the model's answer.
        headers: its fields.
    """
    if status < 400:
        return ""
    said = get(headers, REASON)
    return said.decode() if said in MODEL_REASONS else MODEL_ANSWER


def blames_a_request(answers: Sequence[Outcome], answer: Response) -> bool:
    """Whether a request of a run may be the cause of its answer, of which these `answers` could be made."""
    return may_be_one_request(answer.status) or (answer.status < 300 and not answers)


def unresolved(said: Outcome, requests: int) -> PenstockError:
    """The answer for a request that failed together with others, where it is not known whose fault that was.

    It holds nothing of what the model answered but the status and `Retry-After` of a model that has too much
    to do.

    Args:
        said: what the batch got.
        requests: requests in the batch.
    """
    if isinstance(said, PenstockError):
        # NB: the detail of what was found may quote what others have sent.
        detail = f"the model's answer to a batch of {requests} requests cannot be used; the sidecar logs why"
        return PenstockError(said.reason, detail)
    status, retry_after = None, None
    if said.status in _BUSY:
        status = said.status
        asked = get(said.headers, b"retry-after")
        retry_after = float(asked) if asked is not None and asked.isdigit() and len(asked) < 6 else None
    return PenstockError(
        Reason.BATCH_FAILED,
        f"the model answered {said.status} to a batch of {requests} requests; it may have been executed",
        status=status,
        retry_after=retry_after,
    )


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
