"""What a router remembers of heads is little, however long clients make theirs."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import cast

import pytest

from penstock_router.endpoints import EndpointState
from penstock_router.forwarding.forwarder import Forwarder
from penstock_router.messages.arrived_head import MAX_HEADS, MAX_HEADS_SIZE, ArrivedHeads
from penstock_router.metrics import Metrics
from penstock_router.mirroring.mirror import EndpointMirror
from penstock_router.mirroring.totals import MirrorSeries
from penstock_router.pods.pool import Pods
from penstock_router.router import Router
from penstock_wire.control.router_settings import Endpoint, Mirror, RouterSettings
from penstock_wire.headers import Headers
from penstock_wire.hop.heads import SlotTable
from penstock_wire.http import Exchange, Request, Response
from penstock_wire.http.client.head import encode_head
from penstock_wire.http.client.pool import H1Upstream
from penstock_wire.http.head_cache import HeadCache, RequestHead
from penstock_wire.http.server.server import H1Front

HEADS = 200
BYTES = 60_000


def _pods() -> Pods:
    return Pods(clock=lambda: 0.0, random_source=random.Random(1), changed=lambda: None)


def _state(heads: ArrivedHeads) -> EndpointState:
    return EndpointState(
        Endpoint(name="e"),
        pods=_pods(),
        clock=lambda: 0.0,
        random_source=random.Random(1),
        on_held=lambda: None,
        heads=heads,
    )


def _endpoint() -> Callable[[Headers], object]:
    state = _state(ArrivedHeads())
    return lambda headers: state.head(Request("POST", "/p", headers, b""))


class _Refused:
    """An exchange that is answered at once, and forgotten."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.gone = None

    def answer(self, response: Response) -> None:
        assert response.status == 403


def _front_door() -> Callable[[Headers], object]:
    """By the targets of requests, each as long as a head."""
    router = Router(
        front=H1Front(),
        host="127.0.0.1",
        upstream=H1Upstream(),
        random_source=random.Random(1),
        clock=lambda: 0.0,
    )
    router.apply(RouterSettings(endpoints=(Endpoint(name="e", closed=("/p",)),)))

    def take(headers: Headers) -> None:
        target = "/e/p?" + headers[1][1].decode()
        router.front_door(cast("Exchange", _Refused(Request("POST", target, headers[:1], b""))))

    return take


def _answers() -> Callable[[Headers], object]:
    made = Forwarder(pods=_pods(), upstream=H1Upstream(), metrics=Metrics(dict), clock=lambda: 0.0)
    return lambda headers: made._fields_of(headers)


def _plain() -> Callable[[Headers], object]:
    lines = b"x-request-id: 1\r\n"
    return lambda headers: encode_head(Request("POST", "/p", headers, b"", lines=lines), "a:1")


def _slots() -> Callable[[Headers], object]:
    table = SlotTable()
    return lambda headers: table.put(("POST", "/p", headers), BYTES)


def _mirror() -> Callable[[Headers], object]:
    made = EndpointMirror(Mirror(name="m"), MirrorSeries("e", "m"), random.Random(1))
    return lambda headers: made.fields(headers)


@pytest.mark.parametrize("make", [_endpoint, _front_door, _answers, _plain, _slots, _mirror])
def test_long_heads_are_not_kept(make: Callable[[], Callable[[Headers], object]]) -> None:
    """Each is 60 kB: a client that sends them all different would take up the router's memory."""
    take = make()
    tracemalloc.start()
    try:
        for number in range(HEADS):
            take(((b"host", b"a"), (b"x-long", b"%06d" % number * (BYTES // 6))))
        assert tracemalloc.get_traced_memory()[0] < 10 * BYTES
    finally:
        tracemalloc.stop()


def _many_slots() -> Callable[[int], object]:
    """Of a hop to each of 20 pods; a head that is sent twice would have a slot."""
    tables = [SlotTable() for _ in range(20)]

    def take(number: int) -> None:
        fields = _many_fields(number)
        for _ in range(2):
            tables[number % 20].put(("GET", "/p", fields), 1900, len(fields))

    return take


def _listeners() -> Callable[[int], object]:
    """Of 20 endpoints' ports."""
    known = [HeadCache() for _ in range(20)]

    def take(number: int) -> None:
        raw = b"GET /p HTTP/1.1\r\nn: %d\r\n" % number + b"x:\r\n" * 190 + b"\r\n"
        known[number % 20].learn(raw, RequestHead("GET", "/p", _many_fields(number), 0), whole=True)

    return take


def _many_fields(number: int) -> Headers:
    return ((b"n", b"%d" % number), *[(b"%d" % place, b"%d" % number) for place in range(190)])


@pytest.mark.long
@pytest.mark.parametrize("make", [_many_slots, _listeners])
def test_heads_of_many_short_fields_are_not_kept(make: Callable[[], Callable[[int], object]]) -> None:
    """One of 2 kB takes more than ten times as much in memory, for each pod or port that it comes to."""
    take = make()
    tracemalloc.start()
    try:
        for number in range(4000):
            take(number)
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
    finally:
        tracemalloc.stop()


def test_heads_take_no_more_memory_however_many_endpoints_a_client_sends_them_to() -> None:
    """Short ones, which are remembered: those of all endpoints together."""
    heads = ArrivedHeads()
    states = [_state(heads) for _ in range(300)]
    tracemalloc.start()
    try:
        for number in range(100):
            for place, state in enumerate(states):
                state.head(Request("POST", "/p", ((b"x", b"%06d" % (1000 * number + place) * 400),), b""))
        assert tracemalloc.get_traced_memory()[0] < 1.5 * MAX_HEADS_SIZE
        assert 0 < len(heads.known) <= MAX_HEADS
    finally:
        tracemalloc.stop()


def test_what_is_decided_for_a_head_is_one_endpoints_and_only_as_long_as_its_settings() -> None:
    heads = ArrivedHeads()
    one, other = _state(heads), _state(heads)
    request = Request("POST", "/p", ((b"host", b"a"),), b"")
    before = one.head(request)
    assert one.head(request) is before
    other.update(Endpoint(name="e", closed=("/p",)))
    assert (before.closed, other.head(request).closed, one.head(request).closed) == (False, True, False)
    one.update(Endpoint(name="e", closed=("/p",)))
    assert one.head(request).closed
