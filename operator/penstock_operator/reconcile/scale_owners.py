"""Finds which client has set a backend's replicas, and how long its number stands.

A number that another client writes through ``/scale`` stands for a while. A number in an applied manifest
does not: it can be there by mistake, so the autoscaler takes over at once. A client that applies it again and
again (usually GitOps) would throw the backend back each time: the third number within an hour stands, too.

NB: a 0 that is written through ``/scale`` has no owner (Kubernetes 1.36: a Scale leaves out a 0, and with it
the owner), and neither have the numbers after it, until a client applies one. If the autoscaler asked for
the number, it is the autoscaler's; for a 0, a new leader goes by the status.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from penstock_operator.kube.cluster import SCALE_MANAGER, Obj
from penstock_operator.store import owners_of_replicas

YIELD = 300.0
"""Seconds for which another client's number stands before the autoscaler takes over, counted from when this
process first saw it. If the client writes again within that time after the end, it stands twice as long."""

YIELD_MOST = 86_400.0
"""Seconds for which another client's number stands at most."""

SOMEBODY = "another client"
"""Name for the client that has written a number without an owner."""

INSISTS = 3600.0
"""Seconds within which two takeovers from a client that applies its number show that it insists on it."""


def owns_replicas(stored: Obj) -> bool:
    """Whether the autoscaler is an owner of ``spec.replicas`` already."""
    return any(entry.get("manager") == SCALE_MANAGER for entry in owners_of_replicas(stored))


def owned_by_others(stored: Obj) -> bool:
    """Whether others own ``spec.replicas``, and the autoscaler does not."""
    return bool(owners_of_replicas(stored)) and not owns_replicas(stored)


def foreign_scaler(stored: Obj) -> str | None:
    """The manager that owns ``spec.replicas`` through ``/scale``; None if the autoscaler is an owner."""
    return _owner(stored, subresource="scale")


def kept_at_zero(stored: Obj) -> bool:
    """Whether the status says that another client has scaled the backend to 0, which stays."""
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
        applies: whether it applies the backend with ``spec.replicas``; else it writes ``/scale``.
        stands: seconds for which its number stands, from when it was first seen.
    """

    manager: str
    applies: bool = False
    stands: float = YIELD


@dataclass(slots=True)
class OtherScalers:
    """The memory of other clients that set the replicas of one backend."""

    _mark: tuple[str, int] | None = None
    """Another client and the number that it has set."""
    _since: float = 0.0
    """Time at which `_mark` was first seen."""
    _stands: float = YIELD
    """Seconds for which the last number of another client stands."""
    _ended: float = math.inf
    """Time until which it stands."""
    _taken: list[float] = field(default_factory=list)
    """Times at which the autoscaler took over from a client that applies a number; the last two."""
    _written_over: str = ""
    """The version of the backend over which the autoscaler last wrote its number."""
    _wrote: int = 0
    """That number."""
    _before: int | None = None
    """The number at the last look."""
    _nameless: bool = False
    """Whether the present number has no owner and is another client's."""

    def number(self, stored: Obj, current: int) -> int:
        """The number in force: the autoscaler's last one while the store is behind, else `current`."""
        return self._wrote if self._is_behind(stored) else current

    def took_over(self, stored: Obj, number: int, now: float) -> None:
        """Record that the autoscaler has written its number, maybe over another client's."""
        if not self._is_behind(stored) and _owner(stored, subresource=None) is not None:
            self._taken = [*(at for at in self._taken if now - at < INSISTS), now][-2:]
        self._written_over, self._wrote = str(stored["metadata"].get("resourceVersion")), number

    def _is_behind(self, stored: Obj) -> bool:
        return self._written_over == str(stored["metadata"].get("resourceVersion"))

    def yields_to(self, stored: Obj, current: int, now: float, *, asked: bool = False) -> OtherScaler | None:
        """Return the other client whose number stands now, if any; a 0 stands until it sets another.

        Args:
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
            if self._is_behind(stored):
                return None
            self._mark, self._written_over = None, ""  # set again, even if it is the same number
        # NB: counted from when we saw it: the apiserver's time of the write comes from another clock.
        if self._mark is None and self._ended <= now:  # we took over, and it is back
            back = now - self._ended < (INSISTS if applies else self._stands)
            self._stands = min(2 * self._stands, YIELD_MOST) if back else YIELD
        if self._mark != (manager, current):
            self._mark, self._since = (manager, current), now
        self._ended = self._since + self._stands
        stands = current == 0 or now - self._since < self._stands
        if not stands:
            self._nameless = False  # the autoscaler's from now on, also where it leaves it as it is
        return OtherScaler(manager=manager, applies=applies, stands=self._stands) if stands else None

    def _is_nameless(self, stored: Obj, current: int, *, asked: bool) -> bool:
        """Whether the number has no owner and the autoscaler has not asked for it."""
        before, self._before = self._before, current
        if owners_of_replicas(stored):
            self._nameless = False
        elif before is None:
            self._nameless = current == 0 and kept_at_zero(stored)
        elif before != current:
            self._nameless = not asked
        return self._nameless

    def _insists(self, stored: Obj, current: int, now: float) -> bool:
        """Whether the client that applies this number has done so too often for a mistake."""
        if self._mark is not None and self._mark == (_owner(stored, subresource=None), current):
            return True
        return len(self._taken) == 2 and now - self._taken[0] < INSISTS
