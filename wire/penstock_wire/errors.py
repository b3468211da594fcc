"""The errors that Penstock itself answers with: one reason enum, RFC 9457 bodies.

Tree::

    PenstockError              an answer of ours; carries reason, status, detail
    DocumentError(ValueError)  a settings or report document that cannot be used
"""

from __future__ import annotations

import enum
import json
from typing import Any

import msgspec

from penstock_wire.headers import NOT_ADMITTED, REASON, REQUEST_ID, TIMEOUT_MS, Headers, get
from penstock_wire.http import Response


class Reason(enum.StrEnum):
    """Why Penstock refused or failed a request; the same word in bodies, logs, metrics and docs."""

    BAD_JSON = "bad_json"
    BAD_REQUEST = "bad_request"
    BAD_MEDIA_TYPE = "bad_media_type"
    BAD_SHAPE = "bad_shape"
    MISSING_ARGUMENTS = "missing_arguments"
    TOO_LARGE = "too_large"
    NO_LENGTH = "no_length"
    NO_ROUTE = "no_route"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    NOT_IMPLEMENTED = "not_implemented"
    QUEUE_FULL = "queue_full"
    DEADLINE = "deadline"
    DRAINING = "draining"
    NOT_READY = "not_ready"
    FORBIDDEN = "forbidden"
    BACKEND_MISSING = "backend_missing"
    COLD_START_FULL = "cold_start_full"
    BAD_ANSWER = "bad_answer"
    MODEL_UNREACHABLE = "model_unreachable"
    MODEL_FAILED = "model_failed"
    BATCH_FAILED = "batch_failed"
    SLOW_READER = "slow_reader"
    CLIENT_GONE = "client_gone"
    INTERNAL = "internal"


STATUS: dict[Reason, int] = {
    Reason.BAD_JSON: 400,
    Reason.BAD_REQUEST: 400,
    Reason.BAD_MEDIA_TYPE: 415,
    Reason.BAD_SHAPE: 422,
    Reason.MISSING_ARGUMENTS: 422,
    Reason.TOO_LARGE: 413,
    Reason.NO_LENGTH: 411,
    Reason.NO_ROUTE: 404,
    Reason.METHOD_NOT_ALLOWED: 405,
    Reason.NOT_IMPLEMENTED: 501,
    Reason.QUEUE_FULL: 503,
    Reason.DEADLINE: 504,
    Reason.DRAINING: 503,
    Reason.NOT_READY: 503,
    Reason.FORBIDDEN: 403,
    Reason.BACKEND_MISSING: 503,
    Reason.COLD_START_FULL: 503,
    Reason.BAD_ANSWER: 502,
    Reason.MODEL_UNREACHABLE: 502,
    Reason.MODEL_FAILED: 500,
    Reason.BATCH_FAILED: 502,
    Reason.SLOW_READER: 499,
    Reason.CLIENT_GONE: 499,
    Reason.INTERNAL: 500,
}

TITLE: dict[Reason, str] = {
    Reason.BAD_JSON: "The body is not the JSON that was expected",
    Reason.BAD_REQUEST: "The request cannot be read",
    Reason.BAD_MEDIA_TYPE: "The content type is not supported",
    Reason.BAD_SHAPE: "The request has an unexpected shape",
    Reason.MISSING_ARGUMENTS: "The item does not fit the model's signature",
    Reason.TOO_LARGE: "The request is too large",
    Reason.NO_LENGTH: "The request has no length",
    Reason.NO_ROUTE: "No endpoint serves this path",
    Reason.METHOD_NOT_ALLOWED: "The endpoint does not allow this method",
    Reason.NOT_IMPLEMENTED: "The router does not do this yet",
    Reason.QUEUE_FULL: "The queue is full",
    Reason.DEADLINE: "The deadline cannot be met",
    Reason.DRAINING: "The pod is shutting down",
    Reason.NOT_READY: "The model is not ready",
    Reason.FORBIDDEN: "The caller may not do this",
    Reason.BACKEND_MISSING: "No backend can serve this endpoint",
    Reason.COLD_START_FULL: "Too many requests wait for the backend to start",
    Reason.BAD_ANSWER: "The model gave an answer that cannot be used",
    Reason.MODEL_UNREACHABLE: "The model cannot be reached",
    Reason.MODEL_FAILED: "The model failed",
    Reason.BATCH_FAILED: "The batch that held the request failed",
    Reason.SLOW_READER: "The client read its answer too slowly",
    Reason.CLIENT_GONE: "The client went away before its answer",
    Reason.INTERNAL: "An unexpected error in Penstock",
}

MODEL_REASONS = frozenset(
    reason.value.encode()
    for reason in (
        Reason.BAD_JSON,
        Reason.BAD_MEDIA_TYPE,
        Reason.BAD_SHAPE,
        Reason.MISSING_ARGUMENTS,
        Reason.NO_ROUTE,
        Reason.METHOD_NOT_ALLOWED,
        Reason.NOT_READY,
        Reason.BAD_ANSWER,
        Reason.MODEL_FAILED,
        Reason.INTERNAL,
    )
)
"""Reasons that a model server may give for an answer of its own: the SDK's."""
MODEL_ANSWER = "model_answer"
"""In metrics and logs, the reason of an error that a model server answered without one of these."""

PROBLEM_TYPE = "https://penstock.dev/errors/"


_origin = {"backend": "", "pod": ""}


def set_origin(*, backend: str, pod: str) -> None:
    """Name who answers: all problems of this process say so from now on, where `response` is not told."""
    _origin.update(backend=backend, pod=pod)


class DocumentError(ValueError):
    """A document that cannot be used; the message says what was expected, what was found and where."""


class PenstockError(Exception):
    """An error answer of Penstock's own.

    Args:
        reason: the reason word.
        detail: one sentence: what was expected, what was found, where.
        status: the HTTP status, where it differs from the reason's usual one (`overflowStatus`).
        retry_after: seconds until a retry makes sense; sent as `Retry-After`, rounded up, at least 1. 503 and
            429 always carry one (1 where not given).
        not_admitted: the request was surely not executed, so that a router may try another pod.
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
        self.status = STATUS[reason] if status is None else status
        self.retry_after = retry_after
        self.not_admitted = not_admitted
        self.extra = extra
        self.headers = headers

    def response(self, *, request_id: str = "", backend: str = "", pod: str = "") -> Response:
        """The problem+json answer (RFC 9457).

        Args:
            request_id: the request's `x-request-id`; left out when empty, as the next two.
            backend: name of the backend that answers; by default that of the process (`set_origin`).
            pod: name of the pod that answers; likewise.
        """
        document: dict[str, Any] = {
            "type": PROBLEM_TYPE + self.reason.value,
            "title": TITLE[self.reason],
            "status": self.status,
            "detail": self.detail,
            "reason": self.reason.value,
            "error": self.detail,  # where clients of Triton and KServe look
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
            fields.append((NOT_ADMITTED, b"1"))
        if request_id:
            fields.append((REQUEST_ID, request_id.encode()))
        try:
            body = msgspec.json.encode(document)
        except UnicodeEncodeError:  # a lone surrogate in what was found, which msgspec does not write
            body = json.dumps(document).encode()
        return Response(status=self.status, headers=tuple(fields), body=body)


def bad_timeout(headers: Headers) -> PenstockError:
    """The error of a request whose `x-penstock-timeout-ms` cannot be read.

    Args:
        headers: its fields.
    """
    found = (get(headers, TIMEOUT_MS) or b"")[:64].decode("latin-1")
    expected = f"expected {TIMEOUT_MS.decode()} in whole milliseconds"
    return PenstockError(Reason.BAD_REQUEST, f"{expected}, found {found!r}")
