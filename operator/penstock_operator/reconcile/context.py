"""Holds what every reconciler receives."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from penstock_operator.api.backendstatus import ScalingEntry
from penstock_operator.api.strategy import Verdict
from penstock_operator.apply import Applier
from penstock_operator.autoscaling import Recommendation
from penstock_operator.clock import Clock, rfc3339
from penstock_operator.desired import names
from penstock_operator.desired.config import RenderConfig
from penstock_operator.desired.settings import Versioned
from penstock_operator.desired.tenant_settings import TenantSettings
from penstock_operator.errors import ClusterError
from penstock_operator.kube.cluster import Cluster, Obj, WriteObserver
from penstock_operator.prometheus import NoValue, Prometheus
from penstock_operator.reconcile.load_turns import LoadTurns
from penstock_operator.reconcile.scale_owners import OtherScaler
from penstock_operator.reconcile.view import View
from penstock_operator.releases.state import Interval
from penstock_operator.reports import Reports
from penstock_operator.status import Refusal
from penstock_operator.status import pods as pods_status
from penstock_operator.store import Change, ObjectKey, Store

SHOWN_AFTER = 4
"""Failures in a row (about 1.5 s of tries) after which a condition shows them."""

SETTLE_SECONDS = 8.0
"""Seconds after the start for which a status can wait for the first reports."""

LOAD_SETTLES = 15.0
"""Seconds after the start for which a status keeps the load that the last operator has written."""


@dataclass(slots=True)
class Problems:
    """The problems with children, for the conditions.

    Args:
        taken: children whose name another owner's object has, as ``Service/NAME``.
        refused: why the apiserver refused the first such child, if a condition is to show it.
        failed: the first error that calls for another try with backoff.
    """

    taken: list[str] = field(default_factory=list)
    refused: Refusal | None = None
    failed: ClusterError | None = field(default=None, compare=False)

    @property
    def any(self) -> bool:
        """Whether a condition is to show a problem."""
        return bool(self.taken) or self.refused is not None

    @property
    def unpublished(self) -> bool:
        """Whether a write has failed that no condition shows yet.

        Until it succeeds or is shown, no status may claim a generation that the children do not have.
        """
        return self.failed is not None and self.refused is None


@dataclass(slots=True, kw_only=True)
class Scaled:
    """The last results of a backend's autoscaler.

    Args:
        unpublished: changes written through ``/scale`` that no status shows yet, the oldest first.
        refused: why the apiserver refused the last write through ``/scale``, if it did.
        item_seconds: as in `Recommendation`, without autoscaling too.
    """

    recommendation: Recommendation | None = None
    unpublished: list[ScalingEntry] = field(default_factory=list)
    foreign: OtherScaler | None = None
    refused: Refusal | None = None
    item_seconds: float | None = None
    unreachable: bool = False


@dataclass(slots=True, kw_only=True)
class Trial:
    """An interval that ends with a judgement of a release's candidate.

    Args:
        of: stable and candidate, and the times in the split's status from which on it counts.
        began: its start, in monotonic seconds.
        interval: what was counted in it, once it is over.
        verdicts: its verdicts at the end, until the status holds them.
    """

    of: tuple[str | None, ...]
    began: float
    interval: Interval | None = None
    verdicts: tuple[Verdict, ...] | None = None
    asking: asyncio.Task[dict[str, float | NoValue]] | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """What the shared router serves for a namespace.

    Args:
        served: names of endpoints.
        leaving: those of them that other routers serve by now.
    """

    namespace: str
    served: tuple[str, ...]
    leaving: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class SharedRouter:
    """What is remembered of the router that namespaces share.

    Args:
        made: what its pods get; None until it was looked at first.
        stale: the namespaces whose part may be another one by now.
        ports: its ports by namespace, and by endpoint or, of the front door, "". An inner dict never changes.
        freed: when each of its former ports was given up, in monotonic seconds.
        left: when it was no longer to serve something, by namespace and as in `ports`, in monotonic seconds.
        moved: when it began to serve all of a namespace that still has a router of its own.
        pods: names and addresses of its ready pods, as they were seen last.
        boot: the name of the settings in its ConfigMap, their bytes, and the time of the last change there.
        changed: the version of its settings that last changed an endpoint, by namespace and endpoint.
        tenants: what is to be served by namespace, as of the state of these objects; the second part is None
            if EndpointSlices do not matter.
        served: what has its ports, by namespace.
        looked: what its objects were last compared with, if nothing was wrong then.
        foreign: the Services that are somebody else's, by namespace and as in `ports`: none leads here.
        unknown_modes: labels of namespaces that are logged as unknown, by namespace.
    """

    made: TenantSettings | None = None
    stale: set[str] = field(default_factory=set)
    ports: dict[str, dict[str, int]] = field(default_factory=dict)
    freed: dict[int, float] = field(default_factory=dict)
    left: dict[str, dict[str, float]] = field(default_factory=dict)
    moved: dict[str, float] = field(default_factory=dict)
    pods: tuple[tuple[str, str], ...] = ()
    boot: tuple[str, bytes, float] = ("", b"", float("-inf"))
    changed: dict[str, dict[str, int]] = field(default_factory=dict)
    tenants: dict[str, tuple[tuple[object, ...], int | None, Tenant | None]] = field(default_factory=dict)
    served: dict[str, Tenant] = field(default_factory=dict)
    looked: tuple[object, ...] | None = None
    foreign: dict[str, set[str]] = field(default_factory=dict)
    unknown_modes: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Memory:
    """The reconcilers' memory between two runs of a key; the rest is in the store and the reports.

    Args:
        render: the installation's configuration; replaced when the certificate authorities change.
        router_problems: by namespace, since a router has no object of its own to carry conditions; for an
            endpoint's own router by the endpoint's key.
        made: the settings that pods get, by namespace and name of their ConfigMap, which itself decides
            nothing: users may write it.
        switched: time when an endpoint's Service was pointed at its own router, in monotonic seconds.
        status_in_flight: statuses that are being written: when a watch shows them, nothing has changed.
        settled: backends whose children need no look.
        started: time when the first list was complete, in monotonic seconds.
        followed: the endpoints whose requests are counted for a release, by split.
        asking: limits of concurrent Prometheus queries, by namespace, as long as a task there uses them.
    """

    render: RenderConfig
    load_turns: LoadTurns
    router_problems: dict[str | ObjectKey, Problems] = field(default_factory=dict)
    made: dict[tuple[str, str], Versioned] = field(default_factory=dict)
    switched: dict[ObjectKey, float] = field(default_factory=dict)
    shared: SharedRouter = field(default_factory=SharedRouter)
    scaled: dict[ObjectKey, Scaled] = field(default_factory=dict)
    status_in_flight: dict[ObjectKey, Obj] = field(default_factory=dict)
    settled: dict[ObjectKey, Settled] = field(default_factory=dict)
    started: float = float("-inf")
    trials: dict[ObjectKey, Trial] = field(default_factory=dict)
    followed: dict[ObjectKey, str] = field(default_factory=dict)
    asking: WeakValueDictionary[str, asyncio.Semaphore] = field(default_factory=WeakValueDictionary)

    def settings_of(self, namespace: str, configmap: str) -> Versioned | TenantSettings | None:
        """The settings that pods get, by namespace and name of their ConfigMap; None if not known yet."""
        if configmap == names.SHARED_ROUTER_SETTINGS:
            return self.shared.made
        return self.made.get((namespace, configmap))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """That a backend's children need no look, as long as nothing has changed that they depend on.

    Args:
        of: what they were rendered from, but the spec itself: uid and generation of the backend, its settings
            document, the configuration.
        children: a hash of their keys and versions.
        upgrade_pending: as `PinnedTemplate` has it.
        status_waits: whether the status is still to be written, in the turn of other work.
    """

    of: tuple[str, int, bytes, RenderConfig]
    children: int
    upgrade_pending: bool
    status_waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileContext:
    """The shared pieces that reconcilers depend on.

    Args:
        enqueue: queues a key, after so many seconds.
        changed: called with each change in the answer to one of our own writes; set by the manager.
        hurried: whether what users have changed waits for a worker; set by the manager.
        home: the operator's namespace, where the router is that namespaces share.
        everywhere: whether all namespaces are watched.
        emit: queues Events to be sent in the background; if None, each is sent at once.
    """

    cluster: Cluster
    store: Store
    view: View
    applier: Applier
    reports: Reports
    memory: Memory
    clock: Clock
    log: Callable[..., None]
    observer: WriteObserver
    enqueue: Callable[[ObjectKey, float], None]
    failures: Callable[[ObjectKey], int] = lambda _key: 0
    changed: Callable[[Change], None] = lambda _change: None
    hurried: Callable[[], bool] = lambda: False
    identity: str = "penstock-operator"
    home: str = "penstock-system"
    everywhere: bool = True
    emit: Callable[[Obj], Awaitable[None]] | None = None
    draw_secret: Callable[[], str] = lambda: secrets.token_hex(16)
    prometheus: Prometheus = field(default_factory=Prometheus)

    @property
    def render(self) -> RenderConfig:
        """The installation's configuration, as of now."""
        return self.memory.render

    def now(self) -> str:
        """Return wall time in the format of conditions."""
        return rfc3339(self.clock.now())

    def load_settles(self) -> bool:
        """Whether loads still rest on the few reports of a new operator."""
        return self.clock.time() < self.memory.started + LOAD_SETTLES

    def settling_time(
        self, stored: Obj, pods: Sequence[Obj], reports: Mapping[str, object], *, unsure: bool = False
    ) -> float | None:
        """Return how long a status should wait after the operator's start until ready pods have reported.

        Without this, every restart of the operator would write "no reports" into each status and undo it.

        Args:
            stored: the object; if its status is behind its own generation, it does not wait.
            unsure: whether something else that the status shows is still unknown.

        Returns:
            Seconds after which to look again; None if there is nothing to wait for.
        """
        left = self.memory.started + SETTLE_SECONDS - self.clock.time()
        current = (stored.get("status") or {}).get("observedGeneration") == stored["metadata"].get(
            "generation"
        )
        if left <= 0 or not current:
            return None
        silent = unsure or any(
            pods_status.is_ready(pod) and pod["metadata"]["name"] not in reports for pod in pods
        )
        return left if silent else None


def conditions_of(stored: Obj) -> dict[str, dict[str, Any]]:
    """Return a stored object's conditions by type."""
    return {entry["type"]: entry for entry in (stored.get("status") or {}).get("conditions") or ()}
