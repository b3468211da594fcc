"""Connections count from the moment in which they are accepted, handshake or none, in all and by address."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from penstock_operator.control import pki
from penstock_operator.control.certificates import server_context, show
from penstock_operator.control.rotation import DAY
from penstock_wire.control.ca_trust import client_context
from penstock_wire.http import Exchange, Response
from penstock_wire.http.server import acceptor as accepting
from penstock_wire.http.server import limits
from penstock_wire.http.server.acceptor import Acceptor
from penstock_wire.http.server.server import H1Front, H1Listener
from tests.support.clocks.waiting import SECONDS, until

GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
OTHER = "127.0.0.2"
MUCH = 30_000_000


class Server:
    def __init__(self, *, most: int, per_address: int, tls: bool, **more: Any) -> None:
        self.front = H1Front(max_connections=most, max_per_address=per_address, **more)
        self.authority = pki.make_authority(now=time.time(), life=DAY) if tls else None
        self.listener: H1Listener
        self.opened: list[asyncio.StreamWriter] = []
        self.held: list[Exchange] = []
        """Requests for /hold, which wait for an answer."""

    async def start(self) -> None:
        context = None
        if self.authority is not None:
            context = server_context()
            show(context, pki.issue(self.authority, names=("127.0.0.1",), now=time.time(), life=DAY))

        def service(exchange: Exchange) -> None:
            if exchange.request.path == "/hold":
                self.held.append(exchange)
            elif exchange.request.path == "/much":
                exchange.answer(Response(200, (), bytes(MUCH)))
            else:
                exchange.answer(Response(200, (), b"ok"))

        listener: Any = await self.front.serve("127.0.0.1", 0, service, tls=context)
        self.listener = listener

    @property
    def acceptor(self) -> Acceptor:
        assert isinstance(self.listener.server, Acceptor)
        return self.listener.server

    async def silent(self, source: str = "127.0.0.1", says: bytes = b"") -> asyncio.StreamReader:
        """A connection that says nothing, not even of TLS, or a first piece of something."""
        reader, writer = await asyncio.open_connection(*self.listener.address, local_addr=(source, 0))
        self.opened.append(writer)
        writer.write(says)
        return reader

    async def answered(self, source: str = "127.0.0.1") -> bool:
        """Whether a request on a connection of its own is answered."""
        tls = client_context(self.authority.certificate) if self.authority is not None else None
        try:
            reader, writer = await asyncio.open_connection(
                *self.listener.address, ssl=tls, local_addr=(source, 0)
            )
        except OSError:
            return False
        self.opened.append(writer)
        writer.write(GET)
        try:
            return (await asyncio.wait_for(reader.readuntil(b"ok"), SECONDS)).startswith(b"HTTP/1.1 200")
        except (asyncio.IncompleteReadError, ConnectionError):
            return False

    async def let_go(self) -> None:
        for writer in self.opened:
            writer.close()
        self.opened.clear()
        await self.count(0)

    async def count(self, number: int) -> None:
        await until(lambda: len(self.acceptor) == number)


@pytest.fixture(params=[True, False], ids=["TLS", "plain"])
async def serving(request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Any]]:
    running: list[Server] = []

    async def start(**more: Any) -> Server:
        running.append(Server(**more, tls=request.param))
        await running[-1].start()
        return running[-1]

    yield start
    for server in running:
        for writer in server.opened:
            writer.close()
        await server.front.close(5)


async def closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), SECONDS) == b""
    except ConnectionResetError:
        return True


async def test_silent_connections_count_by_address(serving: Callable[..., Any]) -> None:
    """One too many of an address is closed at once; another address is answered, and all are given back."""
    server = await serving(most=100, per_address=3)
    held = [await server.silent(OTHER) for _ in range(3)]
    await server.count(3)
    assert await closed(await server.silent(OTHER))
    assert not await server.answered(OTHER)
    assert await server.answered()
    assert not any(reader.at_eof() for reader in held)
    await server.let_go()
    assert await server.answered(OTHER)


async def test_silent_connections_count_in_all(serving: Callable[..., Any]) -> None:
    """Whoever they are of."""
    server = await serving(most=4, per_address=3)
    for source in ("127.0.0.1", "127.0.0.1", OTHER, OTHER):
        await server.silent(source)
    await server.count(4)
    assert not await server.answered("127.0.0.3")
    await server.let_go()
    assert await server.answered("127.0.0.3")


async def test_a_group_of_addresses_leaves_half_of_what_is_left_to_others(
    serving: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of however many addresses; who comes later is answered, and room is given back with what ends."""
    monkeypatch.setattr(limits, "HANDSHAKE_SECONDS", SECONDS)
    groups = {"127.0.1": "a", "127.0.2": "b", "127.0.5": "c"}
    server = await serving(
        most=16, per_address=3, group=lambda address: groups.get(address.rpartition(".")[0], "")
    )
    for net, room in (("127.0.1", 8), ("127.0.2", 4), ("127.0.3", 2)):
        before = len(server.acceptor)
        held = [await server.silent(f"{net}.{1 + number // 3}") for number in range(room)]
        await server.count(before + room)
        assert await closed(await server.silent(f"{net}.9"))
        assert not any(reader.at_eof() for reader in held)
    assert await closed(await server.silent("127.0.4.1")), "addresses of no known group share one"
    assert await server.answered("127.0.5.1")
    await server.let_go()
    assert not server.acceptor._by_group
    assert await server.answered("127.0.1.9")


async def test_a_handshake_that_does_not_end_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the time that a handshake has; one in plain text at once."""
    monkeypatch.setattr(limits, "HANDSHAKE_SECONDS", 0.1)
    server = Server(most=10, per_address=1, tls=True)
    await server.start()
    for sent in (b"", GET):
        await server.silent()
        server.opened[-1].write(sent)
        await server.count(0)
    await server.let_go()
    monkeypatch.undo()
    assert await server.answered()
    await server.let_go()
    await server.front.close(5)


async def test_after_a_pause_the_clients_that_still_wait_are_served_first_and_those_that_left_cost_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In order, each handshake would be of a client that has given up meanwhile, for ever."""
    begun: list[Any] = []
    begin = Acceptor._begin

    async def counted(self: Acceptor, connection: Any, sock: socket.socket) -> None:
        begun.append(sock.getpeername())
        await begin(self, connection, sock)

    monkeypatch.setattr(Acceptor, "_begin", counted)
    monkeypatch.setattr(accepting, "HANDSHAKES", 2)
    server = Server(most=1000, per_address=1000, tls=True)
    await server.start()
    for _ in range(200):  # the loop stands still
        socket.create_connection(server.listener.address).close()
    waiting = [socket.create_connection(server.listener.address) for _ in range(50)]
    for _ in range(200):
        socket.create_connection(server.listener.address).close()
    last = socket.create_connection(server.listener.address)
    assert await server.answered()
    assert last.getsockname() in begun[:2]
    assert len(begun) <= 52
    assert len(server.acceptor) == 52
    for sock in (*waiting, last):
        sock.close()
    await server.let_go()
    assert not server.acceptor._waiting
    await server.front.close(5)


async def test_connections_that_shake_hands_end_with_the_listener() -> None:
    """Closing does not wait for silent connections, and its port is free."""
    server = Server(most=10, per_address=10, tls=True)
    await server.start()
    address = server.listener.address
    reader = await server.silent()
    await server.count(1)
    await asyncio.wait_for(server.front.close(60), SECONDS)
    assert await closed(reader)
    await server.let_go()
    socket.create_server(address).close()


async def test_a_process_without_file_descriptors_accepts_again_later(
    serving: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It neither ends nor turns in place meanwhile."""
    monkeypatch.setattr(accepting, "ACCEPT_PAUSE", 0.05)
    server = await serving(most=10, per_address=10)
    real, refused = server.acceptor._sock, 0

    class Exhausted:
        def accept(self) -> Any:
            nonlocal refused
            refused += 1
            if refused < 3:
                raise OSError(errno.EMFILE, "induced")
            return real.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    monkeypatch.setattr(server.acceptor, "_sock", Exhausted())
    assert await server.answered()
    assert refused >= 3


@pytest.fixture
async def evicting() -> AsyncIterator[Callable[..., Any]]:
    running: list[Server] = []

    async def start(*, most: int, per_address: int) -> Server:
        running.append(Server(most=most, per_address=per_address, tls=False, evicting=True))
        await running[-1].start()
        return running[-1]

    yield start
    for server in running:
        for exchange in server.held:
            exchange.answer(Response(200, (), b""))
        for writer in server.opened:
            writer.close()
        await server.front.close(5)


HALF = GET[:-2]
BODY = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nhalf"
HOLD = GET.replace(b"/ ", b"/hold ", 1)
LATER = HOLD.replace(b": a", b": b")


async def test_who_waits_longest_for_a_request_makes_way(evicting: Callable[..., Any]) -> None:
    """Whatever of it has come; those whose request is under way go last, of these the oldest first."""
    server = await evicting(most=6, per_address=2)
    held = {}
    for says in (HOLD, b"", HALF, BODY, LATER, GET):
        held[says] = await server.silent(says=says, source=f"127.0.1.{len(held) + 1}")
        await server.count(len(held))
    assert await held[GET].readuntil(b"ok")
    for goes in (b"", HALF, BODY, GET, HOLD, LATER):
        asked = len(server.held)
        await server.silent(f"127.0.2.{asked}", HOLD)
        assert await closed(held.pop(goes))
        await until(lambda asked=asked: len(server.held) > asked)
        assert not any(each.at_eof() for each in held.values())
        assert len(server.acceptor) == len(server.front.connections) == 6


@pytest.mark.parametrize("seconds", [0.0, 1e9], ids=["stuck", "slow"])
async def test_who_takes_nothing_of_an_answer_makes_way_first(
    evicting: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """Before one that has waited for longer; who has taken some of it lately is as good as others."""
    monkeypatch.setattr(limits, "STUCK_SECONDS", seconds)
    server = await evicting(most=2, per_address=2)
    waits = await server.silent()
    await server.count(1)
    takes = await server.silent(says=GET.replace(b"/ ", b"/much ", 1))
    await until(lambda: any(connection._writer.paused for connection in server.front.connections))
    assert await server.answered()
    gone, stays = (takes, waits) if seconds == 0.0 else (waits, takes)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(gone.readexactly(MUCH), SECONDS)
    if stays is takes:
        await asyncio.wait_for(stays.readexactly(MUCH), SECONDS)
    else:
        assert not stays.at_eof()


@pytest.mark.parametrize("says", [b"", HALF, BODY, GET, HOLD])
async def test_a_port_that_evicts_is_open_however_it_is_filled(
    evicting: Callable[..., Any], says: bytes
) -> None:
    """Many addresses fill it, again and again; a newcomer is answered, also one of a full address."""
    server = await evicting(most=40, per_address=4)
    for _ in range(3):
        for number in range(2, 14):
            for _ in range(5):
                await server.silent(f"127.0.0.{number}", says)
        assert await server.answered("127.0.1.1")
        assert await server.answered("127.0.0.13")
        assert len(server.acceptor) <= 40
    await server.let_go()
    assert server.acceptor._by_address == {}


async def test_a_request_that_has_come_does_not_make_way(evicting: Callable[..., Any]) -> None:
    """Though the loop meets the newcomer first."""
    server = await evicting(most=40, per_address=1)
    reader = await server.silent(OTHER)
    await until(lambda: len(server.front.connections) == 1)
    with socket.create_connection(server.listener.address, source_address=(OTHER, 0)):
        server.opened[-1].write(GET)
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
