"""A server whose machine falls silent: the kernel is asked to notice, and one connection stands for all.

What the kernel does with the options is seen where a node is lost (tests/cluster/test_zero_loss_killed.py);
here the end that it would report is reported by hand.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from penstock_wire.http import ConnectionLost, PeerSilent, Request, Response, sending
from penstock_wire.http.client import peer_liveness, pool
from penstock_wire.http.client.connection import Connection
from penstock_wire.http.client.peer_liveness import TcpSigns
from penstock_wire.http.client.pool import H1Upstream
from tests.support.clocks.waiting import until

REQUEST = Request(method="GET", target="/", headers=(), body=b"")


class Mute:
    """A server that takes requests and answers none."""

    def __init__(self) -> None:
        self.port = 0
        self.asked = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take them until the client goes."""
        self.writers.append(writer)
        while await reader.readline():
            if await reader.readuntil(b"\r\n\r\n"):
                self.asked += 1
        writer.close()


@pytest_asyncio.fixture
async def mute() -> AsyncIterator[Mute]:
    peer = Mute()
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    peer.port = server.sockets[0].getsockname()[1]
    yield peer
    server.close()
    for writer in peer.writers:
        writer.close()


@pytest_asyncio.fixture
async def upstream() -> AsyncIterator[H1Upstream]:
    upstream = H1Upstream(silence_seconds=3.0)
    yield upstream
    await upstream.close()
    await asyncio.sleep(0)


async def asked(upstream: H1Upstream, mute: Mute, count: int) -> list[asyncio.Task[Response]]:
    """So many requests that the server has and does not answer."""
    tasks = [
        asyncio.create_task(sending.send(upstream, "127.0.0.1", mute.port, REQUEST, timeout=60))
        for _ in range(count)
    ]
    await until(lambda: mute.asked == count)
    return tasks


def connections(upstream: H1Upstream) -> list[Connection]:
    """Those that are open."""
    return list(upstream._open)


def option(of: Connection, level: int, name: int) -> int:
    """A socket option of a connection."""
    sock: socket.socket = of.transport.get_extra_info("socket")
    return sock.getsockopt(level, name)


async def test_the_kernel_is_asked_to_probe(upstream: H1Upstream, mute: Mute) -> None:
    """Once a second while nothing is under way; three unanswered probes end the connection."""
    (task,) = await asked(upstream, mute, 1)
    (connection,) = connections(upstream)
    assert option(connection, socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
    assert option(connection, socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert option(connection, socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1
    assert option(connection, socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 1
    await until(lambda: peer_liveness.look(connection.transport).unacknowledged == 0)
    assert 0 <= peer_liveness.look(connection.transport).heard_ago < 60
    connection.fail(ConnectionLost("over"))
    with pytest.raises(ConnectionLost):
        await task


async def test_without_a_time_a_server_may_be_silent(mute: Mute) -> None:
    """A model that computes on its only thread and reads nothing is not lost."""
    upstream = H1Upstream()
    (task,) = await asked(upstream, mute, 1)
    (connection,) = connections(upstream)
    assert option(connection, socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
    await upstream.close()
    with pytest.raises(ConnectionLost):
        await task


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH])
async def test_one_silent_connection_tells_of_all(
    upstream: H1Upstream, mute: Mute, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """What waits on the others fails at once, not after a silence of its own."""
    tasks = await asked(upstream, mute, 3)
    monkeypatch.setattr(pool.peer_liveness, "look", lambda _: TcpSigns(2.5))
    connections(upstream)[0].connection_lost(OSError(number, "silent"))
    for task in tasks:
        with pytest.raises(PeerSilent):
            await task
    assert connections(upstream) == []


@pytest.mark.parametrize(
    ("error", "heard", "expected"),
    [
        (OSError(errno.ETIMEDOUT, "silent"), TcpSigns(0.2), PeerSilent),
        (ConnectionResetError(errno.ECONNRESET, "reset"), TcpSigns(2.5), ConnectionLost),
    ],
)
async def test_a_machine_that_still_speaks_is_not_taken_for_silent(
    upstream: H1Upstream,
    mute: Mute,
    monkeypatch: pytest.MonkeyPatch,
    error: OSError,
    heard: TcpSigns,
    expected: type[ConnectionLost],
) -> None:
    """Another connection has received from it since, or the end was a reset: the others go on."""
    tasks = await asked(upstream, mute, 2)
    monkeypatch.setattr(pool.peer_liveness, "look", lambda _: heard)
    first, second = connections(upstream)
    first.connection_lost(error)
    done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert [type(task.exception()) for task in done] == [expected]
    assert len(left) == 1
    assert connections(upstream) == [second]
    second.fail(ConnectionLost("over"))
    with pytest.raises(ConnectionLost):
        await left.pop()


async def test_sent_data_that_nobody_acknowledges_ends_all_connections(
    upstream: H1Upstream, mute: Mute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without probes while it is under way: the kernel's own state is read twice a second."""
    tasks = await asked(upstream, mute, 2)
    first, second = connections(upstream)
    signs = {first.transport: TcpSigns(2.9, 1), second.transport: TcpSigns(60.0, 0)}
    monkeypatch.setattr(pool.peer_liveness, "look", signs.__getitem__)
    upstream.look_for_silence()
    assert connections(upstream) == [first, second]
    signs[first.transport] = TcpSigns(3.1, 1)
    for task in tasks:  # by the timer: nobody calls
        with pytest.raises(PeerSilent):
            await task
    assert connections(upstream) == []


async def test_a_look_after_the_machine_stood_still_judges_nothing(
    upstream: H1Upstream, mute: Mute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A virtual machine that was paused has not heard what came meanwhile; the look after that one counts."""
    (task,) = await asked(upstream, mute, 1)
    monkeypatch.setattr(pool.peer_liveness, "look", lambda _: TcpSigns(5.0, 1))
    late = time.monotonic() - 5.0
    upstream._look_at = late
    upstream._look()
    await asyncio.sleep(0)
    assert len(connections(upstream)) == 1
    upstream._look_at = late  # again, as of a busy process
    upstream._look()
    with pytest.raises(PeerSilent):
        await task


async def test_a_server_that_reads_nothing_is_not_silent() -> None:
    """A closed window is acknowledged: a model that takes its time with a large body is not lost."""
    took = asyncio.Event()

    async def take_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await took.wait()
        writer.close()

    server = await asyncio.start_server(take_nothing, "127.0.0.1", 0, limit=1024)
    port = server.sockets[0].getsockname()[1]
    upstream = H1Upstream(silence_seconds=0.1)
    large = Request(method="POST", target="/", headers=(), body=bytes(32 * 1024 * 1024))
    task = asyncio.create_task(sending.send(upstream, "127.0.0.1", port, large, timeout=120))
    await until(lambda: len(connections(upstream)) == 1)
    (connection,) = connections(upstream)
    await until(lambda: peer_liveness.look(connection.transport).heard_ago > 0.3)
    upstream.look_for_silence()
    assert not task.done()
    took.set()
    with pytest.raises(ConnectionLost):
        await task
    await upstream.close()
    server.close()


async def test_of_a_closed_connection_something_waits() -> None:
    """Its end: uvloop closes a connection whose making was cancelled without reporting it."""

    class Closed(asyncio.Transport):
        def get_extra_info(self, name: str, default: object = None) -> object:
            closed = socket.socket()
            closed.close()
            return closed

    class Ended(asyncio.Transport):
        def get_extra_info(self, name: str, default: object = None) -> object:
            return default  # as of uvloop's TLS, once the connection below it has ended

    assert not peer_liveness.nothing_waits(Closed())
    assert not peer_liveness.nothing_waits(Ended())
