"""Whom to take in: when an arriving request would be answered, and what one is told that is not served.

Pure.
"""

from __future__ import annotations

from penstock_wire.errors import PenstockError, Reason

MAX_RETRY_AFTER = 60.0


def predicted_finish(*, ahead: int, free: int, slots: int, service: float, first_free: float) -> float:
    """Seconds until a request that arrives now is answered.

    Batches leave the slots evenly spread, `service / slots` apart. What a free slot takes at once does not
    wait.

    Args:
        ahead: batches that go before the one that it will be in.
        free: slots that are free.
        slots: slots.
        service: seconds that a full batch takes.
        first_free: seconds until the next slot falls free, where none is free now.
    """
    waits_for = ahead - free
    if waits_for < 0:
        return service
    start = waits_for * service / max(1, slots)
    return start + service + (0.0 if free else first_free)


def late_on_arrival() -> PenstockError:
    """The deadline had passed when the request came."""
    return PenstockError(Reason.DEADLINE, "the deadline had passed on arrival", status=503, not_admitted=True)


def unmeetable(finish: float, allowed: float) -> PenstockError:
    """The queue is too long for the request's deadline.

    Args:
        finish: seconds until it would be answered.
        allowed: seconds until its deadline.
    """
    return PenstockError(
        Reason.DEADLINE,
        f"expected an answer within {allowed:.3f} s, predicted is {finish:.3f} s",
        status=503,
        retry_after=min(MAX_RETRY_AFTER, finish - allowed),
        not_admitted=True,
    )


def full(detail: str, *, status: int, retry_after: float) -> PenstockError:
    """There is no room.

    Args:
        detail: what was expected, what was found.
        status: the policy's `overflowStatus`.
        retry_after: seconds until there may be room.
    """
    return PenstockError(Reason.QUEUE_FULL, detail, status=status, retry_after=retry_after, not_admitted=True)


def expired(waited: float) -> PenstockError:
    """Its time was over while it waited."""
    return PenstockError(Reason.DEADLINE, f"the deadline passed after {waited:.3f} s, in the queue")


def dropped(waited: float, service: float) -> PenstockError:
    """It could not have been answered in time any more, and others could."""
    return PenstockError(
        Reason.DEADLINE,
        f"left out after {waited:.3f} s in the queue: its batch of {service:.3f} s would be late",
    )
