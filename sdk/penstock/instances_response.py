"""The HTTP answers of the `instances` protocol: predictions, and the problem of an exception."""

from __future__ import annotations

from typing import Any

from penstock import request_ids
from penstock.errors import AnswerError, ArgumentsError, CallCycle
from penstock.raised import member_of
from penstock.user_code import described, kind_of, text_of
from penstock_wire import http
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.process import log

SHOWN = 10
"""The most names of each kind that a problem lists."""


def predictions_of(text: bytes) -> http.Response:
    """Make the plain answer: 200 with predictions that are JSON already."""
    return http.Response(
        status=200,
        headers=((b"content-type", b"application/json"),),
        body=b'{"predictions":' + text + b"}",
    )


def failed(error: Exception, *, count: int, request_id: str = "") -> http.Response:
    """Make the HTTP answer for a call that raised.

    Args:
        error: the exception.
        count: number of items of the call.
        request_id: the id of the call's only request; empty if it is unknown or there are several.
    """
    if isinstance(error, AnswerError):
        log("the model's answer cannot be used", level="error", error=text_of(error), **request_ids.logged())
        return PenstockError(Reason.BAD_ANSWER, text_of(error)).response(request_id=request_id)
    if isinstance(error, ArgumentsError):
        extra = member_of(error)
        return PenstockError(Reason.MISSING_ARGUMENTS, text_of(error), extra=extra).response(
            request_id=request_id
        )
    if isinstance(error, CallCycle) and (count == 1 or request_id):
        return PenstockError(Reason.CALL_CYCLE, text_of(error)).response(request_id=request_id)
    # NB: a batch's items come from several clients: an error message about one must not go to all of them.
    detail = f"the model raised {described(error) if count == 1 or request_id else kind_of(error)}"
    return PenstockError(Reason.MODEL_FAILED, detail, extra=member_of(error)).response(request_id=request_id)


def problem_of(error: BaseException) -> PenstockError:
    """Make the problem of one item.

    Args:
        error: the exception that is its answer.
    """
    if isinstance(error, CallCycle):
        return PenstockError(Reason.CALL_CYCLE, text_of(error))
    if isinstance(error, AnswerError):
        return PenstockError(Reason.BAD_ANSWER, text_of(error))
    entry: dict[str, Any] = {"index": 0}
    extra = {"items": [entry], **member_of(error)}
    if not isinstance(error, ArgumentsError):
        detail = f"the model failed with {described(error)}"
        return PenstockError(Reason.MODEL_FAILED, detail, extra=extra)
    fields = {"missing": error.missing, "unknown": error.unknown, "paths": error.paths}
    for name, names in fields.items():
        if names:
            entry[name] = [text[: 256 if name == "paths" else 64] for text in names[:SHOWN]]
    return PenstockError(Reason.MISSING_ARGUMENTS, text_of(error), extra=extra)
