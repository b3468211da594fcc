"""What a real router makes of an answer's head (interim answers, HEAD, `Location`), and of upgrades."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_router.messages.header_policy import AnswerFields, inward, under_route
from penstock_wire.headers import Headers, timeout_ms
from tests.support.clocks.waiting import SECONDS
from tests.support.http.raw_client import until_closed
from tests.support.http.router_upstream import Answer, Seen
from tests.support.http.stream_peer import Scripted, Wire, scripted
from tests.support.processes.ports import free_port
from tests.support.processes.router_process import RouterProcess, backend, endpoint

HOST = b"shop.example:81"


@pytest_asyncio.fixture
async def pod() -> AsyncIterator[Scripted]:
    async with scripted(Scripted()) as server:
        yield server


async def raw(process: RouterProcess, sent: bytes) -> bytes:
    """What the front door says to a request, until it closes."""
    return await until_closed(("127.0.0.1", int(process.data.rpartition(":")[2])), sent)


async def test_head_tells_the_length_of_what_it_leaves_out(pod: Scripted, router: Any) -> None:
    """RFC 9110 sections 8.6 and 9.3.2: the length that GET's answer would have, where the model tells it."""

    async def play(wire: Wire) -> None:
        while True:
            length = (await wire.head()).split()[1].removeprefix(b"/")
            field = b"content-length: %b\r\n" % length if length else b"transfer-encoding: chunked\r\n"
            await wire.send(b"HTTP/1.1 200 OK\r\n%b\r\n" % field)

    pod.scripts = [play]
    process = await router().start(endpoint("e", backend("b", f"127.0.0.1:{pod.port}")))
    lengths: list[str | None] = []
    for length in ("0", "5", "9000000", ""):
        reply = await process.ask(f"/e/{length}", method="HEAD")
        assert (reply.status, reply.body) == (200, b"")
        lengths.append(reply.headers.get("content-length"))
    assert lengths == ["0", "5", "9000000", None]
    assert pod.connections == 1


async def test_early_hints_come_before_the_answer(pod: Scripted, router: Any) -> None:
    """RFC 9110 section 15.2 and RFC 8297: as the model sends them, without what is between router and pod."""
    wait = asyncio.Event()

    async def play(wire: Wire) -> None:
        await wire.head()
        await wire.send(b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\nx-penstock-queue: 1\r\n\r\n")
        await wait.wait()
        await wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    pod.scripts = [play]
    process = await router().start(endpoint("e", backend("b", f"127.0.0.1:{pod.port}")))
    reader, writer = await asyncio.open_connection("127.0.0.1", int(process.data.rpartition(":")[2]))
    writer.write(b"GET /e/ HTTP/1.1\r\nhost: a\r\n\r\n")
    hints = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SECONDS)
    assert hints == b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n"
    wait.set()
    assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200 OK\r\n")
    writer.close()


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        (b"/", b"/shop/"),
        (b"/items/7?x=/y#z", b"/shop/items/7?x=/y#z"),
        (b"/shop/items", b"/shop/shop/items"),
        (b"http://shop.example:81/items", b"http://shop.example:81/shop/items"),
        (b"HTTPS://SHOP.example:81/items", b"HTTPS://SHOP.example:81/shop/items"),
        (b"http://shop.example:81", b"http://shop.example:81/shop/"),
        (b"http://shop.example:81?x", b"http://shop.example:81/shop/?x"),
        (b"http://shop.example/items", b"http://shop.example/items"),
        (b"http://other:81/items", b"http://other:81/items"),
        (b"//shop.example:81/items", b"//shop.example:81/items"),
        (b"items", b"items"),
        (b"../items", b"../items"),
        (b"?page=2", b"?page=2"),
        (b"", b""),
    ],
)
def test_a_location_on_the_server_that_was_asked_gets_the_route_back(
    location: bytes, expected: bytes
) -> None:
    headers: Headers = (
        (b"a", b"/"),
        (b"location", location),
        (b"content-location", location),
        (b"link", b"</a>"),
    )
    wanted = ((b"a", b"/"), (b"location", expected), (b"content-location", expected), (b"link", b"</a>"))
    assert under_route(headers, route=b"/shop", host=HOST) == wanted
    assert under_route(headers, route=b"", host=HOST) is headers


async def test_the_front_door_gives_a_location_its_route_back(upstream: Any, router: Any) -> None:
    """As the client wrote it. An endpoint's own port strips nothing, and changes nothing."""

    async def moved(seen: Seen) -> Answer:
        return Answer(status=307, headers=b"location: /v2" + seen.target.encode() + b"\r\n")

    server = await upstream(moved)
    port = free_port()
    process = await router().start(
        endpoint("e", backend("b", server.target), port=port, route="/sh op"),
        endpoint("all", backend("b", server.target), route="/"),
    )
    ask = b"GET %b HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    assert b"\r\nlocation: /sh%20op/v2/x?y\r\n" in await raw(process, ask % b"/sh%20op/x?y")
    assert b"\r\nlocation: /v2/x\r\n" in await raw(process, ask % b"/x")
    own = await until_closed(("127.0.0.1", port), ask % b"/sh%20op/x")
    assert b"\r\nlocation: /v2/sh%20op/x\r\n" in own


async def test_an_endpoint_that_takes_no_get_takes_no_websocket(upstream: Any, router: Any) -> None:
    """On both ways in; a switch to HTTP/2 is never passed on: it would carry requests past the router."""
    server = await upstream()
    port = free_port()
    process = await router().start(endpoint("e", backend("b", server.target), port=port, methods=["POST"]))
    fields = {"connection": "Upgrade", "upgrade": "WebSocket", "sec-websocket-version": "13"}
    for path, base in (("/e/chat", ""), ("/chat", f"http://127.0.0.1:{port}")):
        refused = await process.ask(path, method="GET", headers=fields, base=base)
        assert (refused.status, refused.document["reason"]) == (405, "method_not_allowed")
    assert not server.seen
    h2c = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAAQAAP__"}
    assert (await process.ask(method="POST", headers=h2c)).status == 200
    (seen,) = server.seen
    assert [seen.header(name) for name in ("upgrade", "connection", "http2-settings")] == [None] * 3


def test_what_an_answer_says_in_lines_of_its_own_is_its_own() -> None:
    """Answers that share their fields, one after another: nothing of one is said of the next."""
    fields = AnswerFields(((b"content-type", b"a/b"), (b"x-penstock-queue", b"7")))
    outward = fields.outward
    timing = b"server-timing: a;dur=1\r\n"
    said = []
    for lines in (
        timing + b"x-request-id: a\r\nx-penstock-queue: 12\r\n",
        b"x-request-id: b\r\nx-penstock-queue: 123456789\r\n",
        b"x-request-id: c\r\nx-penstock-queue: 1234567890\r\n",
        b"",
    ):
        fields.take(lines)
        said.append((fields.queued, fields.lines))
        assert fields.outward is outward
    assert said == [(12, timing), (123456789, b""), (-1, b""), (7, b"")]


NAMES = (
    "request-id",
    "reason",
    "backend",
    "queue",
    "not-admitted",
    "timeout-ms",
    "sticky",
    "idle-ms",
    "forged",
)
OF_PENSTOCK = st.lists(
    st.tuples(
        st.sampled_from([b"x-penstock-" + name.encode() for name in NAMES]),
        st.one_of(st.binary(max_size=12), st.from_regex(rb"\A[0-9]{1,12}\Z"), st.just(b"queue_full")),
    ),
    max_size=6,
)


@settings(deadline=None)
@given(OF_PENSTOCK)
def test_whatever_a_pod_or_a_client_says_in_our_fields_little_of_it_passes(
    said: list[tuple[bytes, bytes]],
) -> None:
    """Any bytes: of our fields those pass that are to, and what is not a number is not taken for one."""
    headers = (*said, (b"content-type", b"a/b"))
    fields = AnswerFields(headers)
    assert fields.outward == tuple(
        field
        for field in headers
        if not field[0].startswith(b"x-penstock-") or field[0] == b"x-penstock-reason"
    )
    assert fields.refuses == any(name == b"x-penstock-not-admitted" for name, _ in said)
    assert -1 <= fields.queued < 10**9
    passed = {name for name, _ in inward(headers)}
    assert passed == {b"content-type", b"via"}
    left = timeout_ms(headers)
    values = [value for name, value in said if name == b"x-penstock-timeout-ms"]
    assert (left is None) == (not values)
    assert left is None or left == -1 or (left >= 0 and values[0].isdigit())
