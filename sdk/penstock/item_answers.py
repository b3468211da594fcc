"""Renders the answers of a model call item by item (docs/protocols.md).

An exception, a `Response` or an answer without a JSON form affects only its own item. If every item has a
prediction, the HTTP answer is the plain one. A sidecar splits the form with items' own answers; a client gets
what the sidecar would make of it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock import request_ids
from penstock.encoding import encode
from penstock.errors import AnswerError
from penstock.instances_response import predictions_of, problem_of
from penstock.response import Response, to_http
from penstock.user_code import text_of
from penstock_wire import http, item_problem
from penstock_wire.errors import PenstockError
from penstock_wire.headers import Headers
from penstock_wire.instances_form import ANSWERS, ITEM_ANSWERS_TYPE
from penstock_wire.process import log

Own = tuple[http.Response, dict[str, bytes]]
"""The answer to one item, and its body as JSON by the name of its member; empty without a body."""


def respond_by_item(answers: Sequence[Any]) -> http.Response:
    """Make the HTTP answer of one call for a sidecar.

    Args:
        answers: one for each item: a value, a `Response`, an exception.
    """
    predictions, own = _rendered(answers, "")
    if not own:
        return predictions_of(predictions)
    entries = b",".join([_entry(index, *own[index]) for index in sorted(own)])
    body = b'{"predictions":%b,"%b":[%b]}' % (predictions, ANSWERS.encode(), entries)
    return http.Response(status=200, headers=((b"content-type", ITEM_ANSWERS_TYPE),), body=body)


def respond(answers: Sequence[Any], *, request_id: str = "") -> http.Response:
    """Make the HTTP answer of one call for a client, which has one status.

    Args:
        answers: as for `respond_by_item`.
        request_id: the request's id, for problems.
    """
    predictions, own = _rendered(answers, request_id)
    if not own:
        return predictions_of(predictions)
    if len(answers) == 1:
        return own[0][0]
    items = [(index, *own[index]) for index in sorted(own)]
    return item_problem.problem_of(items).response(request_id=request_id)


def _rendered(answers: Sequence[Any], request_id: str) -> tuple[bytes, Mapping[int, Own]]:
    """Encode the predictions, with null for each item that has an answer of its own; return these, too."""
    values = list(answers)
    own: dict[int, Own] = {}
    for index, answer in enumerate(answers):
        if isinstance(answer, BaseException | Response):
            values[index] = None
            own[index] = _own(answer, request_id)
    try:
        return encode(values), own
    except AnswerError:
        texts = []
        for index, value in enumerate(values):
            try:
                texts.append(encode(value))
            except AnswerError as error:
                texts.append(b"null")
                own[index] = _own(AnswerError(f"the answer to the item: {error}"), request_id)
        return b"[" + b",".join(texts) + b"]", own


def _entry(index: int, answer: http.Response, body: Mapping[str, bytes]) -> bytes:
    """Encode the answer to one item as JSON."""
    head = {"index": index, "status": answer.status, "headers": fields_of(answer.headers)}
    return msgspec.json.encode(head | {name: msgspec.Raw(text) for name, text in body.items()})


def answer_of(answer: Any, request_id: str = "") -> http.Response:
    """Make the HTTP answer of an exception or a `Response`, as in a call with this item alone."""
    return _own(answer, request_id)[0]


def _own(answer: Any, request_id: str) -> Own:
    if isinstance(answer, Response):
        try:
            made = to_http(answer)
        except AnswerError as error:
            answer = error
        else:
            # NB: a body that the author has encoded need not be JSON, whatever its content type.
            encoded = isinstance(answer.body, bytes | bytearray | memoryview | str)
            if encoded and made.body:
                return made, {"bodyB64": b'"%b"' % base64.b64encode(made.body)}
            return made, {"body": made.body} if made.body else {}
    if isinstance(answer, AnswerError):
        log(
            "the answer to an item cannot be used",
            level="error",
            error=text_of(answer),
            **request_ids.logged(),
        )
    problem = answer if isinstance(answer, PenstockError) else problem_of(answer)
    response = problem.response(request_id=request_id)
    return response, {"body": response.body}


def fields_of(headers: Headers) -> dict[str, str | list[str]]:
    """Header fields as a JSON object; several values of one name become a list."""
    fields: dict[str, list[str]] = {}
    for name, value in headers:
        fields.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}
