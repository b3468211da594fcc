"""Predicts when an arriving request would be answered, by the queue's real pace, not only the model's time.

A turn of a slot lasts from the cut of one batch to the cut of the next in the same slot. It is the batch's
time with the model and everything between: joining and splitting, timers that fire late, a process that
did not get its core. A request that is `n` turns from its own batch is answered after

    first + n/C · (a + b·W + extra) + 2 · spread · √(n/C)    until its batch is cut, and
    L(w) + extra                                             until that is answered

- `first`: until the next batch is cut, by L + extra of the batches that run;
- `a + b·W`: the median time of a batch (`latency_model`), with W the size that full batches have in fact;
- `extra`, `spread`: mean, and mean deviation from it, of the time that turns took beyond that median.

Its own batch holds `w` items. If whole turns come before it, it is assumed to be full. If the next cut takes
the request, the batch holds the items that wait now and those that arrive until then. Counts of arrivals vary
by their square roots; a p80 is used, as for the batches' times (docs/adr/0005-predict-by-p80.md):

    w = min(W, waiting + λ · first + 0.84 · √(λ · first))

- `waiting`: items in the queue, including the request's own, whatever their order;
- `λ`: items that arrived in a second, over the last dozen cuts, including those refused as late.

Chance evens out over several turns: therefore they use the median and √n, and only the request's own batch
uses the cautious L(w). A turn is measured only if work waited at its end: otherwise its slot was free for
lack of work. All of these measurements expire like the samples of the curve, and an outlier moves them
little: one slow start must not refuse all arrivals (see `dispatcher` for the same of L).

Each arrival costs O(1), each batch O(log C). The time is an argument.
"""

from __future__ import annotations

import heapq
import math
from collections import deque

from penstock_sidecar.estimators.latency_model import HORIZON, LatencyModel

_WEIGHT = 1 / 16
_OUTLIER = 3.0
"""Maximum deviation that a turn counts with, in mean deviations."""
_LEAST_SPREAD = 0.02
"""Minimum of `spread` for that maximum, as a share of the median."""
_ARRIVALS_WEIGHT = 1 / 8
"""Weight of a cut in the rate of arrivals: a rate may double within a few batches."""
_IDLE = 2.0
"""Maximum time between two cuts that counts, in times of a batch.

The rest of it lacked work: a rate that a pause has lowered would not predict the arrivals after the pause.
"""
_P80 = 0.84
"""Standard deviations above the mean that four of five values of a normal distribution stay below."""
_CAUTION = 2.0
"""Mean deviations that are added to a forecast: 95 % of turns with normal deviations last no longer."""


class SlotCycle:
    """A slot's time with one batch.

    Args:
        began: when the batch was cut.
        cls: the class of its requests.
        work: its work, by the latency model.
        due: when it is expected to end, and the next to be cut.
    """

    __slots__ = ("began", "cls", "due", "over", "work")

    def __init__(self, began: float, cls: str, work: float, due: float) -> None:
        self.began = began
        self.cls = cls
        self.work = work
        self.due = due
        self.over = False

    def __lt__(self, other: SlotCycle) -> bool:
        return self.due < other.due


class WaitEstimator:
    """Learns from the turns of the slots.

    Args:
        latency_model: how long batches take with the model.

    `extra` and `spread` are as above, in seconds. `fill` is the share of the possible items that a batch
    holds if enough items wait: less than 1 if requests of many items leave room; `load` is the work of such a
    batch, as a share of that of as many items of the usual cost. `refused` counts the items
    that were refused as late since the last cut.
    """

    __slots__ = (
        "_arrivals",
        "_cut_at",
        "_filled",
        "_latency_model",
        "_running",
        "_seen",
        "_span",
        "_vacated",
        "extra",
        "fill",
        "load",
        "refused",
        "spread",
    )

    def __init__(self, latency_model: LatencyModel) -> None:
        self._latency_model = latency_model
        self._running: list[SlotCycle] = []
        self._vacated: deque[SlotCycle] = deque()
        self._seen = -math.inf
        self.extra = self.spread = 0.0
        self.fill = self.load = 1.0
        self._filled = -math.inf  # when a batch last changed them
        # Items that arrived, and the seconds in which they did; older ones have less weight.
        self._arrivals = self._span = 0.0
        self._cut_at = -math.inf
        self.refused = 0

    def begin(
        self,
        now: float,
        cls: str,
        items: int,
        *,
        possible: int,
        waited: int,
        came: int,
        work: float | None = None,
    ) -> SlotCycle:
        """Begin a turn with the batch that was cut.

        Args:
            now: the time.
            cls: the class of its requests.
            items: its items.
            possible: the items that it could have held.
            waited: items of its line before the cut.
            came: items of all lines that were admitted since the last cut.
            work: its work, by the latency model; None if that is the number of items.
        """
        if self._vacated:
            self._observe(now, self._vacated.popleft())
        if now - self._filled > HORIZON:
            self.fill = self.load = 1.0
        # An item of more work than a batch may have goes alone, and says nothing of what batches hold.
        beyond = items == 1 < possible and work is not None and work > possible
        if waited >= possible and not beyond:
            self._filled = now
            self.fill += _WEIGHT * (items / possible - self.fill)
            self.load += _WEIGHT * ((1.0 if work is None else work / possible) - self.load)
        work = items if work is None else work
        service = self._latency_model.predict(now, cls, work) or 0.0
        self._count(now, came, service)
        turn = SlotCycle(now, cls, work, now + service + max(0.0, self.extra))
        heapq.heappush(self._running, turn)
        return turn

    def end(self, turn: SlotCycle, *, waiting: bool) -> None:
        """Record that the slot of a batch has fallen free.

        Args:
            turn: the batch's turn.
            waiting: whether work waits for the slot.
        """
        turn.over = True
        while self._running and self._running[0].over:
            heapq.heappop(self._running)
        if waiting:
            self._vacated.append(turn)

    @property
    def next_release(self) -> float:
        """When the next slot is expected to fall free, in the clock's time; infinite if no batch runs."""
        return self._running[0].due if self._running else math.inf

    def rest(self) -> None:
        """Discard the ended turns: slots stay free for now, because requests are to wait or none do."""
        self._vacated.clear()

    def finish(
        self,
        now: float,
        cls: str,
        size: int,
        *,
        items: int,
        waiting: int,
        lines: int,
        free: int,
        slots: int,
        until: float = 1.0,
        each: float = 1.0,
        beside: float = 0.0,
        most: float = math.inf,
    ) -> float | None:
        """Return the seconds until a request that arrives now is answered.

        None if the time of its class is unknown, and if a free slot takes it at once.

        Args:
            now: the time.
            cls: its class.
            size: maximum items of a batch.
            items: items that go before its own last one.
            waiting: items in the queue, including its own.
            lines: lines that the items are in, each of which takes at least a batch.
            free: slots that are free.
            slots: all slots.
            until: the share of the time until the next cut for which arrivals count. With less than 1 the
                result is a lower bound, which holds for all requests that arrive in the other part of this
                time, as long as nothing leaves the queue.
            each: work of an item of its batch.
            beside: work of its batch beside that.
            most: maximum work of its batch.
        """
        ahead = max(items // max(1, int(size * self.fill)), lines - 1) - free
        if ahead < 0:
            return None
        running = self._running
        own = size
        if not ahead and not free and running and waiting < size and self._span > 0.0:
            coming = self._arrivals / self._span * until * max(0.0, running[0].due - now)
            own = min(size, math.ceil(waiting + coming + _P80 * math.sqrt(coming)))
        service = self._latency_model.predict(now, cls, min(most, own * each + beside))
        if service is None:
            return None
        if now - self._seen > HORIZON:
            self.extra = self.spread = 0.0
        start = max(0.0, running[0].due - now) if running else 0.0
        if ahead or not running:
            turn = max(0.0, (self._latency_model.middle(now, cls, size * self.load) or service) + self.extra)
            turns = ahead / max(1, slots)
            start += turns * turn + _CAUTION * self.spread * math.sqrt(turns)
            if not running:
                start += turn
        return start + service + max(0.0, self.extra)

    def _count(self, now: float, came: int, service: float) -> None:
        """Learn the rate of arrivals from the items that came between two cuts.

        Args:
            now: the time of the second cut.
            came: items that were admitted.
            service: seconds that its batch takes; 0 if unknown.
        """
        span = now - self._cut_at
        came += self.refused
        self._cut_at, self.refused = now, 0
        if span > HORIZON:
            self._arrivals = self._span = 0.0
            return
        if service > 0.0 and span > _IDLE * service:
            span = _IDLE * service
        self._arrivals += came - _ARRIVALS_WEIGHT * self._arrivals
        self._span += span - _ARRIVALS_WEIGHT * self._span

    def _observe(self, now: float, turn: SlotCycle) -> None:
        middle = self._latency_model.middle(now, turn.cls, turn.work)
        if middle is None:
            return
        if now - self._seen > HORIZON:
            self.extra = self.spread = 0.0
        self._seen = now
        most = _OUTLIER * max(self.spread, _LEAST_SPREAD * middle)
        off = now - turn.began - middle - self.extra
        off = min(most, max(-most, off))
        self.extra += _WEIGHT * off
        self.spread += _WEIGHT * (abs(off) - self.spread)
