"""A short, seeded run of the upstream's fuzzer, and what longer runs have found."""

from __future__ import annotations

import random

import pytest

from tests.fuzz import http_client

SEEDS = 1500
SWITCH = b"HTTP/1.1 101"

FOUND = {
    "a connection that HTTP/1.0 both keeps and closes went back to the pool": (
        b"HTTP/1.0 200 OK\r\nConnection: close, keep-alive\r\nContent-Length: 2\r\n\r\nab"
    ),
    "trailers that end the connection made its next exchange fail": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n"
        b"Transfer-Encoding: chunked, identity\r\n\r\n"
    ),
    "a switch of protocols behind an answer kept the answer for ever": (
        http_client.GOOD + b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
    ),
}


def test_any_bytes_cut_in_any_way_keep_the_invariants() -> None:
    """The invariants stand in the fuzzer's own docstring; a failure prints its seed."""
    for seed in range(SEEDS):
        http_client.run_seed(seed)


@pytest.mark.parametrize("data", http_client.CORPUS, ids=range(len(http_client.CORPUS)))
async def test_undamaged_answers_are_all_taken(data: bytes) -> None:
    """The corpus itself, however it is cut: the fuzzer's agreement is not one about nothing."""
    for seed in range(10):
        taken = await http_client.check(data, random.Random(seed))
        assert (taken == "failed") == data.startswith(SWITCH)


@pytest.mark.parametrize("case", FOUND)
async def test_what_was_found_stays_mended(case: str) -> None:
    """Each input that broke an invariant once, cut in many ways."""
    for seed in range(50):
        await http_client.check(FOUND[case], random.Random(seed))
