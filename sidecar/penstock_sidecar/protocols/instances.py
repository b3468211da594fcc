"""The `instances` protocol, TensorFlow Serving's REST form: `{"instances": […]}` → `{"predictions": […]}`.

An item is one element of `instances`. All other top-level members of a request are parameters: part of the
key, since a batch has one set of them. All other members of an answer come back to each request of the batch.
A model can give single items of a batch their own answers: `item_answers` has the form. A model server that
says so (`x-penstock-tensors`, as the SDK's) also gets requests of the `v2` protocol, in batches of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain
from typing import Any, cast

from penstock_sidecar.protocols.base import Message, OwnAnswers, Parsed
from penstock_sidecar.protocols.item_answers import is_form, plain_fields, read_answers
from penstock_sidecar.protocols.media_types import CLOUD_EVENT, HEADER_LENGTH, BodyFields
from penstock_sidecar.protocols.v2 import V2_PROTOCOL, Signature
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import ITEM_ANSWERS, Headers
from penstock_wire.http import Request, Response
from penstock_wire.instances_form import ANSWERS, INSTANCES, Parameters, member_name, take_items
from penstock_wire.json_slices import NotJSON, Sole, elements, members, object_with

PREDICTIONS = "predictions"

_REQUEST = Sole(INSTANCES)
_ANSWER = Sole(PREDICTIONS)
_NO_MORE = b"]}"
_BODY = BodyFields(CLOUD_EVENT, HEADER_LENGTH)


def join(items: Iterable[bytes], parameters: Parameters) -> bytes:
    """Make the body of a batch: the items in order, then the parameters."""
    return b'{"instances":[' + b",".join(items) + _tail(parameters)


def split(body: bytes, counts: Sequence[int]) -> list[bytes]:
    """Cut a batch's answer into one body for each request.

    Args:
        body: the model's answer.
        counts: number of items of each request, in the order joined.

    Raises:
        PenstockError: `bad_answer` (502): not JSON, no `predictions`, or not as many as there were items.
    """
    predictions, more = _read_answer(body, sum(counts))
    return _bodies(predictions, more, counts)


def split_by_item(answer: Response, counts: Sequence[int]) -> list[Response | OwnAnswers]:
    """Cut an answer of the form of `item_answers` into one answer for each request.

    Args:
        answer: the model's answer.
        counts: number of items of each request, in the order joined.

    Raises:
        PenstockError: as `split`, and if it is unclear which item an answer belongs to.
    """
    predictions, more = _read_answer(answer.body, sum(counts))
    own = read_answers(more.pop(ANSWERS, None), predictions)
    fields = plain_fields(answer.headers)
    answers: list[Response | OwnAnswers] = []
    start = 0
    for count, body in zip(counts, _bodies(predictions, more, counts), strict=True):
        places = [place for place in range(count) if start + place in own]
        if places:
            answers.append(OwnAnswers({place: own[start + place] for place in places}))
        else:
            answers.append(Response(answer.status, fields, body))
        start += count
    return answers


def _read_answer(body: bytes, count: int) -> tuple[list[bytes], dict[str, bytes]]:
    """Return an answer's `count` predictions, and its other members (raises PenstockError `bad_answer`)."""
    more: dict[str, bytes] = {}
    predictions = _ANSWER.elements(body)
    if predictions is None:
        try:
            more = members(body)
            raw = more.pop(PREDICTIONS, None)
            if raw is None:
                raise NotJSON(
                    'expected a member "predictions", found ' + (", ".join(sorted(more)[:10]) or "none")
                )
            predictions = elements(raw)
        except NotJSON as error:
            raise PenstockError(Reason.BAD_ANSWER, f"the model's answer: {error}") from error
    if len(predictions) != count:
        raise PenstockError(
            Reason.BAD_ANSWER,
            f"the model's answer: expected {count} predictions, found {len(predictions)}",
        )
    return predictions, more


def _bodies(predictions: Sequence[bytes], more: dict[str, bytes], counts: Sequence[int]) -> list[bytes]:
    tail = _tail(more.items()) if more else _NO_MORE
    bodies, start = [], 0
    for count in counts:
        some = predictions[start] if count == 1 else b",".join(predictions[start : start + count])
        bodies.append(b'{"predictions":[' + some + tail)
        start += count
    return bodies


def merge(bodies: Sequence[bytes]) -> bytes:
    """Merge the answers to the parts of one request, in order; other members come from the first answer.

    Args:
        bodies: the body that `split` returned for each part; at least one.
    """
    predictions: list[bytes] = []
    rest: dict[str, bytes] = {}
    for index, body in enumerate(bodies):
        fields = members(body)
        predictions += elements(fields.pop(PREDICTIONS))
        if index == 0:
            rest = fields
    return b'{"predictions":[' + b",".join(predictions) + _tail(rest.items())


class Instances:
    """The protocol on the functions above.

    Args:
        takes_tensors: whether the model answers requests of `v2`, too.
    """

    name = "instances"
    item_streams = True
    asks: Headers = ((ITEM_ANSWERS, b"1"),)

    def __init__(self, takes_tensors: Callable[[], bool] = lambda: False) -> None:
        self._takes_tensors = takes_tensors

    def passes(self, request: Request) -> bool:
        if request.path.endswith("/infer") and self._takes_tensors():
            return V2_PROTOCOL.passes(request)
        return request.method != "POST" or not _BODY.may_be_json(request.headers)

    def parse(self, request: Request) -> Parsed | None:
        if request.path.endswith("/infer") and self._takes_tensors():
            tensors = V2_PROTOCOL.parse(request)
            if tensors is not None:
                return tensors
        fields = _BODY.of_json(request.headers)
        sole = _REQUEST.elements(request.body)
        if sole is not None:
            return Parsed(items=sole, parameters=(), fields=fields)
        try:
            document = object_with(INSTANCES, request.body)
        except NotJSON as error:
            raise PenstockError(Reason.BAD_JSON, str(error)) from error
        if document is None:
            return None
        items, parameters = take_items(document)
        return Parsed(items=items, parameters=parameters, fields=fields)

    def join(self, parts: Sequence[Sequence[Any]], parameters: Hashable) -> Message:
        if isinstance(parameters, Signature):
            return V2_PROTOCOL.join(parts, parameters)
        return Message(
            headers=self.asks, body=join(chain.from_iterable(parts), cast("Parameters", parameters))
        )

    def split(
        self, answer: Response, parts: Sequence[Sequence[Any]], parameters: Hashable
    ) -> Sequence[Response | OwnAnswers]:
        if isinstance(parameters, Signature):
            return V2_PROTOCOL.split(answer, parts, parameters)
        status, headers = answer.status, answer.headers
        if is_form(headers):
            return split_by_item(answer, list(map(len, parts)))
        return [Response(status, headers, body) for body in split(answer.body, list(map(len, parts)))]

    def merge(self, answers: Sequence[Response], parameters: Hashable) -> Response:
        if isinstance(parameters, Signature):
            return V2_PROTOCOL.merge(answers, parameters)
        first = answers[0]
        return Response(first.status, first.headers, merge([answer.body for answer in answers]))


INSTANCES_PROTOCOL = Instances()


def _tail(more: Iterable[tuple[str, bytes]]) -> bytes:
    """Make the end of a body: the end of its array, then its other members."""
    return b"".join([b"]", *(b"," + member_name(name) + b":" + raw for name, raw in more), b"}"])
