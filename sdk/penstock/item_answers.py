"""Renders the answers of a model call item by item, for a sidecar that splits them (docs/protocols.md).

An exception, a `Response` or an answer without a JSON form affects only its own item. If every item has a
prediction, the HTTP answer is the plain one.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.encoding import encode
from penstock.errors import AnswerError
from penstock.instances_response import predictions_of, problem_of
from penstock.response import Response, to_http
from penstock_wire import http
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import Headers
from penstock_wire.instances_form import ANSWERS, ITEM_ANSWERS_TYPE
from penstock_wire.process import log


def respond_by_item(answers: Sequence[Any]) -> http.Response:
    """Make the HTTP answer of one call.

    Args:
        answers: one for each item: a value, a `Response`, an exception.
    """
    values = list(answers)
    own: dict[int, bytes] = {}
    for index, answer in enumerate(answers):
        if isinstance(answer, BaseException | Response):
            values[index] = None
            own[index] = _own(index, answer)
    try:
        predictions = encode(values)
    except AnswerError:
        predictions = _one_by_one(values, own)
    if not own:
        return predictions_of(predictions)
    entries = b",".join([own[index] for index in sorted(own)])
    body = b'{"predictions":%b,"%b":[%b]}' % (predictions, ANSWERS.encode(), entries)
    return http.Response(status=200, headers=((b"content-type", ITEM_ANSWERS_TYPE),), body=body)


def _one_by_one(values: Sequence[Any], own: dict[int, bytes]) -> bytes:
    """Encode predictions one by one; an item whose prediction has no JSON form gets an error in `own`."""
    texts = []
    for index, value in enumerate(values):
        try:
            texts.append(encode(value))
        except AnswerError as error:
            texts.append(b"null")
            own[index] = _own(index, AnswerError(f"the answer to the item: {error}"))
    return b"[" + b",".join(texts) + b"]"


def _own(index: int, answer: Any) -> bytes:
    """Encode the answer to one item as JSON: the HTTP answer of a call with this item alone."""
    answered, is_json = _answered(answer)
    head = {"index": index, "status": answered.status, "headers": fields_of(answered.headers)}
    text = msgspec.json.encode(head)
    if not answered.body:
        return text
    if is_json:
        return text[:-1] + b',"body":' + answered.body + b"}"
    return text[:-1] + b',"bodyB64":"' + base64.b64encode(answered.body) + b'"}'


def _problem(error: BaseException) -> http.Response:
    if isinstance(error, PenstockError):
        return error.response()
    if isinstance(error, AnswerError):
        log("the answer to an item cannot be used", level="error", error=str(error))
        return PenstockError(Reason.BAD_ANSWER, str(error)).response()
    return problem_of([(0, error)], several=False).response()


def answer_of(answer: Any) -> http.Response:
    """Make the HTTP answer of an exception or a `Response`, as in a call with this item alone."""
    return _answered(answer)[0]


def _answered(answer: Any) -> tuple[http.Response, bool]:
    """Make the HTTP answer to one item; also return whether its body is known to be JSON."""
    if not isinstance(answer, Response):
        return _problem(answer), True
    try:
        # NB: a body that the author has encoded need not be JSON, whatever its content type.
        return to_http(answer), not isinstance(answer.body, bytes | bytearray | memoryview | str)
    except AnswerError as error:
        return _problem(error), True


def fields_of(headers: Headers) -> dict[str, str | list[str]]:
    """Header fields as a JSON object; several values of one name become a list."""
    fields: dict[str, list[str]] = {}
    for name, value in headers:
        fields.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}
