"""What follows a try that was surely not executed: the whole table."""

from __future__ import annotations

import pytest

from penstock_router.forwarding.retry import (
    CONNECT_FAILED,
    CONNECTION_CLOSED,
    MAX_MOVES,
    GiveUp,
    Hold,
    Retry,
    Tries,
    Unexecuted,
    next_step,
)
from penstock_wire.errors import Reason
from penstock_wire.http import Response

MOST = 2
REFUSAL = Response(503, ())
FAILED, CLOSED = Unexecuted(CONNECT_FAILED), Unexecuted(CONNECTION_CLOSED)
FULL, MOVED, DRAINING, UNREADY, OTHER = (
    Unexecuted(reason, REFUSAL)
    for reason in (
        *(Reason.QUEUE_FULL.value, Reason.MOVED.value, Reason.DRAINING.value),
        *(Reason.MODEL_UNREACHABLE.value, "other"),
    )
)
GIVE_UP, COUNTED, FREE = "give up", "counted", "free"
FOR_ROOM, FOR_POD = "for room", "for a pod"


def _word(step: Retry | Hold | GiveUp) -> str:
    if isinstance(step, GiveUp):
        return GIVE_UP
    if isinstance(step, Hold):
        return FOR_ROOM if step.for_room else FOR_POD
    return COUNTED if step.counts else FREE


@pytest.mark.parametrize("outcome", [FAILED, CLOSED, FULL, MOVED, DRAINING, UNREADY, OTHER])
def test_what_cannot_be_sent_again_is_given_up(outcome: Unexecuted) -> None:
    assert _word(next_step(outcome, Tries(MOST), resendable=False, room=True, holdable=True)) == GIVE_UP


@pytest.mark.parametrize(
    ("outcome", "count", "moves", "room", "holdable", "step"),
    [
        (FULL, MOST, 0, True, False, FREE),
        (FULL, 0, 0, False, False, FOR_ROOM),
        (MOVED, MOST, MAX_MOVES, False, False, FREE),
        (MOVED, 0, MAX_MOVES + 1, False, True, COUNTED),
        (MOVED, MOST, MAX_MOVES + 1, False, True, GIVE_UP),
        *[(outcome, MOST, 0, False, True, FOR_POD) for outcome in (FAILED, DRAINING, UNREADY)],
        *[(outcome, MOST - 1, 0, True, False, COUNTED) for outcome in (FAILED, DRAINING, UNREADY)],
        *[(outcome, MOST, 0, True, False, GIVE_UP) for outcome in (FAILED, DRAINING, UNREADY)],
        *[(outcome, MOST - 1, 0, False, True, COUNTED) for outcome in (CLOSED, OTHER)],
        *[(outcome, MOST, 0, True, True, GIVE_UP) for outcome in (CLOSED, OTHER)],
    ],
)
def test_what_follows_a_try(
    outcome: Unexecuted, count: int, moves: int, room: bool, holdable: bool, step: str
) -> None:
    tries = Tries(MOST)
    tries.count, tries.moves = count, moves
    assert _word(next_step(outcome, tries, resendable=True, room=room, holdable=holdable)) == step
