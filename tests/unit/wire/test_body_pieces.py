"""Pieces of a body that wait are read together: their number is the peer's choice."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_wire.framing.bodies import BodyReceiver
from penstock_wire.framing.connection import Framed
from penstock_wire.hop import frames
from penstock_wire.hop.bodies import HopAllowance
from penstock_wire.http.body import JOINED_BYTES, next_piece
from penstock_wire.http.client.answer import HIGH_BYTES, Body, Carrier
from penstock_wire.http.memory import PIECE_BYTES
from penstock_wire.http.server.streams import Inbound

COUNT = 10_000
pytestmark = pytest.mark.interpreted  # the ends below are Python, and cannot inherit from compiled classes


class Peer(Carrier):
    """The connection of an answer, which takes each call, and does nothing."""

    def expect(self) -> None:
        """See `Carrier`."""

    def relax(self) -> None:
        """See `Carrier`."""

    def pause_reading(self) -> None:
        """See `Carrier`."""

    def resume_reading(self) -> None:
        """See `Carrier`."""


class HopPeer(Framed):
    """The same of a hop."""

    def __init__(self) -> None:
        """Have no transport."""

    def send(self, data: bytes) -> None:
        """See `Framed`."""


class Client:
    """The same of a request."""

    def wanted(self) -> None:
        """See `streams.Carrier`."""


def inbound() -> Inbound:
    peer: Any = Client()
    return Inbound(peer)


MAKERS: dict[str, Callable[[], Any]] = {
    "an answer": lambda: Body(Peer()),
    "a request": inbound,
    "a request on a hop": lambda: BodyReceiver(HopAllowance(HopPeer(), 1)),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_many_small_pieces_that_wait_are_few_reads_and_one_that_comes_alone_is_one(
    make: Callable[[], Any],
) -> None:
    """A stream in chunks of one byte would keep the loop, and all others' requests, waiting for seconds."""

    async def main() -> None:
        body = make()
        for index in range(COUNT):
            body.feed(b"%d" % (index % 10))
        whole, reads = b"", 0
        while len(whole) < COUNT:
            whole += await body.read()
            reads += 1
        assert whole == b"0123456789" * (COUNT // 10)
        assert reads == 1
        for event in (b"one", b"two"):  # as they come: an event does not wait for the next

            async def feed(event: bytes = event) -> None:
                body.feed(event)

            piece, _ = await asyncio.gather(body.read(), feed())
            assert piece == event
        body.finish()
        assert await body.read() == b""

    asyncio.run(main())


def test_small_pieces_count_with_what_each_costs_until_the_peer_must_wait() -> None:
    """20 clients that did not read chunks of two bytes cost a sidecar 200 MB."""

    async def main() -> None:
        paused: list[int] = []

        class Line(Peer):
            def pause_reading(self) -> None:
                paused.append(body.kept())

        body = Body(Line())
        while not paused:
            body.feed(b"xy")
        assert paused[0] < HIGH_BYTES + PIECE_BYTES + 2

    asyncio.run(main())


def test_credit_is_given_for_all_that_is_read_together() -> None:
    async def main() -> None:
        sent: list[bytes] = []

        class Line(HopPeer):
            def send(self, data: bytes) -> None:
                sent.append(data)

        allowance = HopAllowance(Line(), 7)
        body = BodyReceiver(allowance)
        size = frames.WINDOW // 4
        for _ in range(size // 16):
            allowance.take(16)
            body.feed(bytes(16))
        taken = 0
        while taken < size:
            taken += len(await body.read())
        assert sent == [frames.credit(7, size)]

    asyncio.run(main())


@given(st.lists(st.sampled_from([1, 5, 4000, JOINED_BYTES - 1, JOINED_BYTES, 70_000]), min_size=1))
def test_no_byte_is_lost_or_moved_and_no_long_piece_is_copied(sizes: list[int]) -> None:
    given_ = [bytes([index % 256]) * size for index, size in enumerate(sizes)]
    pieces, read = deque(given_), []
    while pieces:
        read.append(next_piece(pieces))
    assert b"".join(read) == b"".join(given_)
    for piece in read:
        assert len(piece) <= JOINED_BYTES or any(piece is each for each in given_)
