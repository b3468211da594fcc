"""One timer for the earliest of many times."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

import pytest
import uvloop

from penstock_wire.timers import STALL, EarliestTimer


class Handle:
    """A timer of the loop."""

    def __init__(self, delay: float, ring: Callable[[], object]) -> None:
        self.delay = delay
        self.ring = ring
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


async def test_it_rings_at_the_earliest_and_begins_anew_then(monkeypatch: pytest.MonkeyPatch):
    handles: list[Handle] = []
    rung: list[int] = []

    def call_later(delay: float, ring: Callable[[], object]) -> Handle:
        handles.append(Handle(delay, ring))
        return handles[-1]

    class Loop:
        def __init__(self) -> None:
            self.call_later = call_later

    monkeypatch.setattr(asyncio, "get_running_loop", Loop)
    timer = EarliestTimer(lambda: rung.append(len(handles)), lambda: 100.0)
    for when in (105.0, 107.0, 103.0, 104.0, 99.95):
        timer.ring_at(when)
    assert [(handle.delay, handle.cancelled) for handle in handles] == [
        (5.0, True),
        (3.0, True),
        (0.0, False),
    ]
    handles[-1].ring()
    assert rung == [3]
    timer.ring_at(110.0)  # later than what it rang for
    assert handles[-1].delay == 10.0
    timer.cancel()
    assert handles[-1].cancelled
    timer.ring_at(120.0)
    assert (handles[-1].delay, handles[-1].cancelled, rung) == (20.0, False, [3])


def test_after_a_stall_the_loop_reads_its_sockets_first():
    """With either loop: what was due while the process stood still rings behind what came meanwhile."""

    async def run() -> list[str]:
        loop = asyncio.get_running_loop()
        ours, others = socket.socketpair()
        order: list[str] = []
        rung = loop.create_future()

        def ring() -> None:
            order.append("rung")
            rung.set_result(None)

        loop.add_reader(ours, lambda: order.append(ours.recv(9).decode()))
        EarliestTimer(ring, time.monotonic).ring_at(time.monotonic() + 0.01)
        await asyncio.sleep(0)  # it is set
        others.send(b"answer")
        time.sleep(0.01 + 2 * STALL)  # noqa: ASYNC251 - the stall
        await rung
        loop.remove_reader(ours)
        ours.close()
        others.close()
        return order

    assert asyncio.run(run()) == ["answer", "rung"]
    assert uvloop.run(run()) == ["answer", "rung"]
