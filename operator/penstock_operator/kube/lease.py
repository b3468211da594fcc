"""Leader election with a `coordination.k8s.io` Lease, as client-go does it.

A candidate never compares its wall clock with another's: it notes when *it* saw the record change, and takes
the Lease over when the record did not change for the whole lease duration. Every write carries the
resourceVersion that was read, so only one of two candidates wins. The leader renews every `retry` seconds;
if it cannot for `renew_within` seconds it must stop acting, before any other candidate can take over. A
renewal is one call: the record as last written, with its version; if that is refused, it is read again.

All installations of a cluster ask for one Lease, so two never act at once: helm refuses a second release, but
another tool may apply the chart again. Operators limited to different namespaces have a Lease each.

Source: k8s.io/client-go/tools/leaderelection/leaderelection.go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock_operator.clock import Clock, rfc3339_micro, run_until
from penstock_operator.errors import ClusterError, Conflict, LeaseLost, NotFound
from penstock_operator.kinds import LEASE
from penstock_operator.kube.cluster import Cluster, Obj

LEASE_NAME = "penstock-installation"
"""Name of the Lease; of an operator limited to a namespace, with a dot and that namespace appended."""

UNANSWERED = 1.5
"""Seconds until a failed call for a Lease that no other candidate is known to hold is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """The times of an election, in seconds.

    Args:
        renew_within: how long a leader that cannot renew may continue.
        again: pause before a leader's next try after a failed renewal.
    """

    duration: float = 10.0
    renew_within: float = 7.0
    retry: float = 1.5
    again: float = 0.5


class Elector:
    """One candidate.

    Args:
        identity: the candidate's; unique, as the pod's name with its uid.
        working: whether the acting loop works; a leader does not renew otherwise.
        waiting: called with the holder when that becomes another's, with "" when it no longer is.
        refused: called with the reason if the apiserver forbids the Lease, with "" when that ends.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        namespace: str,
        name: str,
        identity: str,
        clock: Clock,
        times: LeaseTimes | None = None,
        log: Callable[..., None] = lambda _message, **_fields: None,
        working: Callable[[], bool] = lambda: True,
        waiting: Callable[[str], None] = lambda _holder: None,
        refused: Callable[[str], None] = lambda _why: None,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._clock = clock
        self._times = times or LeaseTimes()
        self._log = log
        self._working = working
        self._waiting = waiting
        self._refused = refused
        self._held: Obj | None = None
        self._seen: tuple[object, ...] | None = None
        self._seen_at = 0.0
        self._free_at = float("-inf")
        self._renewed_at = float("-inf")
        self.holder = ""
        """Identity of the leader as last seen."""

    @property
    def leads(self) -> bool:
        """Whether the candidate may act now."""
        return self._clock.time() < self.until

    @property
    def until(self) -> float:
        """The time, in monotonic seconds, until which the Lease is certainly ours without another renewal."""
        return self._renewed_at + self._times.renew_within

    async def acquire(self) -> None:
        """Wait until we lead."""
        while not await self._try(self._times.renew_within):
            left = self._free_at - self._clock.time()
            pause = self._times.retry if self._anothers(self.holder) else min(self._times.retry, UNANSWERED)
            await self._clock.sleep(min(pause, left) if left > 0 else pause)

    async def hold(self) -> None:
        """Renew until that fails.

        Raises:
            LeaseLost: we do not lead any more, or cannot prove it in time.
        """
        pause = self._times.retry
        while True:
            await self._clock.sleep(min(pause, max(0.0, self.until - self._clock.time())))
            renewed = self._working() and await self._try(self.until - self._clock.time())
            pause = self._times.retry if renewed else self._times.again
            if not renewed:
                if self._anothers(self.holder):
                    raise LeaseLost(f"the Lease {self._namespace}/{self._name} is held by {self.holder}")
                if not self.leads:
                    raise LeaseLost(
                        f"the Lease {self._namespace}/{self._name} could not be renewed within "
                        f"{self._times.renew_within:g} s"
                    )

    async def release(self) -> None:
        """Give the Lease back, so that the next leader does not wait; best effort."""
        if not self.leads:
            return
        self._renewed_at, self._held = float("-inf"), None
        try:
            live = await self._cluster.get(LEASE, self._namespace, self._name)
            if live is not None and (live.get("spec") or {}).get("holderIdentity") == self._identity:
                await self._cluster.apply(LEASE, self._record(live, holder="", duration=1))
        except ClusterError as error:
            self._log("lease not released", error=str(error))

    async def _try(self, seconds: float) -> bool:
        """Take or renew the Lease within so many seconds; return whether we lead now."""
        # NB: without the bound a hanging call would outlast the Lease.
        end = self._clock.time() + seconds
        try:
            return await run_until(self._clock, self._attempt(), lambda: end)
        except TimeoutError:
            return False

    async def _attempt(self) -> bool:
        began = self._clock.time()
        if self._held is not None:
            try:
                held = await self._cluster.apply(LEASE, self._record(self._held))
            except (Conflict, NotFound):
                self._held = None  # it is not as we left it
            except ClusterError as error:
                self._log("lease call failed", error=str(error))
                return False
            else:
                return self._leading(held, began)
        try:
            live = await self._cluster.get(LEASE, self._namespace, self._name)
            if live is not None and not self._free(live):
                self._refused("")
                return False
            write = self._cluster.create if live is None else self._cluster.apply
            held = await write(LEASE, self._record(live))
        except Conflict:
            return False  # another candidate was faster; look again
        except ClusterError as error:
            self._log("lease call failed", error=str(error))
            if error.status == 403:
                self._refused(f"Lease {self._namespace}/{self._name}: {error}")
            return False
        return self._leading(held, began)

    def _leading(self, held: Obj, began: float) -> bool:
        # NB: counted from before the call, so that a slow answer shortens our time, never lengthens it.
        self._renewed_at, self._held = began, held
        self._refused("")
        self._held_by(self._identity)
        return True

    def _free(self, live: Obj) -> bool:
        """Whether the Lease, as it was just read, is not held by another candidate any more."""
        spec = live.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        seen = (holder, spec.get("renewTime"), spec.get("leaseTransitions"))
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock.time()
        if not self._anothers(holder):
            self._held_by(holder)
            return True
        self._free_at = self._seen_at + float(spec.get("leaseDurationSeconds") or self._times.duration)
        free = self._clock.time() >= self._free_at
        self._renewed_at = float("-inf")  # the Lease is another's, even if we believed to hold it
        if not free:
            self._held_by(holder)
        return free

    def _anothers(self, holder: str) -> bool:
        return holder not in ("", self._identity)

    def _held_by(self, holder: str) -> None:
        before, self.holder = self.holder, holder
        if holder != before and (self._anothers(holder) or self._anothers(before)):
            self._waiting(holder if self._anothers(holder) else "")

    def _record(self, live: Obj | None, *, holder: str | None = None, duration: int | None = None) -> Obj:
        spec = (live or {}).get("spec") or {}
        now = rfc3339_micro(self._clock.now())
        same = spec.get("holderIdentity") == self._identity
        metadata: Obj = {"namespace": self._namespace, "name": self._name}
        if live is not None:
            metadata["resourceVersion"] = live["metadata"]["resourceVersion"]
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": metadata,
            "spec": {
                "holderIdentity": self._identity if holder is None else holder,
                "leaseDurationSeconds": duration or max(1, int(self._times.duration)),
                "acquireTime": spec.get("acquireTime", now) if same else now,
                "renewTime": now,
                "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (0 if same or not spec else 1),
            },
        }
