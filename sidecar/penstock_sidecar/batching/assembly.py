"""Assembles the request of a batch, and splits its answer for the callers: bytes in, bytes out, no I/O.

A request that has its batch to itself passes byte for byte both ways. Otherwise the protocol joins the items
and splits a 2xx answer by item count. No client gets any other answer: it may hold what several clients have
sent (see `model.answers.unresolved`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from penstock_sidecar.batching.bisection import may_be_one_request
from penstock_sidecar.batching.item_responses import request_answer
from penstock_sidecar.model.answers import from_model
from penstock_sidecar.protocols.base import BatchProtocol, OwnAnswers
from penstock_sidecar.protocols.item_answers import is_form
from penstock_sidecar.queue.batch_key import attempt_field, batch_fields, lone_fields, time_left
from penstock_sidecar.queue.request import Outcome, Slice
from penstock_wire.headers import ITEM_STREAMS, Headers
from penstock_wire.http import Request, Response

_JSON: Headers = ((b"content-type", b"application/json"),)

_ABOUT_WHOLE_BODY = frozenset(
    {b"accept-ranges", b"content-digest", b"content-md5", b"digest", b"etag", b"repr-digest", b"set-cookie"}
)
"""Fields of an answer that are about all of it, or for one caller, and so for no request of a batch."""


def alone(parts: Sequence[Slice], protocol: BatchProtocol) -> bool:
    """Whether a batch is one whole request that passes byte for byte, both ways."""
    return len(parts) == 1 and parts[0].whole and (protocol.key_fields or not parts[0].work.items)


def compose(parts: Sequence[Slice], protocol: BatchProtocol, timeout: float, attempt: int = 0) -> Request:
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


def _joined(parts: Sequence[Slice], protocol: BatchProtocol) -> tuple[Headers, bytes]:
    key = parts[0].work.key
    message = protocol.join([part.items for part in parts], key.parameters)
    described = message.headers
    if key.streamed and protocol.item_streams:
        described = (*described, (ITEM_STREAMS, b"1"))
    if not any(name == b"content-type" for name, _ in (*described, *key.fields)):
        described = (*described, *_JSON)
    return batch_fields([part.work for part in parts], described), message.body


def distribute(parts: Sequence[Slice], protocol: BatchProtocol, answer: Response) -> Sequence[Outcome]:
    """The answer for each part of a batch, in order; those to single items among them (`item_responses`).

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


def blames_a_request(answers: Sequence[Outcome], answer: Response) -> bool:
    """Whether a request of a run may be the cause of its answer, of which these `answers` could be made."""
    return may_be_one_request(answer.status) or (answer.status < 300 and not answers)
