"""Simulates `maxConcurrentBatches`, `priority` and `fairness`: `python -m tests.support.worlds.knob_tables`.

The dispatcher is the sidecar's own; the model is simulated, on a clock of its own, so that a busy machine
changes nothing. It has two stages, each for one batch at a time: it reads a batch in 4 ms, then computes in
10 ms + 0.2 ms an item. Batches hold 32 at most. Prints the tables of docs/explanation/batching.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Any

from penstock_wire.control.settings import Fairness, Priority
from penstock_wire.errors import PenstockError
from penstock_wire.http import Request, Response
from tests.support.clocks import fake_loop
from tests.support.models.scripted_model import Scripted

WARM_SECONDS, SECONDS = 3.0, 3.0
"""The first ones are not counted."""
Row = tuple[str, tuple[float, ...]]
"""A setting and its figures."""


class TwoStages(Scripted):
    """The model, and the times that its callers waited."""

    def __init__(self, **batching: Any) -> None:
        super().__init__(max_batch_size=32, max_queued_items=10_000, **batching)
        self.reading, self.computing = asyncio.Lock(), asyncio.Lock()
        self.times: dict[str, list[float]] = {}

    async def send(self, request: Request, timeout: float) -> Response:
        async with self.reading:
            await asyncio.sleep(0.004)
        await self.computing.acquire()
        try:
            self.base, self.item = 0.010, 0.0002
            return await super().send(request, timeout)
        finally:
            self.computing.release()

    async def caller(self, name: str, *, think: float = 0.0, seed: int = 0, **fields: str) -> None:
        """One that asks again when it was answered; `think` is what it thinks in the mean (exponential)."""
        dice = random.Random(f"{name} {seed}")
        times = self.times.setdefault(name, [])
        end = self.loop.time() + WARM_SECONDS + SECONDS
        while self.loop.time() < end:
            if think:
                await asyncio.sleep(dice.expovariate(1 / think))
            begun = self.loop.time()
            outcome = await self.answer(self.work(0, **fields))
            assert not isinstance(outcome, PenstockError)
            if begun > end - SECONDS:
                times.append(self.loop.time() - begun)

    def rate(self, name: str) -> float:
        """Answers a second."""
        return len(self.times[name]) / SECONDS

    def quantile(self, name: str, share: float) -> float:
        """Milliseconds within which this share was answered."""
        ordered = sorted(self.times[name])
        return ordered[int(share * (len(ordered) - 1))] * 1e3


async def slots(wanted: int) -> Row:
    s = TwoStages(max_concurrent_batches=wanted)
    await asyncio.gather(*[s.caller("all", seed=seed) for seed in range(160)])
    await s.close()
    return f"`{wanted}`", (s.rate("all"), s.quantile("all", 0.5), s.quantile("all", 0.99))


async def levels(count: int) -> Row:
    s = TwoStages(priority=Priority(levels=count, default=1))
    urgent = [s.caller("urgent", think=0.5, seed=seed) for seed in range(50)]
    bulk = [s.caller("bulk", seed=seed, x_penstock_priority="2") for seed in range(320)]
    await asyncio.gather(*urgent, *bulk)
    await s.close()
    said = f"`levels: {count}`" if count > 1 else "none"
    return said, (s.quantile("urgent", 0.5), s.quantile("urgent", 0.99), s.rate("bulk"))


async def shares(fairness: Fairness | None) -> Row:
    s = TwoStages(fairness=fairness)
    large = [s.caller("large", seed=seed, x_tenant="large") for seed in range(320)]
    small = [s.caller("small", seed=seed, x_tenant="small") for seed in range(32)]
    await asyncio.gather(*large, *small)
    await s.close()
    said = "by tenant" if fairness else "none"
    figures = (s.rate("large"), s.rate("small"), s.quantile("large", 0.5), s.quantile("small", 0.5))
    return said, figures


def tables() -> dict[str, list[Row]]:
    """Each knob's rows."""
    return {
        "maxConcurrentBatches": [fake_loop.run(slots(wanted)) for wanted in (1, 2, 4)],
        "priority": [fake_loop.run(levels(count)) for count in (1, 2)],
        "fairness": [fake_loop.run(shares(fairness)) for fairness in (None, Fairness(header="x-tenant"))],
    }


def markdown(rows: Iterable[Row]) -> str:
    """The lines of a table."""
    return "\n".join(
        "| " + " | ".join([said, *[f"{figure:,.0f}".replace(",", " ") for figure in figures]]) + " |"
        for said, figures in rows
    )


if __name__ == "__main__":
    for knob, rows in tables().items():
        print(knob, markdown(rows), sep="\n")
