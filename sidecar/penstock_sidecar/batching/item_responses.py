"""Makes the answer to a request from the model's own answers to its items (`protocols.item_answers`). Pure.

A request of one item gets the answer to that item, one of several items a problem document that names each
item with its own answer (`penstock_wire.item_problem`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock_sidecar.protocols.base import OwnAnswers
from penstock_sidecar.queue.request import Outcome, Slice
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import REASON, get
from penstock_wire.http.messages import Response
from penstock_wire.item_problem import problem_of

LOAD = frozenset({429, 503})
"""Statuses of items that the model did not run for lack of capacity."""
_PROBLEM = b"application/problem+json"
_ID = b'"request_id":'


class PartAnswer(Response):
    """The answer to a part of a request, with the answers of its items, for the problem of the whole.

    Args:
        own: see `penstock_wire.item_problem.problem_of`.
    """

    __slots__ = ("own",)

    def __init__(self, own: list[tuple[int, Response, dict[str, bytes]]]) -> None:
        super().__init__(problem_of(own).status, (), b"")
        self.own = own


def request_answer(part: Slice, own: OwnAnswers) -> Outcome:
    """Make the answer to a request, or to its part, from the answers to its items.

    Args:
        part: the request's part of the batch.
        own: the model's own answers to items of that part.
    """
    if part.whole and part.size == 1:
        answer = own.answers[0]
        if answer.response is None:
            return PenstockError(Reason.BAD_ANSWER, f"the model's answer: {answer.fault}")
        return _with_id(answer.response, part.work.request_id)
    items: list[tuple[int, Response, dict[str, bytes]]] = []
    for place, answer in own.answers.items():
        index = part.start + place
        if answer.response is None:
            detail = f"the model's answer to item {index}: {answer.fault}"
            return PenstockError(Reason.BAD_ANSWER, detail)
        items.append((index, answer.response, answer.raw))
    return problem_of(items) if part.whole else PartAnswer(items)


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
