"""A short, seeded run of the front's fuzzer, and what longer runs have found."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import cast

import pytest

from penstock_wire.http import Exchange, Response
from penstock_wire.http.server.connection import H1Connection
from penstock_wire.http.server.server import H1Front, H1Listener
from tests.fuzz import http_server

SEEDS = 2000

FOUND = {
    "a body behind an Upgrade was read as the next request": (
        b"POST /e HTTP/1.1\r\nUpgrade: x\r\nConnection: upgrade\r\nHost: a\r\nContent-Length: 42\r\n\r\n"
        b"GET /smuggled HTTP/1.1\r\nHost: smuggler\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n"
    ),
    "the same with chunks": (
        b"POST /e HTTP/1.1\r\nUpgrade: x\r\nConnection: upgrade\r\nHost: a\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n"
    ),
    "an answer to HEAD ended the next one's stream": (
        b"HEAD /h HTTP/1.1\r\nHost: a\r\n\r\n"
        b"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    ),
}


def test_any_bytes_cut_in_any_way_keep_the_invariants() -> None:
    """The invariants stand in the fuzzer's own docstring; a failure prints its seed."""
    for seed in range(SEEDS):
        http_server.run_seed(seed)


@pytest.mark.parametrize("case", FOUND)
def test_what_was_found_stays_mended(case: str) -> None:
    """Each input that broke an invariant once, cut in many ways; all its requests are taken."""
    data = FOUND[case]
    for seed in range(100):
        http_server.check(data, random.Random(seed))
    assert len(http_server.Run([data], later=False, streamed=False).taken) == 2


@pytest.mark.parametrize("data", http_server.CORPUS, ids=lambda data: data.split(b" ", 2)[1].decode())
def test_undamaged_requests_are_all_taken(data: bytes) -> None:
    """The corpus itself, however it is cut: the fuzzer's agreement is not one about nothing."""
    assert len(http_server.Run([data], later=False, streamed=False).taken) == 1
    http_server.check(data, random.Random(1))


ASKS = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "answers"),
    [*((data, True) for data in http_server.CORPUS), (ASKS, False), (ASKS[:25] + b"\r\n" + ASKS, False)],
)
def test_an_ended_connection_leaves_nothing_to_the_garbage_collector(data: bytes, answers: bool) -> None:
    """Its parts refer to each other only while it lasts, also where a request was not answered."""

    def service(exchange: Exchange) -> None:
        if answers:
            exchange.answer(Response(200, (), b""))

    front = H1Front()
    listener = H1Listener(front, service, lambda _: False)
    loop = http_server.Loop()
    connection = H1Connection(front, listener, cast("asyncio.AbstractEventLoop", loop))
    gc.collect()
    connection.connection_made(cast("asyncio.Transport", http_server.Pipe()))
    connection.data_received(data)
    loop.turn()
    connection.connection_lost(None)
    del connection
    assert gc.collect() == 0
