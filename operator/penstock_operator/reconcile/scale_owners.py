"""Who has set the replicas of a backend: the autoscaler, or somebody else; and for how long that stands.

A number that somebody writes through ``/scale`` stands for a while. One in what somebody applies does not:
a manifest may have it by mistake, and the autoscaler takes over at once. Who applies it again and again
(GitOps, mostly) would throw the backend back each time: the third number within an hour stands, too.

NB: a 0 that is written through ``/scale`` has no owner (Kubernetes 1.36: a Scale leaves out a 0, and with it
who wrote it), and neither have the numbers after it, until somebody applies one. Whether such a number is the
autoscaler's is known by what it asked for; of a 0 a new leader goes by the status.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from penstock_operator.kube.cluster import SCALE_MANAGER, Obj
from penstock_operator.store import owners_of_replicas

YIELD = 300.0
"""Seconds for which somebody else's number stands before the autoscaler takes over, counted from when this
process first saw it. Where it is written again within that time, it stands twice as long then."""

YIELD_MOST = 86_400.0
"""Seconds for which it stands at most."""

SOMEBODY = "another client"
"""Who has written a number without an owner."""

INSISTS = 3600.0
"""Who applies a number after the autoscaler took over from it twice within so many seconds insists on it."""


def owns_replicas(stored: Obj) -> bool:
    """Whether the autoscaler is an owner of ``spec.replicas`` already.

    Args:
        stored: the backend.
    """
    return any(entry.get("manager") == SCALE_MANAGER for entry in owners_of_replicas(stored))


def foreign_scaler(stored: Obj) -> str | None:
    """The manager that owns ``spec.replicas`` through ``/scale`` where the autoscaler does not.

    Args:
        stored: the backend.
    """
    return _owner(stored, subresource="scale")


def kept_at_zero(stored: Obj) -> bool:
    """Whether the status says that somebody else has scaled it to 0, which stays.

    Args:
        stored: the backend.
    """
    conditions = (stored.get("status") or {}).get("conditions") or ()
    return any(
        each.get("type") == "ScalingActive" and each.get("reason") == "ScalingDisabled" for each in conditions
    )


def _owner(stored: Obj, subresource: str | None) -> str | None:
    if owns_replicas(stored):
        return None
    for entry in owners_of_replicas(stored):
        if entry.get("subresource") == subresource:
            return str(entry.get("manager") or "unknown")
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherScaler:
    """Another client whose number stands now.

    Args:
        manager: its name among the owners of fields.
        applies: whether it applies the backend with ``spec.replicas``; else it writes ``/scale``.
        stands: for how many seconds its number stands, from when it was seen.
    """

    manager: str
    applies: bool = False
    stands: float = YIELD


@dataclass(slots=True)
class OtherScalers:
    """What is remembered of those who set the replicas of one backend beside the autoscaler."""

    _mark: tuple[str, int] | None = None
    """The number that somebody has set, and who,"""
    _since: float = 0.0
    """and when it was first seen."""
    _stands: float = YIELD
    """For how long the last such number stood,"""
    _ended: float = math.inf
    """and until when."""
    _taken: list[float] = field(default_factory=list)
    """When the autoscaler took over from who applies a number."""
    _written_over: str = ""
    """The version of the backend that the autoscaler last wrote its number over."""
    _before: int | None = None
    """The number at the last look."""
    _nameless: bool = False
    """Whether the number that is there has no owner and is somebody else's."""

    def took_over(self, stored: Obj, now: float) -> None:
        """The autoscaler has written its number, maybe over that of another client.

        Args:
            stored: the backend as it was before.
            now: the time in seconds.
        """
        self._written_over = str(stored["metadata"].get("resourceVersion"))
        if _owner(stored, subresource=None) is not None:
            self._taken = [*(at for at in self._taken if now - at < INSISTS), now][-2:]

    def yields_to(self, stored: Obj, current: int, now: float, *, asked: bool = False) -> OtherScaler | None:
        """Who has set the replicas so lately that the number stands; a 0 stands until it sets another.

        Args:
            stored: the backend.
            current: `spec.replicas` now.
            now: the time in seconds.
            asked: whether the autoscaler has asked for this number since the last look.
        """
        manager, applies = foreign_scaler(stored), False
        if self._is_nameless(stored, current, asked=asked):
            manager = SOMEBODY
        if manager is None and self._insists(stored, current, now):
            manager, applies = _owner(stored, subresource=None), True
        if manager is None:
            self._mark = None
            return None
        if self._written_over:
            if self._written_over == str(stored["metadata"].get("resourceVersion")):
                return None  # the store is behind
            self._mark, self._written_over = None, ""  # set anew, even if it is the same number
        # NB: counted from when we saw it: the apiserver's time of the write is another clock's.
        if self._mark is None and self._ended <= now:  # we took over, and it is back
            back = now - self._ended < (INSISTS if applies else self._stands)
            self._stands = min(2 * self._stands, YIELD_MOST) if back else YIELD
        if self._mark != (manager, current):
            self._mark, self._since = (manager, current), now
        self._ended = self._since + self._stands
        stands = current == 0 or now - self._since < self._stands
        return OtherScaler(manager=manager, applies=applies, stands=self._stands) if stands else None

    def _is_nameless(self, stored: Obj, current: int, *, asked: bool) -> bool:
        """Whether there is a number without an owner that the autoscaler has not asked for."""
        before, self._before = self._before, current
        if owners_of_replicas(stored):
            self._nameless = False
        elif before is None:
            self._nameless = current == 0 and kept_at_zero(stored)
        elif before != current:
            self._nameless = not asked
        return self._nameless

    def _insists(self, stored: Obj, current: int, now: float) -> bool:
        """Whether who applies this number has done so too often for a mistake."""
        if self._mark is not None and self._mark == (_owner(stored, subresource=None), current):
            return True
        return len(self._taken) == 2 and now - self._taken[0] < INSISTS
