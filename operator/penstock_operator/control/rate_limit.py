"""Token buckets by source: how often an address may have a token reviewed, or a pod a report taken."""

from __future__ import annotations

from penstock_operator.clock import Clock

BURST = 20.0
"""TokenReviews that an address gets at once. A pod needs one a minute, and one at a start of the operator."""

PER_SECOND = 1.0
"""TokenReviews that it gets each second after that."""

SHARED_BURST = 1024.0
SHARED_PER_SECOND = 128.0
"""The same where all pods may come from one address: what as many need as there may be connections."""

SOURCES = 10_000
"""Sources that are remembered at most; one more waits until some have been quiet (BURST / PER_SECOND)."""


class RateLimit:
    """A token bucket for each source (the usual one: so many at once, then so many a second).

    Args:
        clock: time.
        burst: as `BURST`.
        per_second: as `PER_SECOND`.
        sources: as `SOURCES`.
    """

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
        """When the bucket of a source will be full again; that alone says how much is in it."""

    def take(self, source: str) -> bool:
        """Whether one more review may be asked for; if so, it is counted.

        Args:
            source: the address that a report came from.
        """
        return self.reserve(source, patience=0.0) is not None

    def reserve(self, source: str, *, patience: float) -> float | None:
        """Take the next of a source's turns.

        Args:
            source: whose.
            patience: seconds that it may have to wait for it.

        Returns:
            Seconds until its turn; None where that is too long, or too many sources are remembered.
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
