"""Assembles the request of a batch, and splits its answer for the callers: bytes in, bytes out, no I/O.

A request that is alone in its batch passes byte for byte both ways, unless the model answered by item.
Otherwise the protocol joins the items and splits a 2xx answer by item count. No client gets an answer
other than a 2xx then: it may quote data of several clients (see `model.answers.unresolved`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import cast

from penstock_sidecar.batching.bisection import may_be_one_request
from penstock_sidecar.batching.item_responses import PartAnswer, request_answer
from penstock_sidecar.model.answers import from_model
from penstock_sidecar.protocols.base import BatchProtocol, OwnAnswers
from penstock_sidecar.protocols.item_answers import is_form
from penstock_sidecar.queue.batch_key import attempt_field, batch_fields, lone_fields, time_left
from penstock_sidecar.queue.request import Outcome, Slice
from penstock_wire.errors import Reason
from penstock_wire.headers import ITEM_STREAMS, REASON, Headers, get
from penstock_wire.http import Request, Response
from penstock_wire.item_problem import problem_of

_JSON: Headers = ((b"content-type", b"application/json"),)

_BAD_ANSWER = Reason.BAD_ANSWER.value.encode()
_ABOUT_WHOLE_BODY = frozenset(
    {b"accept-ranges", b"content-digest", b"content-md5", b"digest", b"etag", b"repr-digest", b"set-cookie"}
)
"""Header fields about the whole answer, or for one caller: they are removed from a batch's answer."""


def alone(parts: Sequence[Slice]) -> bool:
    """Whether a batch is one whole request, whose body passes byte for byte."""
    return len(parts) == 1 and parts[0].whole


def compose(parts: Sequence[Slice], protocol: BatchProtocol, timeout: float, attempt: int = 0) -> Request:
    """Make the request that a batch sends.

    Args:
        parts: the parts of requests in the batch; at least one.
        protocol: joins the items.
        timeout: seconds to the latest deadline.
        attempt: 0, or the number of the further run of items that were with the model before.
    """
    first = parts[0].work
    key = first.key
    if alone(parts):
        headers = lone_fields(first.request, first.request_id, timeout)
        if len(first.items) > 1:
            headers = (*headers, *protocol.asks)
        body = first.request.body
    else:
        headers, body = _joined(parts, protocol)
        headers = (*headers, time_left(timeout))
    if attempt:
        headers = (*headers, attempt_field(attempt))
    # A search for a bad request never uses a connection on which a server may have failed.
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
    """Split an answer into one for each part, in order; items may have their own (`item_responses`).

    Args:
        parts: the parts of requests in the batch.
        protocol: splits the answer.
        answer: the model's answer, a success or to one part alone, with only the header fields that may be
            passed on.

    Raises:
        PenstockError: `bad_answer`: it cannot be read, or does not have an answer for each item.
    """
    lone = alone(parts)
    if lone and not (protocol.asks and len(parts[0].work.items) > 1):
        return [answer]
    own = is_form(answer.headers)
    if lone and not own:
        return [answer]
    for field in answer.headers:
        if field[0] in _ABOUT_WHOLE_BODY:
            answer.headers = tuple([each for each in answer.headers if each[0] not in _ABOUT_WHOLE_BODY])
            break
    if not 200 <= answer.status < 300:
        return [answer]
    answers = protocol.split(answer, [part.items for part in parts], parts[0].work.key.parameters)
    if not own:
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


def rejoin(answers: Sequence[Response], protocol: BatchProtocol, parameters: Hashable) -> Response:
    """Merge the answers to the parts of one request, whose parameters are given.

    Raises:
        PenstockError: `bad_answer`, or the problem of items with answers of their own.
    """
    own = [item for each in answers if isinstance(each, PartAnswer) for item in each.own]
    if own:
        raise problem_of(own)
    return answers[0] if len(answers) == 1 else protocol.merge(answers, parameters)


def blames_a_request(answers: Sequence[Outcome], answer: Response) -> bool:
    """Whether one request of a run may be the cause of its answer; `answers` are those split from it.

    The SDK says itself that its model's answers do not fit the items: one item can be the cause.
    """
    if answer.status < 300:
        return not answers
    return may_be_one_request(answer.status) or get(answer.headers, REASON) == _BAD_ANSWER
