"""Whether part-full batches shall wait for more at all: only while that costs no throughput.

Callers that arrive whatever becomes of the others lose nothing when a batch waits, and it gets fuller. But
callers that ask again as soon as they were answered ask less often when each answer waits; a single one
would wait in vain each time. One arrival does not show which kind it is; the rate of all does. So now and
then the other way is tried: part-full batches go at once for a while (or wait again), and the way is
changed where the rate shows it:

- from waiting to not waiting when that brings clearly more: by 1 % and three standard deviations, which are
  taken from how much the batches of either way differ from their mean rate;
- back to waiting when that costs no more than 1 %. Such a trial ends as soon as it is clear that it fails.

Each way stays at least twice as long after each trial that did not change it, and so long that trials of
waiting cost no more than 1/64 of the throughput; while waits hardly ever happen, nothing is tried. The time
is an argument.
"""

from __future__ import annotations

import math

LESS = 0.01
"""The share of the rate that a wait may cost, or seem to."""
_FIRST = 4
"""Batches after which the first trial begins."""
_LONGEST = 60.0
"""Seconds that a way stays at most without a trial."""
_TRIAL = 0.25
"""Seconds of a trial, where the way before stayed for longer; at least `_TRIAL_SHARE` of that time."""
_TRIAL_SHARE = 1 / 16
_COST = 1 / 64
"""Share of the throughput that trials of waiting may cost where they fail."""
_DEVIATIONS = 3.0
"""Standard deviations that count as clear."""
_BLOCK = 8
"""Batches whose rate is taken as one."""
_REST = 1.0
"""Seconds without a batch after which what was counted says nothing."""


class LingerTuner:
    """Decides from the batches that are cut.

    `waits` is whether part-full batches may wait now.
    """

    __slots__ = (
        "_batches",
        "_began",
        "_block_items",
        "_block_seconds",
        "_crossed",
        "_gaps",
        "_held",
        "_held_at",
        "_items",
        "_latest",
        "_noise",
        "_rate",
        "_squares",
        "_stay",
        "_trial",
        "waits",
    )

    def __init__(self) -> None:
        self.waits = True
        self._trial = False
        # How long a way stays; unknown until `_FIRST` batches have shown how long those take.
        self._stay = 0.0
        # Of the way before a trial: items a second, and their relative variance.
        self._rate = self._noise = 0.0
        self._held_at: float | None = None
        self._latest = -math.inf
        self._begin(-math.inf)

    def held(self, now: float) -> None:
        """Work waits for more though a slot is free."""
        if self._held_at is None:
            self._held_at = now

    def cut(self, now: float, items: int) -> None:
        """A batch of so many items was cut."""
        if self._held_at is not None:
            self._held += now - self._held_at
            self._held_at = None
        gap = now - self._latest
        self._latest = now
        rested = gap > _REST
        if rested:
            if self._trial:
                self._end_trial()
            self._begin(now)
            return
        self._items += items
        self._batches += 1
        self._block_items += items
        self._block_seconds += gap
        if not self._batches % _BLOCK:
            self._fold()
        if self._trial:
            self._try(now)
        elif self._batches >= _FIRST and now - self._began >= self._stay:
            self._stayed(now)

    def _begin(self, now: float) -> None:
        self._began = now
        self._held = 0.0
        self._items = self._batches = 0
        # Sums over blocks of batches: of items², items · seconds, and seconds²; and the block that is open.
        self._squares = self._crossed = self._gaps = 0.0
        self._block_items, self._block_seconds = 0, 0.0

    def _fold(self) -> None:
        items, seconds = self._block_items, self._block_seconds
        self._squares += items * items
        self._crossed += items * seconds
        self._gaps += seconds * seconds
        self._block_items, self._block_seconds = 0, 0.0

    def _stayed(self, now: float) -> None:
        """Begin a trial of the other way, where it can show anything."""
        seconds = max(1e-9, now - self._began)
        if not self.waits or self._held >= LESS * seconds:
            self._stay = max(self._stay, seconds)
            self._rate = self._items / seconds
            self._noise = self._variance(self._rate)
            self._trial = True
            self.waits = not self.waits
        self._begin(now)

    def _try(self, now: float) -> None:
        seconds = max(1e-9, now - self._began)
        rate, before = self._items / seconds, self._rate
        enough = min(self._stay, max(_TRIAL, _TRIAL_SHARE * self._stay))
        ended = self._batches >= _FIRST and seconds >= enough
        if self.waits:
            least = (1.0 - LESS) * before
            if rate < least and (ended or self._hopeless(rate, least)):
                self._end_trial()
                self._stay = max(self._stay, (1.0 - rate / before) * seconds / _COST)
                self._begin(now)
                return
        elif ended:
            noise = _DEVIATIONS * math.sqrt(self._noise + self._variance(rate))
            if rate <= (1.0 + LESS + noise) * before:
                self._end_trial()
                self._begin(now)
                return
        if ended:
            self._trial = False
            # What the next trial of waiting would cost, if this is right, or else the least.
            self._stay = seconds if self.waits else max(seconds, (1.0 - before / rate) * seconds / _COST)
            self._begin(now)

    def _hopeless(self, rate: float, least: float) -> bool:
        """Whether a trial of waiting need not be brought to its end."""
        if self._batches < _FIRST:
            return False
        return 2.0 * rate < least or rate * (1.0 + _DEVIATIONS * math.sqrt(self._variance(rate))) < least

    def _variance(self, rate: float) -> float:
        """The variance of the rate since the beginning, over its square.

        Of the items of blocks of batches beyond what the mean rate would bring in their time (batch means:
        what evens out from one batch to the next is no variance of the rate); no less than few batches leave
        open.
        """
        self._fold()
        residues = self._squares - 2.0 * rate * self._crossed + rate * rate * self._gaps
        return max(residues / self._items**2, 1.0 / self._batches**2)

    def _end_trial(self) -> None:
        """Return to the way before, for longer."""
        self._trial = False
        self.waits = not self.waits
        self._stay = min(_LONGEST, 2.0 * self._stay)
