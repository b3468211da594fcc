"""`maxConcurrentBatches: auto`: finds the best number of concurrent batches. Pure: time is an argument.

A hill climber on throughput. It rests at C slots. From time to time it tries more (or fewer): it alternates
stretches of batches at C and at the other number, compares their items a second, and moves

- up, if more slots bring at least `GAIN` more throughput, within `max_seconds` a batch;
- down, if fewer slots lose at most `LOSS` of it: requests that only wait inside the model are better off in
  the sidecar's queue, where they can still be batched, dropped and put in order.

It only tries while work waits at each ended batch: otherwise throughput equals the arrivals, whatever the
slots. Each trial without a change doubles the rest before the next, up to `MAX_REST` batches; a throughput
that leaves its band, or a change, ends the long rest.

A batch fails if it was too much for the model, which answered 5xx or 429, lost it or kept it too long. One
failure ends a trial; `FAILURES` in a row lower the slots, and batches that began before that do not count.
A fault of a request is neither a failure nor a measurement.

Netflix's concurrency-limits (Gradient2, Vegas: github.com/Netflix/concurrency-limits) and TCP Vegas (Brakmo
and Peterson 1995) steer by the latency's rise over its minimum. Here latency depends on the size of the
batch, which changes with the number of slots, so that rise shows little. Items a second show it directly, and
comparing alternating stretches instead of consecutive ones excludes a drift of the load.
"""

from __future__ import annotations

import dataclasses
import math

GAIN = 0.10
LOSS = 0.08
CLEAR = 0.30
"""A difference after the first round that needs no further rounds."""
ROUNDS = 4
"""Maximum stretches of each arm of a trial."""
STRETCH = 10
"""Minimum measured batches of a stretch, which has at least four for each slot."""
REST = 40
"""Batches between two trials at first, doubled by each trial that changes nothing."""
MAX_REST = 1280
BAND = 0.3
"""Relative change of throughput at rest that shows that the model behaves differently now."""
IDLE_PATIENCE = 3
"""Ended batches in a row without waiting work that end a trial."""
FAILURES = 3
"""Failed batches in a row that show that there are too many slots."""
ROUNDING = 1e-6
"""Tolerance, in seconds, of the time at which a batch began."""


@dataclasses.dataclass(slots=True)
class _Stretch:
    """Batches that ended one after another under the same number of slots."""

    skip: int
    wanted: int
    begun: float = -1.0
    ended: int = 0
    items: int = 0
    seconds: float = 0.0
    latest: float = 0.0

    def add(self, now: float, items: int, seconds: float) -> bool:
        """Count an ended batch; True once complete. The first `skip` began under the previous number."""
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.begun < 0.0:
            self.begun = now
            return False
        self.ended += 1
        self.items += items
        self.seconds += seconds
        self.latest = now
        return self.ended >= self.wanted


@dataclasses.dataclass(slots=True)
class _Arm:
    """The sum of the stretches with one number of slots."""

    items: int = 0
    seconds: float = 0.0
    elapsed: float = 0.0
    batches: int = 0

    def add(self, stretch: _Stretch) -> None:
        self.items += stretch.items
        self.seconds += stretch.seconds
        self.elapsed += stretch.latest - stretch.begun
        self.batches += stretch.ended

    @property
    def rate(self) -> float:
        """Items a second."""
        return self.items / max(self.elapsed, 1e-9)


class ConcurrencyTuner:
    """The number of slots, tuned by the batches that end.

    `slots` is the present number; `max_seconds` can be changed at any time.

    Args:
        start: initial slots.
        highest: maximum slots.
        max_seconds: maximum mean seconds of a batch with more slots, or None for no maximum.
    """

    def __init__(self, start: int = 1, highest: int = 64, max_seconds: float | None = None) -> None:
        self.slots = start
        self.max_seconds = max_seconds
        self._highest = highest
        self._rest_length = REST
        self._rest_left = REST // 2
        self._upward = True
        self._base = start
        self._other = 0
        self._arms: tuple[_Arm, _Arm] | None = None
        self._stretch: _Stretch = self._new_stretch(0)
        self._known_rate = 0.0
        self._unpressed = 0
        self._failures = 0
        # When slots were last lowered; failures of batches that began before that do not count.
        self._yielded = -math.inf
        self._long_ago = 0

    def ended(self, now: float, items: int, seconds: float, *, pressed: bool, ok: bool = True) -> int:
        """Learn from a batch that ended; returns the slots from now on. ~1 µs.

        Args:
            now: the clock's time.
            items: items it held.
            seconds: the time it took.
            pressed: work was waiting when it ended, before the next batch was cut.
            ok: the model answered it with success; False if it was too much for the model.
        """
        if not ok:
            self._fail(now, seconds)
            return self.slots
        self._failures = 0
        if not pressed:
            self._unpressed += 1
            if self._unpressed >= IDLE_PATIENCE:
                self._calm()
            return self.slots
        self._unpressed = 0
        complete = self._stretch.add(now, items, seconds)
        if self._arms is None:
            self._rest(complete=complete)
        elif complete:
            self._compare(self._arms)
        return self.slots

    def _new_stretch(self, before: int) -> _Stretch:
        return _Stretch(skip=max(before, self.slots), wanted=max(STRETCH, 4 * self.slots))

    def _set(self, slots: int) -> None:
        before, self.slots = self.slots, slots
        self._stretch = self._new_stretch(before)

    def _rest(self, *, complete: bool) -> None:
        self._rest_left -= 1
        if complete:
            stretch = self._stretch
            rate = stretch.items / max(stretch.latest - stretch.begun, 1e-9)
            self._watch(rate)
            self._stretch = self._new_stretch(0)
            self._stretch.skip = 0
        if self._rest_left <= 0:
            self._try()

    def _watch(self, rate: float) -> None:
        """End the rest when throughput has left its band for two stretches in a row."""
        if not self._known_rate:
            self._known_rate = rate
        elif abs(rate - self._known_rate) > BAND * self._known_rate:
            self._long_ago += 1
            if self._long_ago >= 2:
                self._known_rate = rate
                self._long_ago = 0
                self._rest_length = REST
                self._rest_left = 0
        else:
            self._long_ago = 0
            self._known_rate += 0.2 * (rate - self._known_rate)

    def _try(self) -> None:
        base = self.slots
        # One slot more is a small change if there are many: a quarter more shows a gain above the noise.
        step = max(1, base // 4)
        other = min(self._highest, base + step) if self._upward else max(1, base - step)
        if other == base:
            self._upward = not self._upward
            other = min(self._highest, base + step) if self._upward else max(1, base - step)
        if other == base:
            self._rest_left = self._rest_length
            return
        self._base, self._other = base, other
        self._arms = (_Arm(), _Arm())
        self._set(other)

    def _compare(self, arms: tuple[_Arm, _Arm]) -> None:
        ours, theirs = arms
        at_base = self.slots == self._base
        (ours if at_base else theirs).add(self._stretch)
        if not at_base:
            self._set(self._base)
            return
        rounds_done = ours.batches // max(STRETCH, 4 * self._base)
        change = theirs.rate / ours.rate - 1.0 if ours.rate else 0.0
        if rounds_done < ROUNDS and abs(change) < CLEAR:
            self._set(self._other)
            return
        up = self._other > self._base
        better = change >= GAIN if up else change >= -LOSS
        if up and self.max_seconds is not None and theirs.seconds > self.max_seconds * theirs.batches:
            better = False
        self._arms = None
        self._known_rate = 0.0
        if better:
            self._settle(self._other, REST)
            # Try a further step soon: at once if it was upward.
            self._rest_left = 0 if up else STRETCH
        else:
            self._upward = not up
            self._settle(self._base, min(MAX_REST, 2 * self._rest_length))

    def _settle(self, slots: int, rest: int) -> None:
        self._arms = None
        self._rest_length = rest
        self._rest_left = rest
        self._long_ago = 0
        self._set(slots)

    def _calm(self) -> None:
        """End a trial, since no work waits: it would measure the arrivals."""
        self._unpressed = 0
        if self._arms is not None:
            self._arms = None
            self._rest_left = self._rest_length
            self._set(self._base)
        else:
            self._stretch = self._new_stretch(0)
            self._rest_left = max(self._rest_left, STRETCH)

    def _fail(self, now: float, seconds: float) -> None:
        if now - seconds < self._yielded - ROUNDING:
            return
        self._failures += 1
        if self._arms is not None:
            self._failures = 0
            self._yielded = now
            self._upward = self._other < self._base
            self._settle(min(self._base, self._other), min(MAX_REST, 2 * self._rest_length))
        elif self._failures >= FAILURES and self.slots > 1:
            self._failures = 0
            self._yielded = now
            self._upward = False
            self._settle(max(1, self.slots - max(1, self.slots // 4)), self._rest_length)
