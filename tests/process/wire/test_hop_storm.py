"""Everything at once on one hop: bodies of all sizes, streams, cancels, deadlines, broken answers."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from penstock_wire.http import (
    ClientGone,
    ConnectionLost,
    Exchange,
    Request,
    Response,
    UpstreamTimeout,
    sending,
)
from penstock_wire.http.server.server import H1Front
from tests.support.clocks.waiting import SECONDS, until
from tests.support.http.hop_pair import SIDECAR, HopServer, Pair, paired

SIZES = (0, 1, 500, 64 * 1024, 64 * 1024 + 1, 400_000)


def body_of(number: int, size: int) -> bytes:
    """A body that only this request has."""
    return (b"%08d" % number * (size // 8 + 1))[:size]


class Storm:
    """Requests whose answers are known by their numbers."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self.pair = pair
        self.chance = random.Random(seed)
        self.whole = self.cut = 0
        pair.server.work = self.serve

    async def serve(self, exchange: Exchange) -> None:
        """Echo: whole, as a stream, cut short, or late."""
        request = exchange.request
        how = request.target.rpartition("/")[2]
        if how == "never":
            await asyncio.sleep(0.05)
        body = request.body
        if request.stream is not None:
            with contextlib.suppress(ClientGone):
                while piece := await request.stream.read():
                    body += piece
                    if how == "slow":
                        await asyncio.sleep(0)
        if how in ("stream", "cut"):
            exchange.answer(Response(200, SIDECAR, stream=self.pieces(body, cut=how == "cut")))
        else:
            exchange.answer(Response(200, SIDECAR, body))

    async def pieces(self, body: bytes, *, cut: bool) -> AsyncIterator[bytes]:
        """A body by pieces of any size."""
        offset = 0
        while offset < len(body):
            size = self.chance.choice((1, 100, 70_000, 200_000))
            yield body[offset : offset + size]
            offset += size
            if cut:
                raise RuntimeError("cut")
            await asyncio.sleep(0)
        if cut:
            raise RuntimeError("cut")

    async def exchange_number(self, number: int) -> None:
        """One request, however it is made."""
        chance = self.chance
        size, how = chance.choice(SIZES), chance.choice(("plain", "stream", "cut", "slow", "never"))
        body = body_of(number, size)
        path = chance.choice(("/p", "/s"))
        streamed = chance.random() < 0.4
        lines = b"x-request-id: %d\r\n" % number
        whole = b"" if streamed else body
        request = Request("POST", f"{path}/{how}", ((b"host", b"a"),), whole, lines=lines)
        if streamed:
            request.stream = Pieces(body, chance)
            request.length = chance.choice((None, size))
        timeout = 0.02 if chance.random() < 0.1 else SECONDS
        asked = asyncio.create_task(self.ask(request, timeout))
        if chance.random() < 0.15:
            await asyncio.sleep(chance.random() * 0.02)
            asked.cancel()
        await asyncio.wait([asked])
        if asked.cancelled():
            self.cut += 1
            return
        error = asked.exception()
        if error is None:
            assert asked.result() == body
            self.whole += 1
            return
        assert isinstance(error, ConnectionLost if how == "cut" else UpstreamTimeout) or timeout < 1
        self.cut += 1

    async def ask(self, request: Request, timeout: float) -> bytes:
        """The whole body of the answer."""
        opened = await sending.open_answer(
            self.pair.upstream, *self.pair.server.address, request, timeout=timeout
        )
        try:
            body = b""
            while piece := await opened.stream.read():
                body += piece
            return body
        finally:
            opened.abort()


class Pieces:
    """A request's body as it comes."""

    def __init__(self, body: bytes, chance: random.Random) -> None:
        self.body = body
        self.chance = chance

    async def read(self) -> bytes:
        """The next piece."""
        await asyncio.sleep(0)
        size = self.chance.choice((1000, 50_000, 300_000))
        piece, self.body = self.body[:size], self.body[size:]
        return piece


@pytest.mark.parametrize("seed", [1, 2])
async def test_each_gets_its_own_whatever_the_others_do_and_nothing_is_left(seed: int) -> None:
    """Byte for byte; in the end neither side holds a request, a body or credit of any."""
    async with paired(HopServer(H1Front())) as pair:
        pair.server.streamed = lambda request: request.target.startswith("/s/")
        hop, storm = pair.hop, Storm(pair, seed)
        for turn in range(4):
            await asyncio.gather(*(storm.exchange_number(turn * 100 + number) for number in range(100)))
        assert storm.whole > 100
        assert storm.cut > 10
        await until(lambda: not pair.far._exchanges and not hop.busy)
        assert pair.hop is hop
        assert not pair.far._receiving
        assert not pair.far._blocked
        assert not hop._blocked
        assert pair.server.front.unfinished_bytes == 0
        assert (await pair.send()).status == 200
