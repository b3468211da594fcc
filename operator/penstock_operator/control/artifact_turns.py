"""Who copies an artifact from whom: pods that download stand in a line, behind those that have all files.

The first in line copies from a pod that has them, or reads the origin if there is none; each other pod copies
from the one before it, which need not be done for that. So the origin is read once, however many pods start
at once, and no pod serves more than one other while there are more that have the files.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from penstock_operator.clock import Clock
from penstock_operator.kinds import BACKEND, POD
from penstock_operator.store import Store
from penstock_wire.control.artifact import ArtifactTurn
from penstock_wire.control.report import SidecarReport

SETTLE = 3.0
"""Seconds after the start in which no pod is sent to the origin: those that are ahead have yet to report."""
MISSING = 3.0
"""Reports that a pod may miss before it loses its place."""
KEPT = 60.0
"""Seconds without a report after which a line is dropped."""


@dataclass(slots=True)
class _Seen:
    """A pod, by its last report.

    Args:
        until: when the report is no longer fresh.
    """

    pod: str
    here: int
    until: float


def _new_key() -> str:
    return secrets.token_hex(32)


@dataclass(slots=True)
class _Line:
    """The pods of one artifact, by uid; `coming` in the order in which they copy.

    Those that have all files have the key before a pod comes, which so need not wait for their next report;
    it is a new one each time that none is coming any more.
    """

    key: str = field(default_factory=_new_key)
    used: bool = False
    whole: dict[str, _Seen] = field(default_factory=dict)
    coming: dict[str, _Seen] = field(default_factory=dict)
    pruned: float = 0.0

    def prune(self, now: float) -> None:
        """Drop the pods that are silent, once a second."""
        if now < self.pruned + 1.0:
            return
        self.pruned = now
        self.whole = {uid: seen for uid, seen in self.whole.items() if seen.until >= now}
        self.coming = {uid: seen for uid, seen in self.coming.items() if seen.until >= now}

    def note(self, uid: str, seen: _Seen, *, whole: bool) -> None:
        """Note a report; a pod that is new in line stands behind all that are as far as it is."""
        if whole:
            self.coming.pop(uid, None)
            self.whole[uid] = seen
            return
        self.whole.pop(uid, None)
        known = uid in self.coming
        self.coming[uid] = seen
        if not known and seen.here:
            order = sorted(self.coming.items(), key=lambda each: -each[1].here)
            self.coming = dict(order)


class ArtifactTurns:
    """The lines of all artifacts, in memory: pods that wait have them again within seconds of a restart."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._started: float | None = None
        self._lines: dict[tuple[str, str, str], _Line] = {}

    def of(self, namespace: str, backend: str, report: SidecarReport, *, every: float) -> ArtifactTurn | None:
        """Note how far a pod is, and say whom it copies from.

        Args:
            every: seconds until its next report.

        Returns:
            None without an artifact; or as long as it is not known whom a pod copies from.
        """
        state, now = report.artifact, self._clock.time()
        if self._started is None:
            self._started = now
        if state is None:
            return None
        at = (namespace, backend, state.source)
        line = self._lines.get(at)
        if line is None:
            self._lines = {at: line for at, line in self._lines.items() if line.pruned >= now - KEPT}
            line = self._lines[at] = _Line()
        line.prune(now)
        seen = _Seen(pod=report.pod, here=state.here, until=now + MISSING * every)
        if not state.digest:
            line.note(report.uid, seen, whole=False)
        elif report.state != "draining" and self._is_right(namespace, backend, state.digest):
            line.note(report.uid, seen, whole=True)
        if not line.coming and line.used:
            line.key = _new_key()
        line.used = bool(line.coming)
        if state.digest:
            return ArtifactTurn(source=state.source, key=line.key)
        ahead = self._ahead(namespace, line, report.uid)
        if ahead is None or (not ahead and now < self._started + SETTLE):
            return None
        return ArtifactTurn(source=state.source, key=line.key, neighbour=ahead)

    def _ahead(self, namespace: str, line: _Line, uid: str) -> str | None:
        """The address of the pod that another copies from; "" for the origin, None while it has none."""
        row = [*(line.whole or [""]), *line.coming]
        before = row[list(line.coming).index(uid)]
        if not before:
            return ""
        pod = (line.whole.get(before) or line.coming[before]).pod
        return ((self._store.get(POD, namespace, pod) or {}).get("status") or {}).get("podIP") or None

    def _is_right(self, namespace: str, backend: str, digest: str) -> bool:
        """Whether files of this digest are those of the first download, or may yet be."""
        status = (self._store.get(BACKEND, namespace, backend) or {}).get("status") or {}
        return (status.get("artifact") or {}).get("digest") in (None, digest)
