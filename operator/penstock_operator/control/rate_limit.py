"""Token buckets by source: limits on an address's TokenReviews, and on a pod's reports."""

from __future__ import annotations

from penstock_operator.clock import Clock

BURST = 20.0
"""TokenReviews that an address gets at once. A pod needs one a minute, and one when the operator starts."""

PER_SECOND = 1.0
"""TokenReviews that it gets each second after that."""

SHARED_BURST = 1024.0
SHARED_PER_SECOND = 128.0
"""The same if all pods can have one address: enough for as many pods as there can be connections."""

SOURCES = 40_000
"""The most sources that are remembered; a further one waits until some are quiet for BURST / PER_SECOND."""


class RateLimit:
    """A token bucket for each source: so many at once, then so many a second."""

    def __init__(
        self,
        clock: Clock,
        *,
        burst: float = BURST,
        per_second: float = PER_SECOND,
        sources: int = SOURCES,
    ) -> None:
        self._clock = clock
        self._burst = burst
        self._per_second = per_second
        self._sources = sources
        self._full_at: dict[str, float] = {}
        """The time at which a source's bucket is full again; its content follows from that."""

    def take(self, source: str) -> bool:
        """Whether a source may take a turn now; if so, it is counted."""
        return self.reserve(source, patience=0.0) is not None

    def reserve(self, source: str, *, patience: float) -> float | None:
        """Take the next turn of a source.

        Args:
            patience: the most seconds that it would wait.

        Returns:
            Seconds until its turn; None if that is too long, or too many sources are remembered.
        """
        now = self._clock.time()
        if source not in self._full_at and len(self._full_at) >= self._sources:
            self._full_at = {key: full for key, full in self._full_at.items() if full > now}
            if len(self._full_at) >= self._sources:
                return None
        full = max(now, self._full_at.get(source, now)) + 1 / self._per_second
        wait = full - now - self._burst / self._per_second
        if wait > patience:
            return None
        self._full_at[source] = full
        return max(0.0, wait)
