"""What an answer of the model, or its absence, means to a client: fields, reasons, errors. Pure."""

from __future__ import annotations

from penstock_sidecar.queue.request import Outcome
from penstock_wire.errors import MODEL_ANSWER, MODEL_REASONS, PenstockError, Reason
from penstock_wire.headers import NOT_ADMITTED, PREFIX, REASON, REQUEST_ID, Headers, get
from penstock_wire.http import (
    AnswerUnreadable,
    ConnectFailed,
    ConnectionLost,
    NotAdmitted,
    UpstreamAnswer,
    UpstreamError,
    UpstreamTimeout,
)
from penstock_wire.http.messages import Response
from penstock_wire.http.server import head as heads

_BUSY = frozenset({429, 503, 504})
"""Statuses of a model that has too much to do, which clients act upon."""


MAX_SHARED = 256
"""Heads of answers whose fields are remembered, each of at most `MAX_SHARED_SIZE` bytes of memory."""
MAX_SHARED_SIZE = 4096


class StreamCompleted(Response):
    """An answer that all have had already."""

    __slots__ = ()


def admitted(answer: Response | UpstreamAnswer) -> bool:
    """Whether the model may have executed what it answers."""
    return answer.status != Reason.NOT_READY.status or get(answer.headers, NOT_ADMITTED) != b"1"


def not_admitted(answer: Response | UpstreamAnswer) -> NotAdmitted:
    """What an answer that is not `admitted` is: no answer. The SDK sends such while its model loads.

    That is so after a restart, before the pod is known not to be ready.
    """
    text = f"the model answered {answer.status} and that it executed nothing"
    return NotAdmitted(text, _retry_after(answer.headers))


def _retry_after(headers: Headers) -> float | None:
    """Seconds, where a model says in how many it has less to do."""
    asked = get(headers, b"retry-after")
    return float(asked) if asked is not None and asked.isdigit() and len(asked) < 6 else None


def from_model(headers: Headers) -> Headers:
    """An answer's fields without those that only Penstock may set, and the batch's own request ids.

    The reason of a problem of the SDK, which is Penstock's too, stays.
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
    """Gives equal fields of answers as the very same object, which is cheaper to send."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Headers, Headers] = {}

    def of(self, headers: Headers) -> Headers:
        """Fields that are equal to these; these themselves where they are new.

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
    """Why the model answered so, for metrics and logs: the SDK's reason, or that another server's is its own.

    Args:
        status: of the model's answer.
        headers: its fields.
    """
    if status < 400:
        return ""
    said = get(headers, REASON)
    return said.decode() if said in MODEL_REASONS else MODEL_ANSWER


def unresolved(said: Outcome, requests: int) -> PenstockError:
    """The answer for a request that failed together with others, where it is not known whose fault that was.

    It holds nothing of what the model answered but the status and `Retry-After` of a model that has too much
    to do.

    Args:
        said: what the batch got.
        requests: requests in the batch.
    """
    if isinstance(said, PenstockError):
        # NB: the detail of what was found may quote what others have sent.
        detail = f"the model's answer to a batch of {requests} requests cannot be used; the sidecar logs why"
        return PenstockError(said.reason, detail)
    status, retry_after = None, None
    if said.status in _BUSY:
        status = said.status
        retry_after = _retry_after(said.headers)
    return PenstockError(
        Reason.BATCH_FAILED,
        f"the model answered {said.status} to a batch of {requests} requests; it may have been executed",
        status=status,
        retry_after=retry_after,
    )


def failure(error: UpstreamError, *, executed: bool, whose: str = "") -> PenstockError:
    """The error for a client where the model gave no answer.

    Args:
        error: what happened.
        executed: other parts of the same request may have reached the model before.
        whose: whose time was over, where it was.
    """
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
    if isinstance(error, ConnectionLost):
        return PenstockError(Reason.MODEL_UNREACHABLE, str(error))
    return PenstockError(Reason.BAD_REQUEST, str(error))
