"""Makes the answer to a request from the model's own answers to its items (`protocols.item_answers`). Pure.

A request of one item gets the answer to that item. A request of several items has one status, so it gets a
problem document that names each item with its own answer by its index in the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock_sidecar.protocols.base import OwnAnswer, OwnAnswers
from penstock_sidecar.queue.request import Outcome, Slice
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import REASON, Headers, get
from penstock_wire.http import Response

LOAD = frozenset({429, 503})
"""Statuses of items that the model did not run for lack of capacity."""
_PROBLEM = b"application/problem+json"
_ID = b'"request_id":'
SHOWN = 10
"""Maximum number of items that a problem document names."""


def request_answer(part: Slice, own: OwnAnswers) -> Outcome:
    """Make the answer to a request from the answers to its items.

    Args:
        part: the request's part of the batch.
        own: the model's own answers to items of that part.
    """
    if part.whole and part.size == 1:
        answer = own.answers[0]
        if answer.response is None:
            return PenstockError(Reason.BAD_ANSWER, f"the model's answer: {answer.fault}")
        return _with_id(answer.response, part.work.request_id)
    return _problem({part.start + place: answer for place, answer in own.answers.items()})


def refused(parts: Sequence[Slice], answers: Sequence[Outcome]) -> int:
    """Count the items that the model did not run for lack of capacity, in a run that it answered by item.

    Args:
        parts: the parts that were sent.
        answers: the outcome of each part. The items of a part count together, by its status.
    """
    return sum([part.size for answer, part in zip(answers, parts, strict=True) if answer.status in LOAD])


def _with_id(answer: Response, request_id: bytes) -> Response:
    """Add the request's id to a problem document: the model had the ids of the whole batch, and could not."""
    fields, body = answer.headers, answer.body
    if get(fields, b"content-type") != _PROBLEM or get(fields, REASON) is None or _ID in body:
        return answer
    if body[:1] == b"{" and body[-1:] == b"}" and len(body) > 2:
        answer.body = body[:-1] + b"," + _ID + msgspec.json.encode(request_id.decode("latin-1")) + b"}"
    return answer


def _problem(own: dict[int, OwnAnswer]) -> PenstockError:
    statuses: set[int] = set()
    words: list[str] = []
    entries: list[dict[str, Any]] = []
    wait = 0
    for index, answer in own.items():
        if answer.response is None:
            return PenstockError(Reason.BAD_ANSWER, f"the model's answer to item {index}: {answer.fault}")
        status = answer.response.status
        statuses.add(status)
        wait = max(wait, _retry_after(answer.response.headers))
        if len(entries) < SHOWN:
            words.append(f"item {index}: the model answered {status}")
            raw = {name: msgspec.Raw(text) for name, text in answer.raw.items()}
            entries.append({"index": index, "status": status, **raw})
    if len(own) > SHOWN:
        words.append(f"And {len(own) - SHOWN} more items")
    return PenstockError(
        Reason.MODEL_FAILED,
        ". ".join(words),
        status=_status(statuses),
        retry_after=wait or None,
        extra={"items": entries},
    )


def _status(statuses: set[int]) -> int:
    """The items' status if all have the same error; else 422 if all are 4xx, or 500."""
    if len(statuses) == 1 and min(statuses) >= 400:
        return min(statuses)
    return 422 if all(400 <= status < 500 for status in statuses) else 500


def _retry_after(headers: Headers) -> int:
    """Seconds of an answer's `Retry-After`; 0 if it has none, or a date."""
    value = get(headers, b"retry-after") or b""
    return int(value) if value.isdigit() and len(value) <= 6 else 0
