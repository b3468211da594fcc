"""The gate that every write goes through: an operator without the Lease writes nothing.

A worker can begin its work as part of the leader and reach its write much later: the process was stopped, the
event loop was blocked, the apiserver was slow. So the Lease is checked when the write is made, by the
monotonic clock, and a write that is under way when the Lease ends is cancelled. A write sent in the last
moment has the time between `LeaseTimes.renew_within` and `LeaseTimes.duration` to arrive before another
operator may act. Reads pass. The elector's own writes do not use this gate (they carry the version that was
read), nor do TokenReviews, which change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from penstock_operator.clock import Clock, run_until
from penstock_operator.errors import ClusterError, LeaseLost
from penstock_operator.kinds import Kind
from penstock_operator.kube.cluster import Cluster, Obj, Writer

T = TypeVar("T")

Failed = Callable[[str, str, int], None]
"""Called for a failed write: verb (as in `cluster.WriteObserver`), kind, HTTP status (0: no answer)."""


class FencedCluster:
    """A `Cluster` that writes only while the Lease is certainly held.

    Every writing method raises `LeaseLost` if it is not.

    Args:
        until: returns when the Lease ends, in monotonic seconds; called at every write.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        until: Callable[[], float],
        clock: Clock,
        failed: Failed = lambda _verb, _kind, _status: None,
    ) -> None:
        self.get, self.list = cluster.get, cluster.list
        self._cluster: Writer = cluster
        self._until = until
        self._clock = clock
        self._failed = failed

    async def apply(self, kind: Kind, obj: Obj) -> Obj:
        return await self._led("apply", kind, lambda: self._cluster.apply(kind, obj))

    async def apply_status(self, kind: Kind, obj: Obj) -> Obj:
        return await self._led("status", kind, lambda: self._cluster.apply_status(kind, obj))

    async def apply_scale(
        self, kind: Kind, namespace: str, name: str, replicas: int, *, uid: str | None = None
    ) -> Obj:
        return await self._led(
            "scale", kind, lambda: self._cluster.apply_scale(kind, namespace, name, replicas, uid=uid)
        )

    async def annotate(
        self, kind: Kind, namespace: str, name: str, annotations: Mapping[str, str | None], *, uid: str
    ) -> Obj:
        return await self._led(
            "annotate", kind, lambda: self._cluster.annotate(kind, namespace, name, annotations, uid=uid)
        )

    async def delete(self, kind: Kind, namespace: str | None, name: str, *, uid: str | None = None) -> bool:
        return await self._led("delete", kind, lambda: self._cluster.delete(kind, namespace, name, uid=uid))

    async def create(self, kind: Kind, obj: Obj) -> Obj:
        return await self._led("create", kind, lambda: self._cluster.create(kind, obj))

    async def _led(self, verb: str, kind: Kind, write: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._clock.time() >= self._until():
            raise LeaseLost("the Lease ran out before a write: it was not made")
        try:
            return await run_until(self._clock, write(), self._until)
        except TimeoutError as error:
            raise LeaseLost("the Lease ran out during a write") from error
        except ClusterError as error:
            self._failed(verb, kind.kind, error.status)
            raise
