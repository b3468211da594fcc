"""When an arriving request would be answered, by the queue's real pace and not by the model's time alone.

A turn of a slot lasts from the cut of one batch to the cut of the next in the same slot. It is the batch's
time with the model and whatever lies between: joining and splitting, timers that fire late, a process that
did not get its core. A request that is `n` turns from its own batch is answered after

    first + n/C · (a + b·W + extra) + 2 · spread · √(n/C)    until its batch is cut, and
    L(w) + extra                                             until that is answered

- `first`: until the next slot is cut into again, by L + extra of what runs there;
- `a + b·W`: the middle of what a batch takes (`latency_model`), W the size that full batches have in fact;
- `extra`, `spread`: mean, and mean deviation from it, of what turns took beyond that middle.

Its own batch holds `w` items. Behind a whole turn it is taken to be full. Where the next cut takes the
request, the batch holds what waits by now, and what comes until then: arrivals are counts that vary by their
roots, of which a p80 is taken as of the batches' times (docs/adr/0005-predict-by-p80.md),

    w = min(W, waiting + λ · first + 0.84 · √(λ · first))

- `waiting`: items in the queue, the request's own included, whatever their order;
- `λ`: items that came in a second, over the last dozen cuts: those that were refused as late, too.

Chance evens out over several turns, therefore the middle and √n there, and the cautious L(w) for one's own
batch alone. Only turns after which work waited at once are looked at: else a slot was free for want of work.
What is learned so expires like the samples of the curve do, and one outlier moves it by little: one slow
start must not refuse all that comes (see `dispatcher` for the same of L).

Each arrival costs O(1), each batch O(log C). The time is an argument.
"""

from __future__ import annotations

import heapq
import math
from collections import deque

from penstock_sidecar.estimators.latency_model import HORIZON, LatencyModel

_WEIGHT = 1 / 16
_OUTLIER = 3.0
"""A turn counts as no further off than so many mean deviations."""
_LEAST_SPREAD = 0.02
"""Of the middle: what differs by less is no deviation."""
_ARRIVALS_WEIGHT = 1 / 8
"""Of a cut, in the rate of arrivals: a rate may double within a few batches."""
_IDLE = 2.0
"""A time between two cuts counts as no longer than so many times what a batch takes. The rest of it lacked
work: a rate that a pause has lowered would not foresee what comes after it."""
_P80 = 0.84
"""Standard deviations that four of five values of a normal distribution keep below."""
_CAUTION = 2.0
"""Mean deviations by which a forecast is late: 95 % of turns with normal deviations last no longer."""


class SlotCycle:
    """A slot's time with one batch.

    Args:
        began: when the batch was cut.
        cls: the class of its requests.
        items: its items.
        due: when it is thought to end, and the next to be cut.
    """

    __slots__ = ("began", "cls", "due", "items", "over")

    def __init__(self, began: float, cls: str, items: int, due: float) -> None:
        self.began = began
        self.cls = cls
        self.items = items
        self.due = due
        self.over = False

    def __lt__(self, other: SlotCycle) -> bool:
        return self.due < other.due


class WaitEstimator:
    """Learns from the turns of the slots.

    Args:
        latency_model: how long batches take with the model.

    `extra` and `spread` as above, in seconds; `fill` is the share of the possible items that a batch holds
    for which enough items wait: less than 1 where requests of many items leave room; `refused` counts the
    items that were refused as late since the last cut.
    """

    __slots__ = (
        "_arrivals",
        "_cut_at",
        "_latency_model",
        "_running",
        "_seen",
        "_span",
        "_vacated",
        "extra",
        "fill",
        "refused",
        "spread",
    )

    def __init__(self, latency_model: LatencyModel) -> None:
        self._latency_model = latency_model
        self._running: list[SlotCycle] = []
        self._vacated: deque[SlotCycle] = deque()
        self._seen = -math.inf
        self.extra = self.spread = 0.0
        self.fill = 1.0
        # Items that came, and the seconds in which they did, both with less weight the older they are.
        self._arrivals = self._span = 0.0
        self._cut_at = -math.inf
        self.refused = 0

    def begin(self, now: float, cls: str, items: int, *, possible: int, waited: int, came: int) -> SlotCycle:
        """A batch was cut.

        Args:
            now: the time.
            cls: the class of its requests.
            items: its items.
            possible: what it could have held.
            waited: items of its line before the cut.
            came: items of all lines that were admitted since the last cut.
        """
        if self._vacated:
            self._observe(now, self._vacated.popleft())
        if waited >= possible:
            self.fill += _WEIGHT * (items / possible - self.fill)
        service = self._latency_model.predict(now, cls, items) or 0.0
        self._count(now, came, service)
        turn = SlotCycle(now, cls, items, now + service + max(0.0, self.extra))
        heapq.heappush(self._running, turn)
        return turn

    def end(self, turn: SlotCycle, *, waiting: bool) -> None:
        """The slot of a batch has fallen free.

        Args:
            turn: the batch's.
            waiting: whether work waits for it.
        """
        turn.over = True
        while self._running and self._running[0].over:
            heapq.heappop(self._running)
        if waiting:
            self._vacated.append(turn)

    @property
    def next_release(self) -> float:
        """When the next slot is thought to fall free, in the clock's time; never, where no batch runs."""
        return self._running[0].due if self._running else math.inf

    def rest(self) -> None:
        """Slots stay free for now: what waits shall wait, or nothing does."""
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
    ) -> float | None:
        """Seconds until a request that arrives now is answered.

        None where nothing is known of its class, and where a free slot takes it at once.

        Args:
            now: the time.
            cls: its class.
            size: items of a batch at most.
            items: items that go before its own last one.
            waiting: items in the queue, its own included.
            lines: lines that these are in, each of which takes a batch at least.
            free: slots that are free.
            slots: slots.
            until: the share of the time until the next cut for which arrivals count. With less than 1 the
                result is a lower bound, which holds for all that arrive in the other part of this time, as
                long as nothing leaves the queue.
        """
        ahead = max(items // max(1, int(size * self.fill)), lines - 1) - free
        if ahead < 0:
            return None
        running = self._running
        own = size
        if not ahead and not free and running and waiting < size and self._span > 0.0:
            coming = self._arrivals / self._span * until * max(0.0, running[0].due - now)
            own = min(size, math.ceil(waiting + coming + _P80 * math.sqrt(coming)))
        service = self._latency_model.predict(now, cls, own)
        if service is None:
            return None
        if now - self._seen > HORIZON:
            self.extra = self.spread = 0.0
        start = max(0.0, running[0].due - now) if running else 0.0
        if ahead or not running:
            turn = max(0.0, (self._latency_model.middle(now, cls, size) or service) + self.extra)
            turns = ahead / max(1, slots)
            start += turns * turn + _CAUTION * self.spread * math.sqrt(turns)
            if not running:
                start += turn
        return start + service + max(0.0, self.extra)

    def _count(self, now: float, came: int, service: float) -> None:
        """Learn the rate of arrivals from what came between two cuts.

        Args:
            now: when the second one was.
            came: items that were admitted.
            service: seconds that its batch takes; 0 where that is not known.
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
        middle = self._latency_model.middle(now, turn.cls, turn.items)
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
