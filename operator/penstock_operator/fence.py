"""The gate that every write goes through: nobody acts on a lost Lease.

A worker may have begun its work while we led and come to its write much later: the process was stopped, the
event loop was held up, the apiserver was slow. So the Lease is looked at when the write is made, by the
monotonic clock, and a write that is under way when the Lease ends is cut. What was sent in the last moment
still has the time between `LeaseTimes.renew_within` and `LeaseTimes.duration` to arrive before anybody else
may act. Reads pass. The elector's own writes do not come through here (they carry the version that was read),
nor do TokenReviews, which change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from penstock_operator.clock import Clock, run_until
from penstock_operator.cluster import Cluster, Obj
from penstock_operator.errors import LeaseLost
from penstock_operator.kinds import Kind

T = TypeVar("T")


class FencedCluster:
    """A `Cluster` that writes only while the Lease is surely ours.

    Every writing method raises `LeaseLost` where it is not.

    Args:
        cluster: Kubernetes.
        until: until when the Lease is ours, monotonic seconds; asked at every write.
        clock: time.
    """

    def __init__(self, cluster: Cluster, *, until: Callable[[], float], clock: Clock) -> None:
        self._cluster = cluster
        self._until = until
        self._clock = clock

    async def apply(self, kind: Kind, obj: Obj) -> Obj:
        """See `Cluster`."""
        return await self._led(lambda: self._cluster.apply(kind, obj))

    async def apply_status(self, kind: Kind, obj: Obj) -> Obj:
        """See `Cluster`."""
        return await self._led(lambda: self._cluster.apply_status(kind, obj))

    async def apply_scale(
        self, kind: Kind, namespace: str, name: str, replicas: int, *, uid: str | None = None
    ) -> Obj:
        """See `Cluster`."""
        return await self._led(lambda: self._cluster.apply_scale(kind, namespace, name, replicas, uid=uid))

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Obj | None:
        """See `Cluster`."""
        return await self._cluster.get(kind, namespace, name)

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        keep: Callable[[Obj], T],
        labels: str | None = None,
        name: str | None = None,
        metadata_only: bool = False,
    ) -> list[T]:
        """See `Cluster`."""
        return await self._cluster.list(
            kind, namespace, keep=keep, labels=labels, name=name, metadata_only=metadata_only
        )

    async def delete(self, kind: Kind, namespace: str | None, name: str, *, uid: str | None = None) -> bool:
        """See `Cluster`."""
        return await self._led(lambda: self._cluster.delete(kind, namespace, name, uid=uid))

    async def create(self, kind: Kind, obj: Obj) -> Obj:
        """See `Cluster`."""
        return await self._led(lambda: self._cluster.create(kind, obj))

    async def _led(self, write: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._clock.time() >= self._until():
            raise LeaseLost("the Lease ran out before a write: it was not made")
        try:
            return await run_until(self._clock, write(), self._until)
        except TimeoutError as error:
            raise LeaseLost("the Lease ran out during a write") from error
