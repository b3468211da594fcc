"""Heads that came before: what is kept of them, and that nothing else follows from it."""

from __future__ import annotations

import pytest

from penstock_wire.http.head_cache import (
    MAX_HEAD_BYTES,
    MAX_HEADS,
    MISSES,
    REST,
    HeadCache,
    RequestHead,
)
from tests.fuzz.http_server import Run

GET = b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /p HTTP/1.1\r\nHost: a\r\nX-A: 1\r\nContent-Length: 5\r\n\r\n%b"


def run(*pieces: bytes, known: HeadCache, streamed: bool = False) -> Run:
    return Run(list(pieces), later=False, streamed=streamed, known=known)


def test_the_second_request_with_the_same_head_is_not_parsed_and_is_the_same_but_for_its_body() -> None:
    known = HeadCache()
    first = run(POST % b"hello", known=known).taken[0]
    assert len(known) == 1
    taken = run(POST % b"world", POST % b"again", known=known).taken
    assert [request.body for request in taken] == [b"world", b"again"]
    for request in taken:
        assert (request.method, request.target, request.peer) == (first.method, first.target, first.peer)
        assert request.headers is first.headers, "the parser read it again"


@pytest.mark.parametrize(
    "pieces",
    [
        [POST % b"hel", b"lo"],
        [POST % b"hello" + GET % b"x"],
        [POST % b"hello" + b"\r\n"],
        [b"\r\n" + POST % b"hello"],
        [b"\r\n", POST % b"hello"],
        [b"P", POST[1:] % b"hello"],
    ],
    ids=["in two pieces", "two at once", "a blank line behind", "one before", "one before, apart", "cut"],
)
def test_what_is_not_one_whole_request_goes_to_the_parser(pieces: list[bytes]) -> None:
    """It is taken all the same, with a head of its own making."""
    known = HeadCache()
    kept = run(POST % b"hello", known=known).taken[0].headers
    taken = run(*pieces, known=known).taken
    assert taken[0].body == b"hello"
    assert taken[0].headers == kept
    assert taken[0].headers is not kept


BEFORE, BODY = POST[:-2], b"hello"


@pytest.mark.parametrize(
    "pieces",
    [
        [BEFORE, BODY],
        [BEFORE, b"he", b"llo"],
        [BEFORE, BODY + GET % b"x"],
        [BEFORE, BODY + BEFORE, BODY],
        [BEFORE, BODY + BEFORE + BODY, GET % b"x"],
    ],
    ids=["two pieces", "three", "another behind", "a head behind", "a whole one behind"],
)
def test_a_head_whose_body_comes_later_is_kept_too(pieces: list[bytes]) -> None:
    """As `requests` sends; requests around it are what they were."""
    known = HeadCache()
    plain = run(*pieces, known=HeadCache()).taken
    first = run(BEFORE, BODY, known=known).taken[0]
    assert len(known) == 1
    taken = run(*pieces, known=known).taken
    assert [(r.method, r.target, r.headers, r.body) for r in taken] == [
        (r.method, r.target, r.headers, r.body) for r in plain
    ]
    assert taken[0].headers is first.headers, "the parser read it again"
    assert run(POST % BODY, known=known).taken[0].headers is first.headers


def test_a_head_is_not_kept_by_the_bytes_of_another() -> None:
    """Behind the first head come as many bytes as the second one's body has."""
    known = HeadCache()
    second = b"POST /second HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
    second = second % len(second)
    assert len(second) == int(second.split(b": ")[-1])
    run(GET % b"first" + second, b"x" * len(second), known=known)
    assert len(known) == 0


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/1.0\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PURGE / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
    ],
)
def test_heads_that_say_something_of_their_connection_are_not_kept(request_bytes: bytes) -> None:
    """Nor are those that are refused, long, or rare."""
    known = HeadCache()
    run(request_bytes, known=known)
    assert len(known) == 0


@pytest.mark.parametrize(
    "said", [b"Connection: keep-alive", b"connection: Keep-Alive\r\nKeep-Alive: timeout=5"]
)
def test_heads_that_ask_for_what_is_done_anyway_are_kept(said: bytes) -> None:
    """As `requests` and `httpx` write them, and Node."""
    known = HeadCache()
    sent = b"GET /x HTTP/1.1\r\nHost: a\r\n%b\r\n\r\n" % said
    first, again = (run(sent, known=known).taken[0] for _ in range(2))
    assert again.headers is first.headers
    assert first.headers == ((b"host", b"a"),)


def test_bodies_that_are_streams_are_not_kept() -> None:
    known = HeadCache()
    run(POST % b"hello", known=known, streamed=True)
    assert len(known) == 0


def test_a_connection_whose_trailers_may_have_ended_it_looks_no_more() -> None:
    """The parser's state is then that of the cached head, without these bytes."""
    known = HeadCache()
    run(GET % b"x", known=known)
    chunked = (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nConnection: close\r\n\r\n"
    )
    assert [request.target for request in run(chunked, GET % b"x", known=known).taken] == ["/"]


def test_memory_is_bounded() -> None:
    known = HeadCache()
    for number in range(3 * MAX_HEADS):
        known.learn(GET % b"%d" % number, RequestHead("GET", f"/{number}", (), 0), whole=True)
        assert 1 <= len(known) <= MAX_HEADS


def test_looking_in_vain_rests_and_is_taken_up_again() -> None:
    """Clients that send no head twice pay for it once in a while only."""
    known = HeadCache()
    known.learn(GET % b"x", RequestHead("GET", "/x", (), 0), whole=True)
    for _ in range(MISSES):
        assert known.awake()
        assert known.find(GET % b"y", None) is None
    assert [known.awake() for _ in range(REST + 1)] == [False] * REST + [True]
    assert known.find(GET % b"x", None) is not None


def test_one_hit_pays_for_three_misses() -> None:
    known = HeadCache()
    known.learn(GET % b"x", RequestHead("GET", "/x", (), 0), whole=True)
    for _ in range(MISSES):
        for target in (b"x", b"y", b"y", b"y"):
            assert known.awake()
            known.find(GET % target, None)
