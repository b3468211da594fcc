"""Items that wait, by tenant: tenants take turns, so however many items one has, each other one is next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class FairTurns(Generic[T]):
    """Distinct items; those of a tenant come in the order in which they were added. Each call takes O(1)."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Hashable, OrderedDict[T, None]] = OrderedDict()
        """Items by tenant; the tenant whose turn is next comes first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, tenant: Hashable, item: T) -> None:
        """Add an item, as the tenant's last; nothing happens if it waits already."""
        items = self._waiting.setdefault(tenant, OrderedDict())
        self._count += item not in items
        items.setdefault(item)

    def discard(self, tenant: Hashable, item: T) -> bool:
        """Remove an item; return whether it waited."""
        items = self._waiting.get(tenant)
        if items is None or item not in items:
            return False
        del items[item]
        self._count -= 1
        if not items:
            del self._waiting[tenant]
        return True

    def pop(self, may: Callable[[Hashable], bool] = lambda _tenant: True) -> T | None:
        """Remove and return the next item; None if there is none.

        Args:
            may: whether a tenant may have a turn now; one that may not stays in front.
        """
        for tenant in self._waiting:
            if may(tenant):
                return self._pop(tenant)
        return None

    def pop_of_most(self) -> T | None:
        """Remove and return the first item of the tenant that has most; takes O(tenants)."""
        if not self._waiting:
            return None
        return self._pop(max(self._waiting, key=lambda tenant: len(self._waiting[tenant])))

    def _pop(self, tenant: Hashable) -> T:
        items = self._waiting.pop(tenant)
        item, _ = items.popitem(last=False)
        self._count -= 1
        if items:
            self._waiting[tenant] = items
        return item
