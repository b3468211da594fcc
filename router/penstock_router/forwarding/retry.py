"""What follows a try that was surely not executed: another try, the hold, or the end."""

from __future__ import annotations

import dataclasses
from typing import Final

from penstock_router.pods.pod import UNREADY, Pod
from penstock_wire.errors import Reason
from penstock_wire.http import Response

MAX_MOVES: Final = 4
"""A request that pods have handed back more often than this is sent over HTTP/1.1, where pods do not hand
requests back: it stays in a queue."""
CONNECT_FAILED, CONNECTION_CLOSED = "connect_failed", "connection_closed"
"""Why a further try was made, beside the sidecars' own reasons."""


class Unexecuted:
    """A try that was surely not executed.

    Args:
        reason: the reason, one word.
        answer: the sidecar's refusal; None if no connection could be made.
    """

    __slots__ = ("answer", "detail", "reason")

    def __init__(self, reason: str, answer: Response | None = None, detail: str = "") -> None:
        self.reason = reason
        self.answer = answer
        self.detail = detail

    @property
    def is_away(self) -> bool:
        """Whether no connection could be made, or the pod has no model that takes requests now."""
        return self.reason == CONNECT_FAILED or (self.answer is not None and self.reason in UNREADY)

    @property
    def is_draining(self) -> bool:
        """Whether the pod refused because it shuts down."""
        return self.answer is not None and self.reason == Reason.DRAINING.value

    @property
    def is_load(self) -> bool:
        """Whether the pod refused for what it has to do: the same pod again would make no sense."""
        return self.answer is not None and not self.is_away and not self.is_draining

    @property
    def is_moved(self) -> bool:
        """Whether the pod handed the request back, since another pod would begin it at once."""
        return self.answer is not None and self.reason == Reason.MOVED.value

    @property
    def is_for_room(self) -> bool:
        """Whether the pod's queue is full: it, or another, may have room in a moment."""
        return self.answer is not None and self.reason == Reason.QUEUE_FULL.value


@dataclasses.dataclass(frozen=True, slots=True)
class Retry:
    """Ask another pod.

    Args:
        counts: whether it is one of the endpoint's `retries`.
    """

    counts: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Hold:
    """Wait in the router, which may be over at once.

    Args:
        for_room: whether it waits for room in a pod that can be reached, and not for such a pod.
    """

    for_room: bool


class GiveUp:
    """Answer with the last refusal, or that no pod was reached."""


Step = Retry | Hold | GiveUp


class Tries:
    """The tries of one request so far, none of which was executed."""

    __slots__ = ("again", "asked", "count", "due", "for_room", "full", "last", "moves", "tried")

    def __init__(self) -> None:
        self.count = 0
        """Those that count against the endpoint's `retries`."""
        self.moves = 0
        """How often a pod has handed the request back."""
        self.tried: list[Pod] = []
        self.asked: list[Pod] = []
        """The pods that refused for lack of room since it was last held."""
        self.last: Unexecuted | None = None
        self.due: tuple[str, Unexecuted] | None = None
        """The backend and outcome of the last try, until a further try begins and is counted."""
        self.full: Unexecuted | None = None
        """The last refusal for lack of room."""
        self.for_room = False
        """Whether the request must wait for room."""
        self.again = False
        """Whether it was held, or refused by a pod, before."""

    @property
    def without(self) -> list[Pod]:
        """The pods that are not to be asked."""
        return [*self.tried, *self.asked]

    def take(self, step: Step, outcome: Unexecuted, pod: Pod, backend: str) -> None:
        """Record a try and the step that follows it."""
        self.last = outcome
        if isinstance(step, GiveUp):
            return
        self.for_room = isinstance(step, Hold) and step.for_room
        if not self.for_room:
            self.due = (backend, outcome)
        if outcome.is_for_room:
            self.full = outcome
            self.asked.append(pod)
        elif isinstance(step, Retry) and not step.counts:
            self.moves += 1
            self.asked.clear()  # one of them may have room now, hence the hand-back
        else:
            if isinstance(step, Retry):
                self.count += 1
            self.tried.append(pod)
            self.again = self.again or (outcome.answer is not None and not outcome.is_away)


def next_step(
    outcome: Unexecuted, tries: Tries, *, most: int, resendable: bool, room: bool, holdable: bool
) -> Step:
    """Decide what follows a try.

    Args:
        tries: those before it.
        most: the endpoint's `retries`, as they are now.
        resendable: whether the request can be sent again.
        room: whether a pod that has not refused it may have room.
        holdable: whether there is time and room to hold it.
    """
    if not resendable:
        return GiveUp()
    if outcome.is_for_room:
        return Retry(counts=False) if room else Hold(for_room=True)
    if outcome.is_moved and tries.moves <= MAX_MOVES:
        return Retry(counts=False)
    if holdable and (outcome.is_away or outcome.is_draining):
        return Hold(for_room=False)  # as if there were no pod
    return Retry(counts=True) if tries.count < most else GiveUp()
