"""What a sidecar says of its room over the hop, and what it hands back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from penstock_wire.hop import frames
from penstock_wire.hop.upstream import HopUpstream
from penstock_wire.http import Exchange, Response, sending
from penstock_wire.http.client.pool import H1Upstream
from tests.support.clocks.waiting import until
from tests.support.http.hop_pair import (
    SIDECAR,
    Pair,
    Raw,
    head,
    paired,
    post,
    raw_client,
    raw_server,
    request,
    served,
)


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    async with paired() as pair:
        pair.upstream.on_room = lambda key, *room: rooms(pair).append(room)
        yield pair


def rooms(pair: Pair) -> list[tuple[int, ...]]:
    """The messages about room that the client got, in order: begin at once, wait, in all."""
    rooms_seen: list[tuple[int, ...]] = pair.__dict__.setdefault("told", [])
    return rooms_seen


async def test_room_is_told_with_answers_and_where_it_begins_or_ends(pair: Pair) -> None:
    """Nothing is sent for a change alone in how much there is, or in how much there could be."""
    server = pair.server
    server.room = (4, 0, 4)
    server.successor.changed()
    await until(lambda: rooms(pair) == [(4, 0, 4)])
    server.room = (3, 0, 5)
    server.successor.changed()
    await pair.send(post())
    assert rooms(pair)[1:] == [(3, 0, 5)]
    server.room = (0, 2, 5)
    server.successor.changed()
    await until(lambda: rooms(pair)[2:] == [(0, 2, 5)])


async def test_each_client_is_told_its_part_and_a_new_one_at_once(pair: Pair) -> None:
    pair.server.room = (5, 1, 8)
    other = HopUpstream(H1Upstream())
    heard: list[tuple[int, ...]] = []
    other.on_room = lambda key, *room: heard.append(room)
    other.keep([pair.server.address])
    await until(lambda: heard == [(3, 1, 8)])
    await other.close()


async def test_what_is_on_the_way_takes_its_part_of_the_room() -> None:
    """The frame says which request it counted last."""
    peers: list[Raw] = []
    async with raw_server(peers.append) as (upstream, address):
        (raw,) = peers
        heard: list[tuple[int, ...]] = []
        upstream.on_room = lambda key, *room: heard.append(room)
        asked = [asyncio.create_task(sending.send(upstream, *address, post(), timeout=30)) for _ in range(3)]
        for _ in asked:
            await raw.until_kind(frames.REQUEST)
        raw.write(frames.room(8, 0, 1), frames.room(1, 0, 0, 9), frames.room(1, 0, 0, 1 << 20))
        await until(lambda: heard == [(6, 0, 0), (0, 0, 9), (0, 0, 0xFFFF)])
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def test_what_has_not_begun_is_handed_back_the_last_first_and_its_number_told(pair: Pair) -> None:
    waiting: dict[bytes, Exchange] = {}

    async def work(exchange: Exchange) -> None:
        body = exchange.request.body
        waiting[body] = exchange
        if body != b"1":  # that one has begun

            def recall() -> bool:
                exchange.request.recall = None
                waiting.pop(body).answer(Response(503, SIDECAR, b"moved"))
                return True

            exchange.request.recall = recall

    pair.server.work = work
    recalled: list[int] = []
    pair.upstream.on_recalled = lambda key, count: recalled.append(count)
    asked = {body: asyncio.create_task(pair.send(post(body=body))) for body in (b"0", b"1", b"2", b"3")}
    await until(lambda: len(waiting) == 4)
    assert pair.upstream.recall(*pair.server.address, 2)
    await until(lambda: recalled == [2])
    assert {body for body, task in asked.items() if task.done()} == {b"2", b"3"}
    assert pair.upstream.recall(*pair.server.address, 9)
    await until(lambda: recalled == [2, 1])
    waiting[b"1"].answer(Response(200, SIDECAR))
    assert (await asked[b"1"]).status == 200
    assert not pair.upstream.recall("127.0.0.1", 1, 1)


async def test_after_a_recall_the_room_is_said_anew_though_it_is_what_was_said_before() -> None:
    """As many may have come as were handed back, and the client takes nothing to wait until it is told."""
    upstream = HopUpstream(H1Upstream())
    rooms: list[tuple[int, ...]] = []
    upstream.on_room = lambda key, *room: rooms.append(room)
    async with served() as server:
        server.room = (0, 8, 1)
        upstream.keep([server.address])
        await until(lambda: rooms == [(0, 8, 1)])
        assert upstream.recall(*server.address, 1)
        await until(lambda: rooms == [(0, 8, 1), (0, 8, 1)])
    await upstream.close()


async def test_sidecars_are_kept_in_touch_with_however_they_come_and_go() -> None:
    """One that cannot be reached is asked again; a hop that ends is made anew, and its room is unknown."""
    upstream = HopUpstream(H1Upstream())
    heard: list[tuple[int, ...]] = []
    upstream.on_room = lambda key, *room: heard.append(room)
    async with served() as server:
        server.room = (2, 0, 2)
        upstream.keep([server.address, ("127.0.0.1", 1)])
        await until(lambda: heard == [(2, 0, 2)])
        (hop,) = server.hops
        hop.abort()
        await until(lambda: heard[1:] == [(-1, 0, 0), (2, 0, 2)])
        upstream.keep([])
    await upstream.close()


@pytest.mark.parametrize(
    "junk",
    [frames.frame(frames.ROOM, 0, b"12"), frames.room(1, 1, 99), frames.frame(frames.RECALL, 0, b"")],
    ids=["short", "a number that was not sent", "no count"],
)
async def test_a_server_that_says_nonsense_of_its_room_ends_its_hop(junk: bytes) -> None:
    peers: list[Raw] = []
    async with raw_server(peers.append) as (upstream, address):
        (raw,) = peers
        raw.write(junk)
        assert b"expected" in await raw.rest()
        await until(lambda: address not in upstream._hops)


async def test_a_client_that_asks_nonsense_back_ends_its_hop() -> None:
    async with served() as server:
        raw = await raw_client(server)
        raw.write(frames.frame(frames.RECALL, 0, b"1"))
        assert b"expected a number" in await raw.rest()
        raw.writer.close()


async def test_requests_are_handed_back_by_their_items_and_looked_at_once_a_turn() -> None:
    """However often a client asks at once: what cannot be handed back is looked at in vain."""
    looks: list[bytes] = []

    async def work(exchange: Exchange) -> None:
        body = exchange.request.body

        def recall() -> int:
            looks.append(body)
            if body == b"1":  # that one has begun
                return 0
            exchange.request.recall = None
            exchange.answer(Response(503, SIDECAR, b"moved"))
            return 3

        exchange.request.recall = recall

    async with served() as server:
        server.work = work
        raw = await raw_client(server)
        raw.write(head(), *[request(number, b"%d" % number) for number in (1, 2, 3, 4)])
        await until(lambda: len(server.exchanges) == 4)
        raw.write(frames.recall(4))
        *_, count = await raw.until_kind(frames.RECALL)
        assert (frames.read_number(count), looks) == (6, [b"4", b"3"])
        looks.clear()
        raw.write(frames.recall(1) * 1000)
        *_, count = await raw.until_kind(frames.RECALL)
        assert frames.read_number(count) == 3
        assert looks == [b"2", b"1"]
        raw.writer.close()


async def test_the_room_of_a_server_that_ends_as_it_switches_is_unknown() -> None:
    """All in one receive: it agrees, says that it has room, and breaks the protocol."""
    agreed = b"HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: penstock-hop/1\r\n\r\n"

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(agreed + frames.room(7, 0, 0) + frames.frame(99, 0))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    upstream = HopUpstream(H1Upstream())
    heard: list[tuple[int, int]] = []
    upstream.on_room = lambda key, free, waiting, capacity: heard.append((free, waiting))
    upstream.keep([server.sockets[0].getsockname()[:2]])
    await until(lambda: heard[:2] == [(7, 0), (-1, 0)])
    await upstream.close()
    server.close()
    await asyncio.sleep(0)


async def test_a_server_that_ends_the_connection_on_which_it_is_asked_is_asked_again_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was just about to end, or to start: it has not said that it knows no hop."""
    monkeypatch.setattr("penstock_wire.hop.asking.ASK_AGAIN_SECONDS", 3600.0)
    upstream = HopUpstream(H1Upstream())
    ended = 0

    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal ended
        await reader.readuntil(b"\r\n\r\n")
        ended += 1
        writer.transport.abort()

    server = await asyncio.start_server(end, "127.0.0.1", 0)
    upstream.keep([server.sockets[0].getsockname()[:2]])
    await until(lambda: ended >= 2)
    await upstream.close()
    server.close()
    await asyncio.sleep(0)
