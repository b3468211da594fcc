"""What one is told that is not served, on arrival or later.

Pure.
"""

from __future__ import annotations

from penstock_wire.errors import PenstockError, Reason

MAX_RETRY_AFTER = 60.0


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
