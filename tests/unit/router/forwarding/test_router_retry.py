"""What follows a try that was surely not executed: the whole table."""

from __future__ import annotations

import random

import pytest

from penstock_router.endpoints import EndpointState
from penstock_router.forwarding.request import ProxiedRequest
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
from penstock_router.pods.endpoint_slices import Address
from penstock_router.pods.pool import Pods
from penstock_wire.control.router_settings import Endpoint
from penstock_wire.errors import Reason
from penstock_wire.http import Request, Response
from tests.support.worlds.router_world import HeldExchange

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
    found = next_step(outcome, Tries(), most=MOST, resendable=False, room=True, holdable=True)
    assert _word(found) == GIVE_UP


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
    tries = Tries()
    tries.count, tries.moves = count, moves
    found = next_step(outcome, tries, most=MOST, resendable=True, room=room, holdable=holdable)
    assert _word(found) == step


async def test_a_change_of_retries_reaches_requests_that_are_held_or_were_tried() -> None:
    """The endpoint's `retries` hold as they are at the moment of the decision."""
    pods = Pods(clock=lambda: 0.0, random_source=random.Random(1), changed=lambda: None)
    pods.set_slices({"b": (Address(host="10.0.0.1", port=1),)})
    state = EndpointState(
        Endpoint(name="e", retries=2),
        pods=pods,
        clock=lambda: 0.0,
        random_source=random.Random(1),
        on_held=lambda: None,
    )
    request = Request("POST", "/p", (), b"")
    proxied = ProxiedRequest(HeldExchange(request, []), state, request, (), b"id", 1, 0.0, None, b"")
    (pod,) = pods.ready("b")
    assert _word(proxied.step_after(CLOSED, pod, pods)) == COUNTED
    state.update(Endpoint(name="e", retries=1))
    assert _word(proxied.step_after(CLOSED, pod, pods)) == GIVE_UP
