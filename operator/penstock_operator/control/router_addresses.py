"""The addresses of the routers that report, for the sidecars of their namespaces: whom these may believe."""

from __future__ import annotations

from penstock_operator.clock import Clock
from penstock_operator.kinds import POD
from penstock_operator.store import Store

FRESH = 60.0
"""Seconds after its last report for which a router is one."""


class RouterAddresses:
    """The addresses of pods that have reported as routers, and so were authenticated as such."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        # When each pod (its namespace and name) reported last, by the namespace that it serves.
        self._seen: dict[str, dict[tuple[str, str], float]] = {}
        self._pruned = 0.0

    def note(self, namespace: str, home: str, pod: str) -> None:
        """Note that a router has reported.

        Args:
            namespace: what it serves.
            home: where its pod is.
        """
        now = self._clock.time()
        self._seen.setdefault(namespace, {})[home, pod] = now
        if now > self._pruned + FRESH:
            self._pruned = now
            fresh = {where: self._fresh(where) for where in self._seen}
            self._seen = {where: pods for where, pods in fresh.items() if pods}

    def of(self, namespace: str) -> tuple[str, ...]:
        """The addresses of a namespace's routers; empty if none has reported."""
        addresses: set[str] = set()
        for home, name in self._fresh(namespace):
            status = (self._store.get(POD, home, name) or {}).get("status") or {}
            addresses.update([entry["ip"] for entry in status.get("podIPs") or () if entry.get("ip")])
            addresses.update([status["podIP"]] if status.get("podIP") else ())
        return tuple(sorted(addresses))

    def _fresh(self, namespace: str) -> dict[tuple[str, str], float]:
        since = self._clock.time() - FRESH
        return {pod: at for pod, at in self._seen.get(namespace, {}).items() if at >= since}
