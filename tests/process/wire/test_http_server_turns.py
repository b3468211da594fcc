"""Fronts of one process take turns: many clients of one do not hold up a client of another."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from penstock_wire.http import Exchange, Response
from penstock_wire.http.server.head import PREFACE
from penstock_wire.http.server.server import H1Front
from penstock_wire.http.server.turns import MOST, Turns
from penstock_wire.http2 import frames
from penstock_wire.http2.connection import H2Connection
from tests.support.clocks.waiting import until
from tests.support.http.h2_client import GET, H2Client

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


class Gate(asyncio.AbstractEventLoop):
    """A loop whose next turn comes once the gate is open."""

    def __init__(self) -> None:
        self.shut = False
        self._waiting: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:  # type: ignore[override]
        if self.shut:
            self._waiting.append(callback)
        else:
            asyncio.get_running_loop().call_soon(callback)

    def open(self) -> None:
        self.shut = False
        for callback in self._waiting:
            self.call_soon(callback)


class Held:
    """A front with one client, whose connections get no turn between `hold` and `release`."""

    def __init__(self) -> None:
        self.gate = Gate()  # type: ignore[abstract]
        self.turns = Turns(self.gate)
        self.front, self.other = (H1Front(turns=self.turns, http2=H2Connection) for _ in range(2))
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    @property
    def connection(self) -> Any:
        """The server's end."""
        (connection,) = self.front.connections
        return connection

    def hold(self) -> None:
        """Let a neighbour take all of a turn that does not end."""
        neighbour: Any
        (neighbour,) = self.other.connections
        self.gate.shut = True
        self.turns.took(neighbour._reader, 256 * MOST)

    def release(self) -> None:
        self.gate.open()


@contextlib.asynccontextmanager
async def holding() -> AsyncIterator[Held]:
    held = Held()
    writers = []
    for front in (held.other, held.front):
        listener = await front.serve(
            "127.0.0.1", 0, lambda exchange: exchange.answer(Response(200, (), b"x"))
        )
        held.reader, held.writer = await asyncio.open_connection(*listener.address)
        writers.append(held.writer)
        await until(lambda front=front: bool(front.connections))  # type: ignore[misc]
    try:
        yield held
    finally:
        for writer in writers:
            writer.close()
        await held.front.close(0)
        await held.other.close(0)


async def test_a_connection_that_sent_much_at_once_is_read_again_as_many_turns_later() -> None:
    async with holding() as held:
        reader = held.connection._reader
        waited = []
        for size in (10 * MOST * 256, 0, 0):
            held.turns.took(reader, size)
            turns = 0
            while reader.holders:
                await asyncio.sleep(0)
                turns += 1
            waited.append(turns)
        assert waited[0] <= 2
        assert 9 <= waited[1] <= 12
        held.turns.took(reader, 0)
        assert not reader.holders, "all is paid"


@pytest.mark.parametrize("rest", [b"", frames.settings([])])
async def test_a_connection_that_becomes_http_2_in_line_stays_there(rest: bytes) -> None:
    """Its reader, which was in line before, does not read for it; its own turn comes."""
    async with holding() as held:
        before = held.connection
        held.hold()
        held.writer.write(PREFACE + rest)
        await until(lambda: held.connection is not before)
        assert not held.connection.transport.is_reading()
        before._reader.take_turn()
        assert not held.connection.transport.is_reading()
        held.release()
        client = H2Client(held.reader, held.writer)
        client.send(b"" if rest else frames.settings([]))
        assert (await client.answer(client.head(GET))).body == b"x"


async def test_http_2_in_line_is_not_read_once_its_client_accepts_answers_again() -> None:
    """Nor in its turn while its client accepts nothing."""
    async with holding() as held:
        before = held.connection
        client = H2Client(held.reader, held.writer)
        client.send(PREFACE + frames.settings([]))
        await until(lambda: held.connection is not before)
        connection = held.connection
        held.hold()
        stream = client.head(GET)
        await until(lambda: not connection.transport.is_reading())
        connection.pause_writing()
        connection.resume_writing()
        assert not connection.transport.is_reading()
        connection.pause_writing()
        connection.take_turn()
        assert not connection.transport.is_reading()
        connection.resume_writing()
        assert connection.transport.is_reading()
        held.release()
        assert (await client.answer(stream)).body == b"x"


async def test_a_connection_that_ends_in_line_is_not_read_before_its_turn() -> None:
    """A client that was refused goes on sending, and what it sends is dropped."""
    async with holding() as held:
        held.hold()
        held.writer.write(b"no request\r\n\r\n")
        assert (await held.reader.read()).startswith(b"HTTP/1.1 400 ")
        assert not held.connection._transport.is_reading()
        held.release()
        await until(held.connection._transport.is_reading)
