"""A stream through two hops, piece by piece: `penstock run stream:app`.

curl -sN localhost:8000 -H 'accept: text/event-stream' -d '{"instances": [3]}'
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import penstock


@penstock.backend(spec={"batching": {"maxBatchSize": 8, "maxConcurrentBatches": 4}})
class Counter:
    """Counts for many clients in one run."""

    @penstock.batched
    def count(self, limits: list[int]) -> Iterator[list[Any]]:
        """Each step has the next number of each client's."""
        for step in range(max(limits) + 1):
            yield [step if step < limit else penstock.END for limit in limits]


@penstock.backend
class Squares:
    """Passes on what it reads."""

    def __init__(self, counter: Any) -> None:
        self.counter = counter.options(stream=True)

    async def __call__(self, limit: int) -> AsyncIterator[int]:
        """Each piece goes on as soon as it is there."""
        async for number in self.counter(limit):
            yield number * number


app = Squares.bind(Counter.bind())
