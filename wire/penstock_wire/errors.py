"""The errors that Penstock itself answers with: one enum of reasons, RFC 9457 bodies.

Tree::

    PenstockError              an error answer by Penstock; has reason, status, detail
    DocumentError(ValueError)  a settings or report document that cannot be used
"""

from __future__ import annotations

import enum
import json
from typing import Any, Self

import msgspec

from penstock_wire.headers import NOT_ADMITTED, REASON, REQUEST_ID, TIMEOUT_MS, UNREAD, Headers, get
from penstock_wire.http import Response


class Reason(enum.StrEnum):
    """Why Penstock refused or failed a request; the same word in bodies, logs, metrics and docs.

    A reason does not show whether the request was executed; each `PenstockError` does.

    Attributes:
        status: the usual HTTP status of an answer with this reason.
        headline: the title of its problem document.
        from_model: a model server, that is, the SDK's, can give it for its own answer.
    """

    status: int
    headline: str
    from_model: bool

    BAD_JSON = "bad_json", 400, "The body is not the JSON that was expected", True
    BAD_REQUEST = "bad_request", 400, "The request cannot be read"
    BAD_MEDIA_TYPE = "bad_media_type", 415, "The content type is not supported", True
    BAD_SHAPE = "bad_shape", 422, "The request has an unexpected shape", True
    MISSING_ARGUMENTS = "missing_arguments", 422, "The item does not fit the model's signature", True
    TOO_LARGE = "too_large", 413, "The request is too large"
    NO_ROUTE = "no_route", 404, "No endpoint serves this path", True
    METHOD_NOT_ALLOWED = "method_not_allowed", 405, "The endpoint does not allow this method", True
    QUEUE_FULL = "queue_full", 503, "The queue is full"
    DEADLINE = "deadline", 504, "The deadline cannot be met"
    DRAINING = "draining", 503, "The pod is shutting down"
    MOVED = "moved", 503, "The request was handed back, to be sent to another pod"
    NOT_READY = "not_ready", 503, "The model is not ready", True
    FORBIDDEN = "forbidden", 403, "The caller may not do this"
    BACKEND_MISSING = "backend_missing", 503, "No backend can serve this endpoint"
    COLD_START_FULL = "cold_start_full", 503, "Too many requests wait for the backend to start"
    NO_MEMORY = "no_memory", 503, "All connections together keep as much as they may"
    BAD_ANSWER = "bad_answer", 502, "The model gave an answer that cannot be used", True
    MODEL_UNREACHABLE = "model_unreachable", 502, "The model cannot be reached"
    MODEL_FAILED = "model_failed", 500, "The model failed", True
    MODEL_ANSWER = "model_answer", 422, "The model answered items of the request with errors", True
    BATCH_FAILED = "batch_failed", 502, "The batch that held the request failed"
    SLOW_READER = "slow_reader", 499, "The client read its answer too slowly"
    CLIENT_GONE = "client_gone", 499, "The client went away before its answer"
    CALL_CYCLE = "call_cycle", 508, "Calls between endpoints go round in a circle", True
    INTERNAL = "internal", 500, "An unexpected error in Penstock", True

    def __new__(cls, word: str, status: int, headline: str, from_model: bool = False) -> Self:  # noqa: FBT001, FBT002
        """Make a member that is equal to its word."""
        member = str.__new__(cls, word)
        member._value_ = word
        member.status = status
        member.headline = headline
        member.from_model = from_model
        return member


MODEL_REASONS = {reason.value.encode(): reason for reason in Reason if reason.from_model}
"""Reasons that a model server can give, by the value of the answer's field."""
MODEL_ANSWER = Reason.MODEL_ANSWER.value
"""Also the reason in metrics and logs for a model server's error without one of these."""

PROBLEM_TYPE = "https://penstock.dev/errors/"


_origin = {"backend": "", "pod": ""}


def set_origin(*, backend: str, pod: str) -> None:
    """Set the backend and pod in all problems of this process from now on, unless `response` gets names."""
    _origin.update(backend=backend, pod=pod)


class DocumentError(ValueError):
    """A document that cannot be used; the message says what was expected, what was found and where."""


class PenstockError(Exception):
    """An error answer by Penstock itself.

    Args:
        reason: the reason word.
        detail: one sentence: what was expected, what was found, where.
        status: the HTTP status, if it differs from the reason's usual one.
        retry_after: seconds until a retry makes sense; sent as `Retry-After`, rounded up, at least 1. 503 and
            429 always have one (1 if not given).
        not_admitted: the request was surely not executed, so that a router can try another pod.
        extra: members added to the problem document.
        headers: header fields added to the answer (`Allow` of a 405).
    """

    def __init__(
        self,
        reason: Reason,
        detail: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        not_admitted: bool = False,
        extra: dict[str, Any] | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.status = reason.status if status is None else status
        self.retry_after = retry_after
        self.not_admitted = not_admitted
        self.unread = False
        """Whether it refuses a request by its head alone, which counts as one item then."""
        self.extra = extra
        self.headers = headers

    def response(self, *, request_id: str = "", backend: str = "", pod: str = "") -> Response:
        """Make the problem+json answer (RFC 9457).

        Args:
            request_id: the request's `x-request-id`; left out if empty, like the next two.
            backend: name of the backend that answers; by default that of the process (`set_origin`).
            pod: name of the pod that answers; the same default.
        """
        document: dict[str, Any] = {
            "type": PROBLEM_TYPE + self.reason.value,
            "title": self.reason.headline,
            "status": self.status,
            "detail": self.detail,
            "reason": self.reason.value,
            "error": self.detail,  # the member that clients of Triton and KServe read
        }
        backend, pod = backend or _origin["backend"], pod or _origin["pod"]
        where = {"request_id": request_id, "backend": backend, "pod": pod}
        document.update({name: value for name, value in where.items() if value}, **(self.extra or {}))
        fields = [
            (b"content-type", b"application/problem+json"),
            (REASON, self.reason.value.encode()),
            *self.headers,
        ]
        if self.status in (429, 503):
            fields.append((b"retry-after", str(max(1, -int(-(self.retry_after or 1) // 1))).encode()))
        if self.not_admitted:
            fields.append((NOT_ADMITTED, UNREAD if self.unread else b"1"))
        if request_id:
            fields.append((REQUEST_ID, request_id.encode()))
        try:
            body = msgspec.json.encode(document)
        except UnicodeEncodeError:  # a lone surrogate in a quoted value, which msgspec does not write
            body = json.dumps(document).encode()
        return Response(status=self.status, headers=tuple(fields), body=body)


def bad_timeout(headers: Headers) -> PenstockError:
    """Make the error for a request with an unreadable `x-penstock-timeout-ms`.

    Args:
        headers: the request's fields.
    """
    given = (get(headers, TIMEOUT_MS) or b"")[:64].decode("latin-1")
    expected = f"expected {TIMEOUT_MS.decode()} in whole milliseconds"
    return PenstockError(Reason.BAD_REQUEST, f"{expected}, found {given!r}")
