"""One model's answer is the next one's item: `penstock run chain:app`.

    curl -s localhost:8000 -d '{"instances": [5]}'        # {"predictions":[12]}: (5 + 1) * 2

`Steps` awaits once. The first answer goes to the second call as soon as it is there.
"""

from __future__ import annotations

from typing import Any

import penstock


@penstock.backend
class Adder:
    """Adds a number to many at once."""

    def __init__(self, increment: int) -> None:
        self.increment = increment

    @penstock.batched
    def add(self, values: list[int]) -> list[int]:
        """One run for a whole batch."""
        return [value + self.increment for value in values]


@penstock.backend
class Multiplier:
    """Multiplies many at once."""

    def __init__(self, multiple: int) -> None:
        self.multiple = multiple

    @penstock.batched
    def multiply(self, values: list[int]) -> list[int]:
        """One run for a whole batch."""
        return [value * self.multiple for value in values]


@penstock.backend
class Steps:
    """Calls the two, one behind the other."""

    def __init__(self, adder: Any, multiplier: Any) -> None:
        self.adder = adder
        self.multiplier = multiplier

    async def __call__(self, value: int) -> Any:
        """Works for one request."""
        return await self.multiplier(self.adder(value))


app = Steps.bind(Adder.bind(1), Multiplier.bind(multiple=2))
