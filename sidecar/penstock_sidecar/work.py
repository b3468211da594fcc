"""The work of a batch: what its time depends on, in items of the usual cost. Pure.

    time = a + b · work
    work = per_item · n + per_cost · Σc + per_padded · n · max(c) + per_square · n · max(c)²

`n` is the number of a batch's items and `c` the cost of one, a length in most cases. The last two terms are
what a batch takes whose items are padded to the longest: layers that see each token alone, and attention.
A `c` above `cap` counts as that: most models cut long texts off. Where there is a cap, `per_cost` is 0, since
what Σc is of costs that are cut off cannot be said by their sum.
While costs explain nothing there is no formula, and the work of a batch is its number of items.
`estimators.cost_fit` finds the formula.
"""

from __future__ import annotations

import math

LEAST = 1e-3
"""What an item counts at least as a load: a pod that has some is not idle."""


class WorkFormula:
    """How work is computed.

    Args:
        per_item: work of an item, whatever it costs.
        per_cost: work of a unit of cost.
        per_padded: work of a unit of cost to which an item is padded.
        per_square: work of the square of that unit.
        cap: the largest cost that counts; infinite unless `per_cost` is 0.

    `pads` is True if the longest item costs the others time. `overhead` is the time that a batch of any work
    takes, `a / b`, as work, and `thrifty` the work beyond which batches take longer for their work; the
    latency model sets both. `usual` is the work of the mean item among its like, and `most` of the most
    expensive one that may be believed; `cost_fit` sets both.
    """

    __slots__ = (
        "cap",
        "most",
        "overhead",
        "pads",
        "per_cost",
        "per_item",
        "per_padded",
        "per_square",
        "thrifty",
        "usual",
    )

    def __init__(
        self,
        per_item: float,
        per_cost: float,
        per_padded: float,
        per_square: float = 0.0,
        cap: float = math.inf,
    ) -> None:
        self.per_item = per_item
        self.per_cost = per_cost
        self.per_padded = per_padded
        self.per_square = per_square
        self.cap = cap
        self.pads = per_padded > 0.0 or per_square > 0.0
        self.overhead = 0.0
        self.usual = 1.0
        self.most = self.thrifty = math.inf

    def __repr__(self) -> str:
        parts = (self.per_item, self.per_cost, self.per_padded, self.per_square, self.cap)
        return f"WorkFormula({', '.join([f'{part:.3g}' for part in parts])})"

    def terms(self) -> dict[str, float]:
        """The work of each term, by the term's name, without those that do not count."""
        terms = {
            "item": self.per_item,
            "cost": self.per_cost,
            "padded": self.per_padded,
            "square": self.per_square,
        }
        return {name: value for name, value in terms.items() if value > 0.0}

    def of(self, items: float, cost: float, longest: float) -> float:
        """The work of a batch.

        Args:
            items: its items.
            cost: the sum of their costs.
            longest: the largest of their costs.
        """
        longest = min(longest, self.cap)
        padded = items * longest
        return (
            self.per_item * items
            + self.per_cost * cost
            + self.per_padded * padded
            + self.per_square * padded * longest
        )

    def alone(self, items: float, cost: float, longest: float) -> float:
        """The work of items among others of the same cost: what they take where nothing is padded.

        Args:
            items: the items.
            cost: the sum of their costs.
            longest: the largest of their costs.
        """
        if longest > self.cap:  # exact for one item, for one that is cut off, and if all are; else too much
            cost = min(cost - longest + self.cap, items * self.cap)
            longest = self.cap
        each = self.per_cost + self.per_padded + self.per_square * longest
        return self.per_item * items + each * cost

    def load(self, items: float, cost: float, longest: float) -> float:
        """As how many items of the usual cost these count, whatever batch they will be in.

        One that claims to cost more than has been measured counts as the most that may be believed.
        """
        load = min(self.alone(items, cost, longest), items * self.most) / self.usual
        return max(load, LEAST * items)
