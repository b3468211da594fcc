"""Fronts of one process take turns: many clients of one do not hold up a client of another."""

from __future__ import annotations

import asyncio

from penstock_wire.http import Exchange, Response
from penstock_wire.http.server.server import H1Front
from penstock_wire.http.server.turns import MOST, Turns

CLIENTS, ROUNDS = 12 * MOST, 20
REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Client(asyncio.Protocol):
    """A client that sends the next request as soon as it has an answer, unless it waits for `go`."""

    def __init__(self, *, at_once: bool) -> None:
        self._at_once = at_once
        self.answered = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self._at_once:
            transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        assert data.startswith(b"HTTP/1.1 200")
        self.answered.set()
        if self._at_once:
            self.transport.write(REQUEST)


async def test_a_client_of_one_front_waits_for_a_few_of_anothers() -> None:
    """However many they are: with each turn of the loop it is served before most of them; all are served."""
    loop = asyncio.get_running_loop()
    served = 0

    def count(exchange: Exchange) -> None:
        nonlocal served
        served += 1
        exchange.answer(Response(200, (), b""))

    def answer(exchange: Exchange) -> None:
        exchange.answer(Response(200, (), b""))

    fronts = [H1Front(turns=Turns(loop)) for _ in range(2)]
    crowded, calm = [
        await front.serve("127.0.0.1", 0, service)
        for front, service in zip(fronts, (count, answer), strict=True)
    ]
    crowd = [Client(at_once=True) for _ in range(CLIENTS)]
    for each in crowd:
        await loop.create_connection(lambda each=each: each, *crowded.address)  # type: ignore[misc]
    for each in crowd:
        await each.answered.wait()
    alone = Client(at_once=False)
    await loop.create_connection(lambda: alone, *calm.address)
    waited = []
    for _ in range(ROUNDS):
        before = served
        alone.answered.clear()
        alone.transport.write(REQUEST)
        await alone.answered.wait()
        waited.append(served - before)
    assert sorted(waited)[ROUNDS // 2] <= 4 * MOST < CLIENTS / 2
    for each in crowd:
        each.answered.clear()
    for each in crowd:
        await each.answered.wait()
    for each in (*crowd, alone):
        each.transport.abort()
    for front in fronts:
        await front.close(0)
