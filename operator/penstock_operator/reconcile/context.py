"""What every reconciler is given."""

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
from penstock_operator.desired.config import RenderConfig
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
from penstock_operator.store import Change, Key, Store

SHOWN_AFTER = 4
"""So many failures in a row (about 1.5 s of tries) are not shown in a condition yet."""

SETTLE_SECONDS = 8.0
"""How long after the start a status may wait for the first reports."""


@dataclass(slots=True)
class Problems:
    """What went wrong with children, for the conditions.

    Args:
        taken: children that a stranger holds, as ``Service/NAME``.
        refused: why the apiserver did not take a child, of the first such, where a condition is to show it.
        failed: the first error that calls for another try with backoff.
    """

    taken: list[str] = field(default_factory=list)
    refused: Refusal | None = None
    failed: ClusterError | None = field(default=None, compare=False)

    @property
    def any(self) -> bool:
        """Whether anything went wrong."""
        return bool(self.taken) or self.refused is not None

    @property
    def unpublished(self) -> bool:
        """Whether a write has failed that no condition shows yet.

        Until it succeeds or is shown, no status may claim a generation that the children are not of.
        """
        return self.failed is not None and self.refused is None


@dataclass(slots=True, kw_only=True)
class Scaled:
    """What the autoscaler last said of a backend.

    Args:
        recommendation: its last one.
        unpublished: changes written through ``/scale`` that no status shows yet, the oldest first.
        foreign: somebody else whose number stands for now.
        refused: why the apiserver did not take the last write through ``/scale``, if so.
    """

    recommendation: Recommendation | None = None
    unpublished: list[ScalingEntry] = field(default_factory=list)
    foreign: OtherScaler | None = None
    refused: Refusal | None = None


@dataclass(slots=True, kw_only=True)
class Trial:
    """An interval at whose end a release's candidate is judged.

    Args:
        of: the pair, and the times in the split's status from which on it counts.
        began: monotonic seconds.
        interval: what was counted in it, once it is over.
        verdicts: those that it has ended with, until the status holds them.
        asking: asks Prometheus at its end.
    """

    of: tuple[str | None, ...]
    began: float
    interval: Interval | None = None
    verdicts: tuple[Verdict, ...] | None = None
    asking: asyncio.Task[dict[str, float | NoValue]] | None = None


@dataclass(slots=True, kw_only=True)
class Memory:
    """What reconcilers remember between two runs of a key; the rest is in the store and the reports.

    Args:
        render: what the installation decides; replaced when the certificate authorities change.
        load_turns: whose load is shown next.
        router_problems: by namespace, since a router has no object of its own to carry conditions; those of
            an endpoint's own router by its key.
        switched: when an endpoint's Service was led to its own router, monotonic seconds.
        scaled: by backend.
        status_in_flight: the statuses that are being written: when a watch shows them, nothing has changed.
        started: when the first list was complete, monotonic seconds.
        trials: the intervals that are under way, by split.
        followed: the endpoints whose requests are counted for a release, by split.
        asking: the turns to ask Prometheus, by namespace, as long as somebody there waits for one.
    """

    render: RenderConfig
    load_turns: LoadTurns
    router_problems: dict[str | Key, Problems] = field(default_factory=dict)
    switched: dict[Key, float] = field(default_factory=dict)
    scaled: dict[Key, Scaled] = field(default_factory=dict)
    status_in_flight: dict[Key, Obj] = field(default_factory=dict)
    started: float = float("-inf")
    trials: dict[Key, Trial] = field(default_factory=dict)
    followed: dict[Key, str] = field(default_factory=dict)
    asking: WeakValueDictionary[str, asyncio.Semaphore] = field(default_factory=WeakValueDictionary)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The shared pieces that reconcilers depend on.

    Args:
        cluster: where writes go.
        store: what is known.
        view: the store read as resources.
        applier: the apply rule.
        reports: what pods said.
        memory: what is remembered between two runs of a key.
        clock: time.
        log: called with a constant message and fields.
        observer: counts writes.
        enqueue: asks for a look at a key, after so many seconds.
        failures: how often in a row a key has failed.
        changed: called with each change that the answer to one of our own writes brought; the manager's.
        identity: our own name, for Events.
        emit: takes Events to be sent beside the work; None sends each at once.
        draw_secret: draws a secret for a pod template.
        prometheus: answers the queries of releases.
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
    enqueue: Callable[[Key, float], None]
    failures: Callable[[Key], int] = lambda _key: 0
    changed: Callable[[Change], None] = lambda _change: None
    identity: str = "penstock-operator"
    emit: Callable[[Obj], Awaitable[None]] | None = None
    draw_secret: Callable[[], str] = lambda: secrets.token_hex(16)
    prometheus: Prometheus = field(default_factory=Prometheus)

    @property
    def render(self) -> RenderConfig:
        """What the installation decides, as of now."""
        return self.memory.render

    def now(self) -> str:
        """Wall time as conditions spell it."""
        return rfc3339(self.clock.now())

    def settling_time(
        self, stored: Obj, pods: Sequence[Obj], reports: Mapping[str, object], *, unsure: bool = False
    ) -> float | None:
        """Whether a status had better wait: we have just started, and ready pods had no time to report yet.

        Without this every restart of the operator would write "no reports" into each status and take it back.

        Args:
            stored: whose status; one that is behind the object's own generation does not wait.
            pods: the pods that are to report.
            reports: by pod.
            unsure: something else that the status shows is not known again yet.

        Returns:
            Seconds after which to look again, None when there is nothing to wait for.
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
    """A stored object's conditions by type.

    Args:
        stored: any object of ours.
    """
    return {entry["type"]: entry for entry in (stored.get("status") or {}).get("conditions") or ()}
