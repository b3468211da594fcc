"""Tracks the keys and senders of bad requests, and makes their batches smaller, or separate.

`queue.group_size` decides how large batches are. This module remembers each key, and gives a sender of bad
requests its own queue; the model's time that this sender uses is charged to its share
(`queue.fair_queueing`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from penstock_sidecar.estimators.latency_model import LatencyModel
from penstock_sidecar.queue.key import BatchKey, Faults
from penstock_sidecar.queue.queue import Queue
from penstock_sidecar.queue.request import QueuedRequest, Slice

MAX_KEYS = 256
"""Maximum number of keys with bad requests that are remembered; beyond it, the oldest one is forgotten."""
SHOWN_SECONDS = 10.0
"""Seconds that the limit of a key or sender is shown after its latest batch."""


class FaultTracker:
    """The bad requests of all keys.

    Args:
        queue: holds the requests.
        latency_model: predicts how long batches take.
        clock: the monotonic time in seconds.
        size: maximum items of a batch; arguments: the time, the class.
    """

    __slots__ = ("_clock", "_keys", "_latency_model", "_queue", "_size")

    def __init__(
        self,
        queue: Queue,
        latency_model: LatencyModel,
        clock: Callable[[], float],
        size: Callable[[float, str], int],
    ) -> None:
        self._queue = queue
        self._latency_model = latency_model
        self._clock = clock
        self._size = size
        self._keys: dict[BatchKey, Faults] = {}

    def limit(self, most: int) -> int:
        """Maximum items of a batch, for the key or sender with the lowest limit.

        Args:
            most: maximum items by the policy.
        """
        since = self._clock() - SHOWN_SECONDS
        limits = [most]
        for faults in self._keys.values():
            own = [theirs for theirs in faults.senders.values() if theirs.key is not None]
            limits += [each.limit for each in (faults, *own) if each.at >= since]
        return min(limits)

    def group(self, work: QueuedRequest, failed: int, resolved: int) -> int:
        """Number of unknown requests to run together in a search.

        Args:
            work: one of the requests.
            failed: number of bad requests that the search has found already.
            resolved: number of requests that it has resolved.
        """
        now, key = self._clock(), work.key
        faults = key.faults or Faults()
        seconds = functools.partial(self._latency_model.predict, now, key.cls)
        return faults.requests(failed, resolved, self._size(now, key.cls), seconds)

    def resolved(self, parts: Sequence[Slice], bad: Sequence[Slice], seconds: float, searched: float) -> None:
        """Note that each of these parts of a batch has an outcome of its own.

        Args:
            parts: the parts, of one key.
            bad: the parts that failed alone.
            seconds: the model's time for the batch.
            searched: seconds of it for the search; 0 if the batch did not fail.
        """
        now, key = self._clock(), parts[0].work.key
        if key.lone or key.large:
            return
        faults = key.faults
        if faults is None:
            if not searched:
                return
            faults = key.faults = self._keys[key] = Faults()
            if len(self._keys) > MAX_KEYS:
                oldest = next(iter(self._keys))
                self._keys.pop(oldest).forget(oldest)
        faults.at = now
        most = self._size(now, key.cls)
        times = functools.partial(self._latency_model.predict, now, key.cls)
        sizes = [part.size for part in parts]
        # If a batch fails although its requests pass alone, it overloads the model: count one bad request.
        faults.note(sizes, len(bad) or (1 if searched else 0), most, times)
        full = times(most) or 0.0
        if faults.parent is not None:
            if full:
                beyond = seconds * most / full - sum(sizes)
                self._queue.charge(parts[0].work.share, max(0.0, beyond))
            if faults.over:
                faults.rejoin()
            return
        for part in bad:
            if full:
                self._queue.charge(part.work.share, searched * most / full / len(bad))
        requests = [(part.work.share, part.size, part in bad) for part in parts]
        for share, theirs in faults.note_senders(requests, most, times):
            own = theirs.key = BatchKey(key.method, key.target, key.fields, key.parameters)
            own.faults = theirs
            self._queue.move(share, key, own)
        if not faults.rate and not faults.senders:
            key.faults = None
            self._keys.pop(key, None)
