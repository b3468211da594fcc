"""However much hostile clients have a router keep, it stays within its memory, and others are served."""

from __future__ import annotations

import asyncio

import pytest

from penstock_wire.memory_limit import most_kept
from tests.process.router.conftest import MakeRouter, MakeUpstream
from tests.support.processes.router_process import backend, endpoint, until

MIB = 1024 * 1024
LIMIT = 160 * MIB
HOSTILE = 250
HELD = {"timeout": "1h", "maxPending": 10_000}


def number(metrics: str, name: str) -> float:
    """The value of a metric without labels."""
    return next(float(line.split()[1]) for line in metrics.splitlines() if line.startswith(name + " "))


async def test_connections_that_keep_most_give_way_and_neighbours_do_not(
    router: MakeRouter, upstream: MakeUpstream
) -> None:
    """250 MiB of bodies that wait for a pod come to a router of 160 MiB; another endpoint notices nothing."""
    pod = await upstream()
    process = await router(f"--memory-limit={LIMIT}").start(
        endpoint("waits", backend("none"), coldStart=HELD), endpoint("e", backend("b", pod.target))
    )
    host, port = process.data.removeprefix("http://").split(":")
    hostile: list[asyncio.StreamWriter] = []
    sending: list[asyncio.Task[None]] = []
    answers: list[asyncio.Task[bytes]] = []
    head = b"POST /waits/x HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % MIB

    async def attack() -> None:
        for _ in range(HOSTILE):
            reader, writer = await asyncio.open_connection(host, int(port))
            hostile.append(writer)
            answers.append(asyncio.ensure_future(reader.read(4096)))
            writer.write(head + bytes(MIB))
            sending.append(asyncio.ensure_future(writer.drain()))
            await asyncio.wait({answers[-1], sending[-1]}, return_when=asyncio.FIRST_COMPLETED)

    attacking = asyncio.ensure_future(attack())
    most = served = 0
    while not attacking.done() or served < 20:
        assert (await process.ask(data=b"x" * 1000)).status == 200
        assert (await process.ask(data=b"x" * 100_000)).status == 200
        served += 1
        most = max(most, process.rss())
    await attacking
    assert most < LIMIT
    gave_way = 0.0
    while gave_way <= HOSTILE / 2:  # the last bodies may be with the kernel yet
        metrics = await process.metrics()
        bound = number(metrics, "penstock_router_kept_bytes_limit")
        assert bound == most_kept(LIMIT)
        assert number(metrics, "penstock_router_kept_bytes") <= bound
        gave_way = number(metrics, "penstock_router_connections_gave_way_total")
    assert any("memory is short" in line for line in process.log)
    refused = (await until(lambda: next((task for task in answers if task.done()), None))).result().lower()
    assert refused.startswith(b"http/1.1 503 ")
    assert b"\r\nretry-after: 1\r\n" in refused
    assert b"no_memory" in refused
    for writer in hostile:
        writer.transport.abort()
    await asyncio.gather(*answers, *sending, return_exceptions=True)
    for _ in range(1000):
        if number(await process.metrics(), "penstock_router_kept_bytes") < MIB:
            return
    pytest.fail("expected nothing to be kept for clients that have left")
