"""Turns an answer of the model, or its absence, into one for a client: fields, reasons, errors. Pure."""

from __future__ import annotations

from penstock_sidecar.queue.request import Outcome
from penstock_wire.errors import MODEL_ANSWER, MODEL_REASONS, PenstockError, Reason
from penstock_wire.headers import NOT_ADMITTED, PREFIX, REASON, REQUEST_ID, Headers, get
from penstock_wire.http import (
    TELLING_SECONDS,
    AnswerUnreadable,
    ConnectFailed,
    ConnectionLost,
    ConnectTimeout,
    NotAdmitted,
    RequestNotTaken,
    UpstreamAnswer,
    UpstreamError,
    UpstreamTimeout,
)
from penstock_wire.http.messages import Response
from penstock_wire.http.server import head as heads

_BUSY = frozenset({429, 503, 504})
"""Statuses of an overloaded model; clients act upon them."""


MAX_SHARED = 256
"""Maximum number of answer heads that are remembered, each of at most `MAX_SHARED_SIZE` bytes of memory."""
MAX_SHARED_SIZE = 4096


class StreamCompleted(Response):
    """An answer that all clients have already received."""

    __slots__ = ()


def admitted(answer: Response | UpstreamAnswer) -> bool:
    """Whether the model may have executed the request that it answers."""
    return answer.status != Reason.NOT_READY.status or get(answer.headers, NOT_ADMITTED) != b"1"


def not_admitted(answer: Response | UpstreamAnswer) -> NotAdmitted:
    """Make the error for an answer that is not `admitted`.

    The SDK sends that answer while its model loads: after a restart, before the sidecar has detected that
    the model is not ready.
    """
    text = f"the model answered {answer.status} and that it executed nothing"
    return NotAdmitted(text, _retry_after(answer.headers))


def _retry_after(headers: Headers) -> float | None:
    """Seconds of an answer's `Retry-After`; None if it has none, or a date."""
    asked = get(headers, b"retry-after")
    return float(asked) if asked is not None and asked.isdigit() and len(asked) < 6 else None


def from_model(headers: Headers) -> Headers:
    """Return an answer's fields without those that only Penstock may set, and without the batch's request id.

    The reason in a problem document of the SDK stays, since the SDK is a part of Penstock.
    """
    return tuple(
        [
            field
            for field in headers
            if field[0] != REQUEST_ID
            and (not field[0].startswith(PREFIX) or (field[0] == REASON and field[1] in MODEL_REASONS))
        ]
    )


class SharedFields:
    """Makes equal header fields of answers the very same object, which is cheaper to send."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Headers, Headers] = {}

    def of(self, headers: Headers) -> Headers:
        """Return the remembered fields that are equal to these, or these if they are new.

        Args:
            headers: the fields.
        """
        known = self._known.get(headers)
        if known is not None:
            return known
        if heads.size("", headers) <= MAX_SHARED_SIZE:
            if len(self._known) >= MAX_SHARED:
                self._known.clear()
            self._known[headers] = headers
        return headers


def model_reason(status: int, headers: Headers) -> str:
    """The reason of a model's error answer, for metrics and logs: the SDK's, or `MODEL_ANSWER`.

    Args:
        status: status of the model's answer.
        headers: its header fields.
    """
    if status < 400:
        return ""
    reason = get(headers, REASON)
    return reason.decode() if reason in MODEL_REASONS else MODEL_ANSWER


def unresolved(outcome: Outcome, requests: int) -> PenstockError:
    """Make the error for a request that failed together with others if the culprit is unknown.

    It repeats nothing of the model's answer except the status and `Retry-After` of an overloaded model.

    Args:
        outcome: the outcome of the batch.
        requests: number of requests in the batch.
    """
    if isinstance(outcome, PenstockError):
        # NB: the original detail may quote data of other clients.
        detail = f"the model's answer to a batch of {requests} requests cannot be used; the sidecar logs why"
        return PenstockError(outcome.reason, detail)
    status, retry_after = None, None
    if outcome.status in _BUSY:
        status = outcome.status
        retry_after = _retry_after(outcome.headers)
    return PenstockError(
        Reason.BATCH_FAILED,
        f"the model answered {outcome.status} to a batch of {requests} requests; it may have been executed",
        status=status,
        retry_after=retry_after,
    )


def failure(error: UpstreamError, *, executed: bool, whose: str = "") -> PenstockError:
    """Make the error for a client if the model gave no answer.

    Args:
        error: the failure.
        executed: other parts of the same request may have reached the model before.
        whose: for a timeout, which time limit was over.
    """
    if isinstance(error, ConnectTimeout) and error.seconds < TELLING_SECONDS:
        detail = f"the model: {error}" + (f" ({whose})" if whose else "")
        return PenstockError(Reason.DEADLINE, detail, not_admitted=not executed)
    if isinstance(error, ConnectFailed):
        return PenstockError(Reason.MODEL_UNREACHABLE, str(error), not_admitted=not executed)
    if isinstance(error, NotAdmitted):
        return PenstockError(
            Reason.NOT_READY,
            str(error),
            retry_after=error.retry_after,
            not_admitted=not executed,
        )
    if isinstance(error, UpstreamTimeout):
        return PenstockError(Reason.DEADLINE, f"the model: {error}" + (f" ({whose})" if whose else ""))
    if isinstance(error, AnswerUnreadable):
        return PenstockError(Reason.BAD_ANSWER, f"the model: {error}")
    if isinstance(error, RequestNotTaken) and not executed:  # another pod's model may take it
        return PenstockError(Reason.MOVED, f"the model: {error}", not_admitted=True)
    if isinstance(error, ConnectionLost):
        return PenstockError(Reason.MODEL_UNREACHABLE, str(error))
    return PenstockError(Reason.BAD_REQUEST, str(error))
