"""What all connections of a front keep, counted over loopback: bounded, never too little, none in the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from penstock_wire.headers import get
from penstock_wire.http import Exchange, Response
from penstock_wire.http.body import read_whole
from penstock_wire.http.memory import CONNECTION_BYTES, MemoryBound
from penstock_wire.http.server.server import H1Front
from penstock_wire.memory_limit import LEAST_BYTES, container_limit, most_kept
from tests.support.clocks.waiting import SECONDS, until
from tests.support.http.hop_pair import Held, HopServer, paired
from tests.support.http.hop_pair import post as hop_post

KIB = 1024
WHOLE = 64 * KIB
RECEIVED = 256 * KIB
"""What one receipt may have."""
LEAST = 16 * KIB
"""What is counted for a connection with a request, beside what it has sent."""


class Holding:
    """A front whose service holds what is sent to `/hold`, and sends all else back."""

    def __init__(self, most: int) -> None:
        self.memory = MemoryBound(most)
        self.front = H1Front(memory=self.memory)
        self.held: list[Exchange] = []
        self.gone = 0
        self._ends = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._address = ("", 0)
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        """Listen."""
        listener = await self.front.serve(
            "127.0.0.1", 0, self._serve, streams=lambda request: request.target != "/whole", whole_bytes=WHOLE
        )
        self._address = listener.address

    def _serve(self, exchange: Exchange) -> None:
        if self._ends:
            exchange.answer(Response(200))
        elif exchange.request.target == "/hold":
            self.held.append(exchange)
            exchange.gone = self._left
        else:
            self._work(exchange)

    def _work(self, exchange: Exchange) -> None:
        task = asyncio.ensure_future(self._echo(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        exchange.gone = task.cancel

    def _left(self) -> None:
        self.gone += 1

    async def _echo(self, exchange: Exchange) -> None:
        stream = exchange.request.stream
        body = exchange.request.body if stream is None else await read_whole(stream, 1 << 30)
        exchange.answer(Response(200, (), body))

    async def client(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect."""
        reader, writer = await asyncio.open_connection(*self._address, limit=1 << 16)
        self._writers.append(writer)
        return reader, writer

    async def end(self) -> None:
        """End all clients, then the front."""
        for writer in self._writers:
            writer.transport.abort()
        self._ends = True
        for exchange in self.held:  # NB: a connection that is not read does not show its end
            exchange.answer(Response(200))
        await until(lambda: not self.front.connections)
        await self.front.close(0)


@pytest_asyncio.fixture
async def holding() -> AsyncIterator[Holding]:
    """One with a bound of 2 MiB."""
    made = Holding(2 * KIB * KIB)
    await made.start()
    yield made
    await made.end()
    assert made.memory.kept() == 0


def post(size: int, path: bytes = b"/hold", sent: int | None = None) -> bytes:
    """A request of so many bytes, or the beginning of it."""
    body = bytes(size if sent is None else sent)
    return b"POST %b HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b" % (path, size, body)


CASES = {
    "nothing": (b"", 0),
    "a part of a head": (b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 50_000, 50_000),
    "a part of a body": (post(WHOLE, sent=50_000), 50_000),
    "a body that waits": (post(50_000), 50_000),
    "a stream that waits": (post(WHOLE + 1, sent=50_000), 50_000),
    "requests in line": (post(0) + post(20_000) * 3, 60_000),
    "heads in line": (
        post(0) + b"GET /hold HTTP/1.1\r\nhost: a\r\nx: %b\r\n\r\n" % (b"y" * 20_000) * 3,
        60_000,
    ),
    "a stream in line": (
        post(0) + b"POST /hold HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
        b"7530\r\n%b\r\n0\r\n\r\n" % bytes(30_000),
        30_000,
    ),
    "behind a wish to switch": (
        b"GET /hold HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n" + b"y" * 50_000,
        50_000,
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_what_a_connection_keeps_is_counted(holding: Holding, case: str) -> None:
    """In each state: what was sent, and little more; and nothing of it when the client has left."""
    sent, kept = CASES[case]
    _, writer = await holding.client()
    writer.write(sent)
    await until(lambda: holding.memory.kept() >= kept + CONNECTION_BYTES)
    assert holding.memory.kept() <= kept + LEAST


async def test_an_answer_that_is_not_read_is_counted(holding: Holding) -> None:
    """The kernels take what they can; what is left is kept until its reader has it."""
    reader, writer = await holding.client()
    posts = 0
    while holding.memory.kept() < 200_000:
        writer.write(post(60_000, b"/echo"))
        posts += 1
        assert posts < 1000
        await asyncio.sleep(0.001)
    for _ in range(posts):
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS)
        await asyncio.wait_for(reader.readexactly(60_000), SECONDS)
    await until(lambda: holding.memory.kept() <= CONNECTION_BYTES)


@pytest.mark.parametrize("seed", range(6))
async def test_no_more_is_kept_than_is_taken_for_kept(holding: Holding, seed: int) -> None:
    """Whatever clients do, at each moment: the bound holds, and room is never more than there is."""
    chance = random.Random(seed)
    memory = holding.memory
    clients = [await holding.client() for _ in range(4)]
    acts = (
        lambda: post(chance.randrange(WHOLE)),
        lambda: post(chance.randrange(WHOLE, 4 * WHOLE)),
        lambda: post(chance.randrange(WHOLE), b"/echo") * chance.randrange(1, 6),
        lambda: post(WHOLE, sent=chance.randrange(WHOLE)),
        lambda: b"GET /hold HTTP/1.1\r\nhost: a\r\n\r\n" * chance.randrange(1, 40),
        lambda: b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * chance.randrange(40_000),
    )
    for _ in range(120):
        if chance.random() < 0.2 or not clients:
            clients.append(await holding.client())
        reader, writer = chance.choice(clients)
        act = chance.random()
        if act < 0.7:
            writer.write(chance.choice(acts)())
        elif act < 0.8:
            writer.transport.abort()
            clients.remove((reader, writer))
        elif holding.held:
            holding.held.pop(chance.randrange(len(holding.held))).answer(Response(200))
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
            assert 0 <= memory.kept() <= memory.most - memory.room <= memory.most + RECEIVED
    memory.look()
    await asyncio.sleep(0.01)
    assert memory.kept() <= memory.most


async def test_who_keeps_most_for_longest_gives_way(holding: Holding) -> None:
    """It gets 503 with `Retry-After`, and its service a call; who keeps little, or came just now, stays."""
    small = await holding.client()
    small[1].write(post(100))
    await until(lambda: len(holding.held) == 1)
    many = [await holding.client() for _ in range(60)]
    for _, writer in many:
        writer.write(post(WHOLE))
        await asyncio.sleep(0)
    await until(lambda: len(holding.held) == 61)
    gave_way = holding.memory.gave_way
    assert gave_way > 60 - 2 * KIB * KIB // WHOLE
    await until(lambda: holding.gone == gave_way)
    await until(lambda: len([1 for reader, _ in many if reader._buffer]) == gave_way)  # type: ignore[attr-defined]
    refused = [reader for reader, _ in many if reader._buffer]  # type: ignore[attr-defined]
    answer = (await asyncio.wait_for(refused[0].read(1 << 16), SECONDS)).lower()
    assert answer.startswith(b"http/1.1 503 ")
    assert b"\r\nretry-after: 1\r\n" in answer
    assert b"no_memory" in answer
    newest = many[-1][0]
    assert newest not in refused
    for exchange in holding.held:
        exchange.answer(Response(200))
    assert (await asyncio.wait_for(small[0].read(1 << 16), SECONDS)).startswith(b"HTTP/1.1 200 ")
    assert (await asyncio.wait_for(newest.read(1 << 16), SECONDS)).startswith(b"HTTP/1.1 200 ")


async def test_a_body_that_does_not_fit_is_refused_by_its_head(holding: Holding) -> None:
    """And nobody gives way for it: what was surely not executed can go elsewhere. It costs little to say."""
    many = [await holding.client() for _ in range(16)]
    for _, writer in many:
        writer.write(post(WHOLE))
    await until(lambda: len(holding.held) == 16)
    for size, status in ((KIB * KIB // 2, 100), (KIB * KIB, 503), (3 * KIB * KIB, 503)):
        reader, writer = await holding.client()
        head = b"POST /whole HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % size)
        answer = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS)).lower()
        assert int(answer.split()[1]) == status
        assert (b"x-penstock-not-admitted: 1\r\n" in answer) is (status == 503)
    assert (holding.memory.gave_way, holding.gone) == (0, 0)


async def test_requests_on_a_hop_give_way_one_by_one() -> None:
    """Those that come or did not begin; those that run stay, as do small ones and the hop itself."""
    memory = MemoryBound(2 * KIB * KIB)
    server = HopServer(H1Front(memory=memory, max_body_bytes=KIB * KIB))
    server.streamed = lambda _: False
    moved = []
    async with paired(server) as pair:
        held = Held(pair)
        begun = asyncio.ensure_future(pair.send(hop_post(body=b"begun" + bytes(500_000))))
        small = asyncio.ensure_future(pair.send(hop_post(body=b"small")))
        await held.come(2)
        assert memory.kept() >= 500_000

        async def wait(exchange: Exchange) -> None:
            def recall() -> int:
                moved.append(exchange)
                exchange.answer(Response(503, ((b"x-penstock-not-admitted", b"1"),)))
                return 1

            exchange.request.recall = recall

        server.work = wait
        sizes = [20_000] * 100 + [200_000] * 20
        large = [asyncio.ensure_future(pair.send(hop_post(body=bytes(size)))) for size in sizes]
        fitting = memory.most // 20_000
        await until(lambda: sum(task.done() for task in large) > len(large) - fitting)
        assert memory.gave_way
        refused = [task.result() for task in large if task.done()]
        assert {answer.status for answer in refused} == {503}
        assert {get(answer.headers, b"x-penstock-not-admitted") for answer in refused} == {b"1"}
        assert moved
        assert memory.kept() <= memory.most
        for exchange in held.exchanges.values():
            exchange.answer(Response(200))
        assert [(await task).status for task in (begun, small)] == [200, 200]
        for task in large:
            task.cancel()
        await asyncio.gather(*large, return_exceptions=True)
        await until(lambda: memory.kept() <= CONNECTION_BYTES * 2)


async def test_what_keeps_only_its_place_gives_way_last(holding: Holding) -> None:
    """Idle connections alone fill a bound, too: those that rest longest are closed."""
    count = 2 * holding.memory.most // CONNECTION_BYTES
    clients = []
    for _ in range(count):
        clients.append(await holding.client())
        clients[-1][1].write(post(0, b"/echo"))
    await until(lambda: holding.memory.gave_way >= count // 2)
    assert len(holding.front.connections) * CONNECTION_BYTES <= holding.memory.most
    reader, writer = await holding.client()
    writer.write(post(10, b"/echo"))
    assert (await asyncio.wait_for(reader.read(1 << 16), SECONDS)).startswith(b"HTTP/1.1 200 ")


def test_what_came_and_is_gone_again_leaves_room_at_once() -> None:
    """However fast one client's large bodies follow each other, the next one fits while nothing is kept."""
    memory = MemoryBound(4 * 1024 * KIB)
    for _ in range(30):
        assert memory.fits(1024 * KIB)
        memory.came(1024 * KIB)


@pytest.mark.parametrize(
    ("group", "limits", "expected"),
    [
        ("0::/\n", {"": "1073741824"}, 1 << 30),  # as in a container
        ("1:cpu:/x\n0::/a/b\n", {"a": "1000", "a/b": "max"}, 1000),
        ("0::/a/b\n", {"a": "1000", "a/b": "400"}, 400),
        ("0::/a\n", {"a": "max"}, None),
        ("0::/../c\n", {"": "5"}, None),
        ("4:memory:/a\n", {}, None),
        ("", {}, None),
    ],
)
def test_the_limit_is_the_least_of_the_cgroup_and_those_above(
    tmp_path: Path, group: str, limits: dict[str, str], expected: int | None
) -> None:
    """Cgroup v2 alone says one; where nothing does there is none."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(group)
    for path, text in limits.items():
        folder = tmp_path / "sys/fs/cgroup" / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(text + "\n")
    assert container_limit(tmp_path) == expected


def test_connections_may_keep_about_a_third_of_the_limit() -> None:
    """The chart's limit of 1 GiB leaves 320 MiB; a small one leaves the least."""
    assert most_kept(1 << 30) == 320 * KIB * KIB
    assert most_kept(1) == LEAST_BYTES
