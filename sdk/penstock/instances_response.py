"""The answers of a model call as one HTTP answer of the `instances` protocol.

`predictions` has one status for all its items. In a request with one item, a `Response` or an exception
is the HTTP answer. Among several items it makes the whole answer a problem that names the items, unless the
caller takes answers by item (`item_answers`). After the problem's status, a sidecar that isolates failures
tries smaller batches: the items' own 400, 413, 422 or 500 if they agree, else 422 or 500.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.encoding import encode
from penstock.errors import AnswerError, ArgumentsError, CallCycle
from penstock.response import Response, to_http
from penstock.user_code import described, kind_of
from penstock_wire import http
from penstock_wire.errors import PenstockError, Reason

ISOLATABLE = frozenset({400, 413, 422, 500})
"""Statuses after which a sidecar can run halves of the batch."""

SHOWN = 10
"""The most items that a problem names."""


def respond(answers: Sequence[Any], *, request_id: str = "") -> http.Response:
    """Make the HTTP answer of one call.

    Args:
        answers: one for each item: a value, a `Response`, an exception; None beside ArgumentsErrors.
        request_id: the request's id, for problems.
    """
    try:
        problem = _problem(answers)
        if problem is not None:
            return problem.response(request_id=request_id)
        if len(answers) == 1 and isinstance(answers[0], Response):
            return to_http(answers[0])
        return predictions_of(_predictions(answers))
    except AnswerError as error:
        return PenstockError(Reason.BAD_ANSWER, str(error)).response(request_id=request_id)


def failed(error: Exception, *, count: int, request_id: str = "") -> http.Response:
    """Make the HTTP answer for a call that raised.

    Args:
        error: the exception.
        count: number of items of the call.
        request_id: the request's id.
    """
    if isinstance(error, AnswerError):
        return PenstockError(Reason.BAD_ANSWER, str(error)).response(request_id=request_id)
    if isinstance(error, ArgumentsError):
        return PenstockError(Reason.MISSING_ARGUMENTS, str(error)).response(request_id=request_id)
    if isinstance(error, CallCycle) and count == 1:
        return PenstockError(Reason.CALL_CYCLE, str(error)).response(request_id=request_id)
    # NB: a batch's items come from several clients: an error message about one must not go to all of them.
    detail = f"the model raised {described(error) if count == 1 else kind_of(error)}"
    return PenstockError(Reason.MODEL_FAILED, detail).response(request_id=request_id)


def predictions_of(text: bytes) -> http.Response:
    """Make the plain answer: 200 with predictions that are JSON already."""
    return http.Response(
        status=200,
        headers=((b"content-type", b"application/json"),),
        body=b'{"predictions":' + text + b"}",
    )


def _predictions(answers: Sequence[Any]) -> bytes:
    try:
        return encode(answers)
    except AnswerError:
        for index, answer in enumerate(answers):
            try:
                encode(answer)
            except AnswerError as error:
                raise AnswerError(f"the answer to item {index}: {error}") from error
        raise


def _problem(answers: Sequence[Any]) -> PenstockError | None:
    several = len(answers) > 1
    failures = [
        (index, answer)
        for index, answer in enumerate(answers)
        if isinstance(answer, BaseException) or (isinstance(answer, Response) and several)
    ]
    return problem_of(failures, several=several) if failures else None


def problem_of(failures: Sequence[tuple[int, Any]], *, several: bool) -> PenstockError:
    """Make the problem for failed items.

    Args:
        failures: exceptions and `Response` objects with the indices of their items; at least one.
        several: the request has several items.
    """
    if isinstance(failures[0][1], CallCycle) and not several:
        return PenstockError(Reason.CALL_CYCLE, str(failures[0][1]))
    words = [_words(answer, several=several) for _, answer in failures]
    shown = [
        f"item {index}: {text}" if several else text for (index, _), text in zip(failures, words, strict=True)
    ]
    detail = ". ".join(shown[:SHOWN])
    if len(failures) > SHOWN:
        detail += f". And {len(failures) - SHOWN} more items"
    items = [_entry(index, answer) for index, answer in failures[:SHOWN]]
    if all(isinstance(answer, ArgumentsError) for _, answer in failures):
        return PenstockError(Reason.MISSING_ARGUMENTS, detail, extra={"items": items})
    return PenstockError(
        Reason.MODEL_FAILED,
        detail,
        status=_status([answer for _, answer in failures]),
        extra={"items": items},
    )


def _status(answers: list[Any]) -> int:
    statuses = {answer.status if isinstance(answer, Response) else 500 for answer in answers}
    if len(statuses) == 1 and statuses <= ISOLATABLE:
        return statuses.pop()
    return 422 if all(400 <= status < 500 for status in statuses) else 500


def _words(answer: Any, *, several: bool) -> str:
    if isinstance(answer, Response):
        return f"the model answered {answer.status}"
    if isinstance(answer, ArgumentsError):
        return str(answer)
    return f"the model failed with {kind_of(answer) if several else described(answer)}"


def _entry(index: int, answer: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"index": index}
    if isinstance(answer, ArgumentsError):
        fields = {"missing": answer.missing, "unknown": answer.unknown, "paths": answer.paths}
        for name, names in fields.items():
            if names:
                entry[name] = [text[: 256 if name == "paths" else 64] for text in names[:SHOWN]]
    elif isinstance(answer, Response):
        entry["status"] = answer.status
    return entry
