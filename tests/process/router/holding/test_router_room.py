"""A request that a pod has no room for: another pod is asked, and where none has room it waits for some."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.support.http.router_upstream import Answer, Behave, Seen, echo, refuse
from tests.support.processes.router_process import backend, endpoint
from tests.unit.router.holding.test_router_room import EIGHT


def one_slot() -> Behave:
    """Take one request at a time, for some milliseconds, and refuse those beyond."""
    busy = False

    async def behave(seen: Seen) -> Answer:
        nonlocal busy
        if busy:
            return await refuse("queue_full")(seen)
        busy = True
        try:
            await asyncio.sleep(0.005)
            return await echo(seen)
        finally:
            busy = False

    return behave


@pytest.mark.parametrize("at_once", [8, 64])
async def test_pods_of_one_slot_and_no_queue_answer_all(upstream: Any, router: Any, at_once: int) -> None:
    """On real sockets: nobody is refused, whether as many ask as there are slots or eight times as many."""
    servers = [await upstream(one_slot()) for _ in EIGHT]
    process = await router().start(endpoint("e", backend("b", *(server.target for server in servers))))

    async def caller() -> list[int]:
        return [(await process.ask()).status for _ in range(256 // at_once)]

    replies = await asyncio.gather(*(caller() for _ in range(at_once)))
    assert Counter(status for statuses in replies for status in statuses) == {200: 256}
    executed: Counter[str] = sum((server.executed for server in servers), Counter())
    assert len(executed) == 256
    assert set(executed.values()) == {1}
