"""Errors for requests that are rejected or dropped. Pure.

A rejection must be cheap: all load beyond the model's capacity is rejected, on the core that the model's
batches need as well. Usually the error of one request also holds for the next ones, until the queue gets
shorter: `RejectionCache` keeps it, so that a request's head is enough to reject it.
"""

from __future__ import annotations

from penstock_sidecar.estimators.throughput import MAX_RETRY_AFTER
from penstock_wire.errors import PenstockError, Reason

_MAX_KEPT = 1024


class RejectionCache:
    """The rejections that hold for the next requests as well.

    NB: while nothing leaves the queue and no batch ends, more arrivals, or an overdue batch, can only delay
    the predicted answers of a class. Answers come earlier if fewer requests arrive than were expected:
    therefore a rejection is cached only if the request is late even then, and not for long. Answers may also
    come earlier when samples of the latency model expire, 10 s after their batch: then a cached rejection is
    too strict until the next batch ends.

    Attributes:
        epoch: that of the queue and the pace when the rejections were made: it changes when the queue gets
            shorter, and with each batch that was learned from.
        free: slots that were free then; -1 while no batch may begin.
        full: the error of a request for which there is no room, by its items.
        late: by class: the earliest answer (in the clock's time) to a request without a share, whatever its
            items and level; until when this holds for arriving requests; and the error of a request with an
            earlier deadline.
    """

    __slots__ = ("epoch", "free", "full", "late")

    def __init__(self) -> None:
        self.epoch = -1
        self.free = 0
        self.full: dict[int, PenstockError] = {}
        self.late: dict[str, tuple[float, float, PenstockError]] = {}

    def clear(self) -> None:
        """Forget all rejections, since the conditions have changed."""
        if self.full:
            self.full.clear()
        if self.late:
            self.late.clear()

    def keep(self, cls: str, finish: float, until: float, error: PenstockError) -> None:
        """Keep the error of requests that would be answered too late.

        Args:
            cls: their class.
            finish: the earliest answer to a request of the class that arrives before `until`.
            until: see `finish`.
            error: the error of a request with a deadline before `finish`.
        """
        if cls in self.late or len(self.late) < _MAX_KEPT:
            self.late[cls] = finish, until, error

    def keep_full(self, size: int, error: PenstockError) -> None:
        """Keep the error of a request of `size` items for which there is no room."""
        if len(self.full) < _MAX_KEPT:
            self.full[size] = error


def whose(seconds: float, default_ms: int) -> str:
    """Return the origin of a request's timeout, as text.

    Args:
        seconds: the timeout.
        default_ms: the policy's `defaultTimeout`.
    """
    chosen = seconds < default_ms / 1000 - 0.0005  # a router rounds to milliseconds
    asked = "the request's x-penstock-timeout-ms: the client's time, or the endpoint's"
    return asked if chosen else "the backend's defaultTimeout"


def late_on_arrival() -> PenstockError:
    """Return the error of a request with a deadline that had passed on arrival."""
    return PenstockError(Reason.DEADLINE, "the deadline had passed on arrival", status=503, not_admitted=True)


def unmeetable(finish: float, allowed: float) -> PenstockError:
    """Return the error of a request with a deadline for which the queue is too long.

    Args:
        finish: seconds until it would be answered.
        allowed: seconds until its deadline.
    """
    return PenstockError(
        Reason.DEADLINE,
        f"expected an answer within {allowed:.3f} s, predicted one after {finish:.3f} s",
        status=503,
        retry_after=min(MAX_RETRY_AFTER, finish - allowed),
        not_admitted=True,
    )


def full(detail: str, *, retry_after: float) -> PenstockError:
    """Return the error of a request for which there is no room.

    Args:
        detail: the expected and the actual state, as text.
        retry_after: seconds until there may be room.
    """
    return PenstockError(Reason.QUEUE_FULL, detail, retry_after=retry_after, not_admitted=True)


def expired(waited: float) -> PenstockError:
    """Return the error of a request that expired while it waited."""
    return PenstockError(Reason.DEADLINE, f"the deadline passed after {waited:.3f} s in the queue")


def handed_back() -> PenstockError:
    """Return the error of a request that goes to another pod, which would begin it at once."""
    return PenstockError(Reason.MOVED, "the request was handed back before it began", not_admitted=True)


def dropped(waited: float, service: float) -> PenstockError:
    """Return the error of a request that could no longer be answered in time, while others could."""
    return PenstockError(
        Reason.DEADLINE,
        f"dropped after {waited:.3f} s in the queue: its batch takes {service:.3f} s and would be late",
    )


def no_grpc_port(path: str) -> PenstockError:
    """Refuse a gRPC call that only the model can answer."""
    expected = "expected a method of inference.GRPCInferenceService, since the backend has no model.grpcPort"
    return PenstockError(Reason.BAD_REQUEST, f"{expected}, found {path}", status=501)
