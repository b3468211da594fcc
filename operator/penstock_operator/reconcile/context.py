"""What every reconciler is given."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock_operator.api.backendstatus import ScalingEntry
from penstock_operator.apply import Applier
from penstock_operator.autoscaling import Recommendation
from penstock_operator.clock import Clock, rfc3339
from penstock_operator.desired.config import RenderConfig
from penstock_operator.errors import ClusterError, NameTaken, Rejected
from penstock_operator.kinds import SERVICE, kind_of
from penstock_operator.kube.cluster import Cluster, Obj, WriteObserver
from penstock_operator.reconcile.load_turns import LoadTurns
from penstock_operator.reconcile.view import View
from penstock_operator.reports import Reports
from penstock_operator.status import Refusal, refusal
from penstock_operator.store import Change, Key, Store, key_of, owner_uids


@dataclass(slots=True)
class Problems:
    """What went wrong with children, for the conditions.

    Args:
        taken: children that a stranger holds, as ``Service/NAME``.
        refused: why the apiserver did not take a child, of the first such, where that is to be told.
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
    def untold(self) -> bool:
        """Whether a write has failed of which no condition tells yet.

        Until it is made or told, nothing may be claimed for a generation that the children are not of.
        """
        return self.failed is not None and self.refused is None


@dataclass(slots=True, kw_only=True)
class Scaled:
    """What the autoscaler last said of a backend.

    Args:
        recommendation: its last one.
        untold: changes written through ``/scale`` that no status tells of yet, the oldest first.
        foreign: another manager that writes ``/scale``.
        refused: why the apiserver did not take the last write through ``/scale``, if so.
    """

    recommendation: Recommendation | None = None
    untold: list[ScalingEntry] = field(default_factory=list)
    foreign: str | None = None
    refused: Refusal | None = None


@dataclass(slots=True, kw_only=True)
class Context:
    """The shared pieces, and the little that is remembered between two runs of a key.

    Args:
        cluster: where writes go.
        store: what is known.
        view: the store read as resources.
        applier: the apply rule.
        reports: what pods said.
        render: what the installation decides.
        clock: time.
        log: called with a constant message and fields.
        observer: counts writes.
        enqueue: asks for a look at a key, after so many seconds.
        failures: how often in a row a key has failed.
        changed: told of what answers to our own writes brought; the manager puts itself here.
        identity: our own name, for Events.
        emit: takes Events to be sent beside the work; None sends each at once.
        draw_secret: draws a secret for a pod template.
        router_problems: by namespace, since a router has no object of its own to carry conditions.
        scaled: by backend.
        saying: the statuses that are being written: what a watch tells of them is no news.
        started: when the first list was complete, monotonic seconds.
    """

    cluster: Cluster
    store: Store
    view: View
    applier: Applier
    reports: Reports
    render: RenderConfig
    clock: Clock
    log: Callable[..., None]
    observer: WriteObserver
    enqueue: Callable[[Key, float], None]
    failures: Callable[[Key], int] = lambda _key: 0
    changed: Callable[[Change], None] = lambda _change: None
    identity: str = "penstock-operator"
    emit: Callable[[Obj], Awaitable[None]] | None = None
    draw_secret: Callable[[], str] = lambda: secrets.token_hex(16)
    router_problems: dict[str, Problems] = field(default_factory=dict)
    scaled: dict[Key, Scaled] = field(default_factory=dict)
    saying: dict[Key, Obj] = field(default_factory=dict)
    started: float = float("-inf")
    load_turns: LoadTurns = field(init=False)
    """Whose load is shown next."""

    def __post_init__(self) -> None:
        self.load_turns = LoadTurns(self.clock, lambda key: self.enqueue(key, 0.0))

    def now(self) -> str:
        """Wall time as conditions spell it."""
        return rfc3339(self.clock.now())

    def unheard(
        self, stored: Obj, pods: Sequence[Obj], reports: Mapping[str, object], *, unsure: bool = False
    ) -> float | None:
        """Whether a status had better wait: we have just started, and ready pods had no time to report yet.

        Without this every restart of the operator would write "no reports" into each status and take it back.

        Args:
            stored: whose status; one that is behind the object's own generation does not wait.
            pods: the pods that are to report.
            reports: by pod.
            unsure: something else that the status tells is not known again yet.

        Returns:
            Seconds after which to look again, None when there is nothing to wait for.
        """
        left = self.started + SETTLE_SECONDS - self.clock.time()
        current = (stored.get("status") or {}).get("observedGeneration") == stored["metadata"].get(
            "generation"
        )
        if left <= 0 or not current:
            return None
        silent = unsure or any(is_ready(pod) and pod["metadata"]["name"] not in reports for pod in pods)
        return left if silent else None

    async def settle(
        self,
        of: Key,
        desired: Sequence[Obj],
        *,
        owners: Sequence[str],
        candidates: Callable[[], Sequence[Obj]],
        shared: bool = False,
        looked: dict[Key, Obj | None] | None = None,
        confirm: Callable[[], Awaitable[None]],
    ) -> Problems:
        """Apply what differs and delete what is no longer desired; what cannot be written is told.

        Args:
            of: the key that is reconciled.
            desired: objects in the order of applying.
            owners: uids of which one must own a live object for it to be ours.
            candidates: the live objects that are there for this key, asked for after the applies.
            shared: whether the objects belong to a namespace.
            looked: live objects looked at already.
            confirm: called once, before the first object is made or gets an owner back (see `parent_check`).

        Raises:
            Outdated: who asks for all this is gone; nothing more was written.
        """
        problems = Problems()
        sure = False

        async def once() -> None:
            nonlocal sure
            if not sure:
                await confirm()
                sure = True

        for child in desired:
            key = key_of(child)
            before = self.store.get(kind_of(child), key.namespace, key.name)
            try:
                live = await self.applier.ensure(
                    child, owners=owners, shared=shared, looked=looked, confirm=once
                )
            except NameTaken as error:
                problems.taken.append(f"{error.kind}/{error.name}")
                self.log("name taken", level="warning", child=str(key), error=str(error))
            except Rejected as error:
                if error.status == 403 and _TERMINATING in error.message:
                    break  # the namespace goes, and everything in it
                self._note(problems, of, key, error)
            except ClusterError as error:
                self._note(problems, of, key, error)
                if error.status not in _OF_ONE_CHILD:
                    return problems  # it is not about this child: spare the apiserver the rest
            else:
                # NB: the watch has nothing new to tell of what an answer has told. Others look at a child's
                # status, and whether a Service is there.
                matters = child["kind"] == SERVICE.kind if before is None else _told(before) != _told(live)
                if matters:
                    self.changed(Change(before, live))
        try:
            await self.applier.prune(candidates(), [key_of(child) for child in desired])
        except ClusterError as error:
            self._note(problems, of, of, error)
        return problems

    def _note(self, problems: Problems, of: Key, child: Key, error: ClusterError) -> None:
        """Keep an error for the conditions and for the next try."""
        if isinstance(error, Rejected):
            self.log("child refused", level="warning", child=str(child), error=error.message)
        else:
            problems.failed = problems.failed or error
            if self.failures(of) < TOLD_AFTER:
                return  # most pass at the next try; a status that flickers helps nobody
        text = f"{child.kind} {child.name}"
        problems.refused = problems.refused or refusal(text, error.status, error.message)


_TERMINATING = "because it is being terminated"

_OF_ONE_CHILD = frozenset({409, 500})
"""Statuses of failures that may be one object's alone: a conflict, a webhook that does not answer."""

TOLD_AFTER = 4
"""So many failures in a row (about 1.5 s of tries) are not told in a condition yet."""

SETTLE_SECONDS = 8.0
"""How long after the start a status may wait for the first reports."""

SECONDS_AFTER_PROBLEM = 30.0
"""When to look again at a child that a stranger holds or the apiserver refuses: no event will tell."""


def _told(child: Obj) -> tuple[object, ...]:
    """What others look at of a child of somebody's."""
    return child.get("status"), sorted(owner_uids(child))


def outcome(problems: Problems) -> float | None:
    """When to look again.

    Args:
        problems: of this run.

    Raises:
        ClusterError: a write failed that is to be tried again with backoff.
    """
    if problems.failed is not None:
        raise problems.failed
    return SECONDS_AFTER_PROBLEM if problems.any else None


def conditions_of(stored: Obj) -> dict[str, dict[str, Any]]:
    """A stored object's conditions by type.

    Args:
        stored: any object of ours.
    """
    return {entry["type"]: entry for entry in (stored.get("status") or {}).get("conditions") or ()}


def is_ready(pod: Obj) -> bool:
    """Whether a pod takes requests and is not going away.

    Args:
        pod: as stored.
    """
    if pod["metadata"].get("deletionTimestamp"):
        return False
    found = (pod.get("status") or {}).get("conditions") or ()
    return any(entry.get("type") == "Ready" and entry.get("status") == "True" for entry in found)
