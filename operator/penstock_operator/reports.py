"""The latest reports of sidecars and routers, in memory only: after a restart they come within a second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec

from penstock_operator import injected
from penstock_operator.autoscaling import LoadWindow
from penstock_operator.autoscaling.window import silent_after
from penstock_operator.clock import Clock
from penstock_operator.release_counts import ReleaseCounts
from penstock_operator.traffic_window import TrafficWindow
from penstock_wire.control.report import RouterReport, SidecarReport, State, TenantReport

T = TypeVar("T", SidecarReport, RouterReport)

FRESH = silent_after(1.0)
"""Seconds for which a report is fresh, if its pod is to report every second."""

REORDERED = 6.0
"""Seconds within which a lower sequence number is a straggler; later it means a restarted container."""

LOOK_SECONDS = 4.0
"""Seconds for which what a shared router says of a namespace is not looked at again while it stays the same:
less than `FRESH`, by a few reports. A router that is to report more seldom is looked at each time."""

MAX_VERSION = 2**52
"""Versions from this on are ignored as made up. After the highest version that a pod can make up, there is
room for as many changes below the highest possible version (`desired.settings.HIGHEST`)."""


SHARED = "*"
"""Stands for the routers that several namespaces share; no endpoint has this name."""


@dataclass(frozen=True, slots=True)
class News:
    """The effect of a report.

    Args:
        taken: False for a straggler, which changed nothing.
        notable: whether the status needs a look now: the state, settings version, message, outcome of a
            userConfig or set of ports has changed.
    """

    taken: bool
    notable: bool


class Reports:
    """The last reports by backend and, of routers, by namespace and endpoint.

    Args:
        exists: whether there is a backend of this namespace and name: for others, neither reports of pods,
            which still drain, nor numbers of held requests are kept.
        asked: the backends that get requests of an endpoint of this namespace and name: only their numbers of
            answered requests are kept. None for all.
    """

    def __init__(
        self,
        clock: Clock,
        exists: Callable[[str, str], bool] = lambda _namespace, _name: True,
        asked: Callable[[str, str], Collection[str]] | None = None,
    ) -> None:
        self._clock = clock
        self._exists = exists
        self._asked = asked
        self._windows: dict[str, dict[str, LoadWindow]] = {}  # by namespace and backend
        self._sequences: dict[str, tuple[int, float]] = {}
        self._fresh_for: dict[str, float] = {}
        # By namespace and endpoint that has routers of its own, "" for the namespace's, or `SHARED`.
        self._routers: dict[str, dict[str, dict[str, tuple[float, RouterReport]]]] = {}
        self._tenants: dict[str, dict[str, TenantReport]] = {}
        """What a shared router's last report said of each namespace, by the router's uid."""
        self._taken: dict[str, int] = {}
        """The number of that report."""
        self._looked: dict[str, tuple[float, tuple[State, int]]] = {}
        """When all of it was looked at last, and its state and version, also by uid."""
        self.shared_since: dict[str, int] = {}
        """The version of the shared routers' settings that last changed a namespace's part, by namespace."""
        self.shared_version = 0
        """The highest version that a shared router has reported."""
        self._newly_held: dict[str, set[str]] = {}
        self._settings_before: dict[str, set[str]] = {}
        self._traffic: dict[str, TrafficWindow] = {}  # by namespace
        self.releases = ReleaseCounts()
        """Counts of the backends that a release compares."""

    def sidecar(self, namespace: str, backend: str, report: SidecarReport, *, every: float = 1.0) -> News:
        """Take a sidecar's report, of a backend or a workload (`injected.workload_of`)."""
        if not self._in_order(report.uid, report.seq):
            return News(taken=False, notable=False)
        if not injected.is_workload(backend) and not self._exists(namespace, backend):
            return News(taken=True, notable=False)
        window = self.window(namespace, backend)
        before = window.last(report.pod)
        window.record(report, self._clock.time(), every=every)
        notable = (
            before is None
            or _sidecar_face(before[1]) != _sidecar_face(report)
            or self._clock.time() - before[0] > self._fresh_for.get(report.uid, FRESH)
        )
        self._fresh_for[report.uid] = silent_after(every)
        return News(taken=True, notable=notable)

    def router(self, namespace: str, report: RouterReport, *, endpoint: str = "", every: float = 1.0) -> News:
        """Take a router's report.

        Args:
            endpoint: of the pod, if it serves this one alone.
        """
        if not self._in_order(report.uid, report.seq):
            return News(taken=False, notable=False)
        return self._router(namespace, report, endpoint=endpoint, every=every)

    def shared_router(self, report: RouterReport, *, every: float = 1.0) -> dict[str, News]:
        """Take the report of a router that serves several namespaces, as of one router for each.

        Returns:
            The effect by namespace, without those of which nothing new is said; empty for a straggler, and
            for a report that builds on one that was not taken.
        """
        known = self._tenants.get(report.uid, {})
        if not self._in_order(report.uid, report.seq):
            return {}
        if report.base:
            if report.base != self._taken.pop(report.uid, 0):
                return {}
            report = msgspec.structs.replace(report, tenants=known | report.tenants)
        self._taken[report.uid] = report.seq
        version, now = report.settings_version, self._clock.time()
        looked = self._looked.get(report.uid)
        everything = (
            looked is None or looked[1] != (report.state, version) or now + every - looked[0] > LOOK_SECONDS
        )
        if everything:
            self._looked[report.uid] = (now, (report.state, version))
        if version < MAX_VERSION:
            self.shared_version = max(self.shared_version, version)
        # NB: a later version is the same to a namespace whose part it has not changed.
        before = known
        gone = [namespace for namespace in before if namespace not in report.tenants]
        self._tenants[report.uid] = report.tenants
        news: dict[str, News] = {}
        for name, tenant in report.tenants.items():
            if not everything and tenant is before.get(name) and not self.releases.follows(name):
                continue
            cut = min(version, self.shared_since.get(name, version))
            if tenant == before.get(name) and self._says_nothing_new(name, report, cut):
                news[name] = News(taken=True, notable=False)
                continue
            part = msgspec.structs.replace(report.of_tenant(tenant), settings_version=cut)
            news[name] = self._router(name, part, endpoint=SHARED, every=every)
        for name in gone:
            news[name] = self._router(name, _without_tenants(report), endpoint=SHARED, every=every)
        self._fresh_for[report.uid] = silent_after(every)
        for namespace in gone:
            self._forget_router(namespace, report.pod, report.uid)
        return news

    def taken(self, uid: str) -> int:
        """The number of a shared router's last report, on which its next can build; 0 if it cannot."""
        return self._taken.get(uid, 0)

    def _says_nothing_new(self, namespace: str, report: RouterReport, version: int) -> bool:
        """Whether all that a report could change in a namespace is the time of the last one; if so, it does.

        Most namespaces of a shared router sleep, and it reports on all of them. A release needs all reports,
        as it counts only what came since the last one, and not after a silence.

        Args:
            version: of the settings, as the namespace counts it.
        """
        known = self._routers.get(namespace, {}).get(SHARED, {})
        at, last = known.get(report.pod, (0.0, None))
        now = self._clock.time()
        if (
            last is None
            or (last.uid, last.state, last.settings_version) != (report.uid, report.state, version)
            or now - at > self._fresh_for.get(report.uid, FRESH)
            or held_by_backend(last)
            or self.releases.follows(namespace)
        ):
            return False
        known[report.pod] = (now, last)
        return True

    def _router(self, namespace: str, report: RouterReport, *, endpoint: str, every: float) -> News:
        known = self._routers.setdefault(namespace, {}).setdefault(endpoint, {})
        before = known.get(report.pod)
        known[report.pod] = (self._clock.time(), report)
        self._record_held(namespace, before, report, every)
        asked = None if self._asked is None else partial(self._asked, namespace)
        traffic = self._traffic.setdefault(namespace, TrafficWindow())
        traffic.record(report, self._clock.time(), asked=asked)
        self.releases.record(namespace, report, self._clock.time())
        name, notable = "", True
        if before is not None and self._clock.time() - before[0] <= self._fresh_for.get(report.uid, FRESH):
            (settings, face), now = _router_face(before[1]), _router_face(report)
            notable = (settings, face) != now
            name = before[1].settings_digest if face == now[1] else ""
        if notable:
            self._settings_before.setdefault(namespace, set()).add(name)
        self._fresh_for[report.uid] = silent_after(every)
        return News(taken=True, notable=notable)

    def take_settings_before(self, namespace: str) -> frozenset[str]:
        """The settings from which routers have changed since the last call; "" if more than that is new."""
        return frozenset(self._settings_before.pop(namespace, ("",)))

    def take_newly_held(self, namespace: str) -> frozenset[str]:
        """Backends for which a router has begun to hold requests since the last call."""
        return frozenset(self._newly_held.pop(namespace, ()))

    def _record_held(
        self, namespace: str, before: tuple[float, RouterReport] | None, report: RouterReport, every: float
    ) -> None:
        """Record a router's held requests in their backends' windows, also when it no longer holds any."""
        now, held = self._clock.time(), held_by_backend(report)
        last = held_by_backend(before[1]) if before is not None else Counter[str]()
        for name in held | last:
            if not self._exists(namespace, name):
                continue
            self.window(namespace, name).record_held(report, held[name], now, every=every)
            if held[name] and not last[name]:
                self._newly_held.setdefault(namespace, set()).add(name)

    def workloads(self) -> list[tuple[str, str]]:
        """Namespaces and names (`injected.workload_of`) of the workloads that have reported."""
        return [
            (namespace, name)
            for namespace, windows in self._windows.items()
            for name in windows
            if injected.is_workload(name)
        ]

    def window(self, namespace: str, backend: str) -> LoadWindow:
        """The load window of a backend, made when it is first asked for."""
        windows = self._windows.setdefault(namespace, {})
        load_window = windows.get(backend)
        if load_window is None:
            load_window = windows[backend] = LoadWindow()
        return load_window

    def _known(self, namespace: str, backend: str) -> LoadWindow | None:
        return self._windows.get(namespace, {}).get(backend)

    def of_backend(self, namespace: str, backend: str) -> dict[str, SidecarReport]:
        """The fresh reports of a backend's pods, by pod."""
        window = self._known(namespace, backend)
        return self._fresh(window.latest()) if window is not None else {}

    def of_router(self, namespace: str, endpoint: str = "") -> dict[str, RouterReport]:
        """The fresh reports of a namespace's router pods, by pod.

        Args:
            endpoint: an endpoint that has routers of its own, for these instead; `SHARED` for what the
                routers that several namespaces share say of this one.
        """
        return self._fresh(self._routers.get(namespace, {}).get(endpoint, {}))

    def served(self, namespace: str, endpoint: str) -> Mapping[str, int]:
        """Requests of an endpoint that were answered within the last minute, by backend."""
        window = self._traffic.get(namespace)
        return {} if window is None else window.of(endpoint, self._clock.time())

    def errors(self, namespace: str, backend: str) -> tuple[int, Mapping[str, int]]:
        """Requests of a backend that routers answered in the last minute, and of these errors by reason."""
        window = self._traffic.get(namespace)
        return (0, {}) if window is None else window.errors(backend, self._clock.time())

    def failing(self, namespace: str) -> frozenset[str]:
        """The backends of a namespace whose clients got an error within the last minute."""
        window = self._traffic.get(namespace)
        return frozenset() if window is None else window.failing(self._clock.time())

    def answered_lately(self, namespace: str, endpoint: str, backend: str) -> int | None:
        """Requests that a backend of a release answered recently: see `ReleaseCounts.answered`."""
        silent = self._silent_routers(namespace, endpoint)
        return self.releases.answered(namespace, endpoint, backend, self._clock.time(), silent=silent)

    def _silent_routers(self, namespace: str, endpoint: str) -> frozenset[str]:
        """Uids of the router pods of an endpoint that have not reported for too long."""
        now, known = self._clock.time(), self._routers.get(namespace, {})
        return frozenset(
            report.uid
            for routers in ("", endpoint, SHARED)
            for at, report in known.get(routers, {}).values()
            if now - at > self._fresh_for.get(report.uid, FRESH)
        )

    def age(self, namespace: str, backend: str) -> float | None:
        """Seconds since the last report of the pod silent the longest; None if no pod has reported."""
        window = self._known(namespace, backend)
        oldest = window.oldest() if window is not None else None
        return None if oldest is None else self._clock.time() - oldest

    def highest_version(self, reports: Mapping[str, SidecarReport] | Mapping[str, RouterReport]) -> int:
        """The highest settings version that an older pod has applied, 0 if there is none.

        Others report a digest, and take any document that is not the one they have.
        """
        return max(
            (
                report.settings_version
                for report in reports.values()
                if not report.settings_digest and report.settings_version < MAX_VERSION
            ),
            default=0,
        )

    def forget_backend(self, namespace: str, backend: str) -> None:
        """Drop all reports of a deleted backend."""
        windows = self._windows.get(namespace, {})
        if windows.pop(backend, None) is not None and not windows:
            del self._windows[namespace]

    def forget_pod(self, namespace: str, pod: str, uid: str) -> None:
        """Drop the reports of a deleted pod, except its load, which expires in the window."""
        self._sequences.pop(uid, None)
        self._fresh_for.pop(uid, None)
        self._taken.pop(uid, None)
        self._looked.pop(uid, None)
        for window in self._windows.get(namespace, {}).values():
            window.leave(pod, uid, self._clock.time())
        for served in {namespace, *self._tenants.pop(uid, ())}:
            self._forget_router(served, pod, uid)

    def _forget_router(self, namespace: str, pod: str, uid: str) -> None:
        self.releases.forget(namespace, uid)
        routers = self._routers.get(namespace, {})
        for endpoint, known in list(routers.items()):
            if pod in known and known[pod][1].uid == uid:
                del known[pod]
                if not known:
                    del routers[endpoint]
        if not routers:
            self._routers.pop(namespace, None)
        if namespace in self._traffic:
            self._traffic[namespace].forget(uid)
            if not routers:
                del self._traffic[namespace]

    def silent(self, since: float) -> list[tuple[str, str]]:
        """Backends with a pod that fell silent since a time (for routers: their namespace, and no name)."""
        now = self._clock.time()

        def fell(
            latest: Mapping[str, tuple[float, SidecarReport]] | Mapping[str, tuple[float, RouterReport]],
        ) -> bool:
            ends = [at + self._fresh_for.get(report.uid, FRESH) for at, report in latest.values()]
            # As in `_fresh`: at the moment when its time ends, a report is still fresh.
            return any(since <= end < now for end in ends)

        backends = [
            (namespace, name)
            for namespace, windows in self._windows.items()
            for name, window in windows.items()
            if fell(window.latest())
        ]
        routers = {
            namespace: ""
            for namespace, by_endpoint in self._routers.items()
            if any(fell(known) for known in by_endpoint.values())
        }
        return [*backends, *routers.items()]

    def _in_order(self, uid: str, seq: int) -> bool:
        now = self._clock.time()
        known = self._sequences.get(uid)
        if known is not None and seq <= known[0] and now - known[1] < REORDERED and seq > 1:
            return False
        self._sequences[uid] = (seq, now)
        return True

    def _fresh(self, latest: Mapping[str, tuple[float, T]]) -> dict[str, T]:
        now = self._clock.time()
        fresh_for = self._fresh_for
        return {
            pod: report
            for pod, (at, report) in latest.items()
            if now - at <= fresh_for.get(report.uid, FRESH)
        }


def _without_tenants(report: RouterReport) -> RouterReport:
    """What a shared router's report says of a namespace that it serves no longer."""
    return msgspec.structs.replace(report, tenants={}, settings_digest="")


def held_by_backend(report: RouterReport) -> Counter[str]:
    """How many requests a router holds, by backend; without those that have none."""
    held: Counter[str] = Counter()
    for endpoint in report.endpoints.values():
        for name, totals in endpoint.backends.items():
            if totals.held:
                held[name] += totals.held
    return held


def _sidecar_face(report: SidecarReport) -> tuple[object, ...]:
    settings = (report.settings_version, report.settings_digest)
    return (report.uid, report.state, settings, report.message, report.reconfigure)


def _router_face(report: RouterReport) -> tuple[tuple[int, str], tuple[object, ...]]:
    """What a status shows of a report: the settings, and the rest."""
    ports = tuple(
        sorted((name, listener.listening, listener.error) for name, listener in report.endpoints.items())
    )
    settings = (report.settings_version, report.settings_digest)
    return settings, (report.uid, report.state, report.door, ports)
