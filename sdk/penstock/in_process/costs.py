"""What an item costs, by the user's function or by a path into the item."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from penstock_wire.contract import COST_PATH

Cost = Callable[[Any], float] | str
"""A function of an item, or a path as in a BatchPolicy: `$`, or members as in `$.input.text`."""
MOST = 1e9
"""The largest cost of an item."""


def checked(cost: object, where: str) -> Cost | None:
    """Return a cost as a user gives it, or None (raises TypeError or ValueError).

    Args:
        cost: the value.
        where: what it belongs to, for messages.
    """
    if cost is None:
        return None
    if isinstance(cost, str):
        if re.search(COST_PATH, cost) is None:
            raise ValueError(f"{where}: expected cost to be a path such as $ or $.text, found {cost!r}")
        return cost
    if not callable(cost):
        raise TypeError(f"{where}: expected cost to be a function of an item, or a path, found {cost!r}")
    return cost


def reader(cost: Cost) -> Callable[[Any], int]:
    """Return a function that reads what an item costs.

    It raises ValueError or TypeError if that is not a number from 0 to `MOST`, and whatever `cost` raises.
    """
    read = _by_path(cost) if isinstance(cost, str) else cost

    def of(item: Any) -> int:
        value = read(item)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"cost: expected a number from 0 to {MOST:.0f}, found {value!r}")
        if not 0 <= float(value) <= MOST:
            raise ValueError(f"cost: expected a number from 0 to {MOST:.0f}, found {value!r}")
        return math.ceil(float(value))

    return of


def _by_path(path: str) -> Callable[[Any], Any]:
    names = path.split(".")[1:]

    def read(item: Any) -> Any:
        value = item
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, str | list | tuple):
            return len(value)
        if value is None or isinstance(value, bool) or not isinstance(value, Real):
            found = "nothing" if value is None else type(value).__name__
            raise ValueError(f"{path}: expected a text, an array, or a number, found {found}")
        return value

    return read
