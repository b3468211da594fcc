"""A timer of the kernel on the running loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from penstock_wire.exact_timer import ExactTimer


async def rung(make: Callable[[ExactTimer], None]) -> list[float]:
    """When it rang: a set-up, and a last ring that says that no other can come any more."""
    times: list[float] = []
    over = asyncio.Event()

    def ring() -> None:
        times.append(time.monotonic())
        over.set()

    timer = ExactTimer(ring)
    try:
        make(timer)
        await asyncio.wait_for(over.wait(), 10)
        over.clear()
        timer.ring_at(time.monotonic() + 0.002)
        await asyncio.wait_for(over.wait(), 10)
    finally:
        timer.close()
    return times


async def test_it_rings_once_for_the_time_that_was_set_last_and_not_before():
    began = time.monotonic()

    def twice(timer: ExactTimer) -> None:
        timer.ring_at(began + 60.0)
        timer.ring_at(began + 0.001)

    times = await rung(twice)
    assert len(times) == 2
    assert times[0] >= began + 0.001


async def test_what_was_cancelled_never_rings():
    def cancelled(timer: ExactTimer) -> None:
        timer.cancel()  # nothing is set
        timer.ring_at(time.monotonic() + 0.0005)
        timer.cancel()
        timer.ring_at(time.monotonic() + 0.003)

    assert len(await rung(cancelled)) == 2


async def test_a_time_that_is_past_rings_at_once():
    assert len(await rung(lambda timer: timer.ring_at(time.monotonic() - 1.0))) == 2
