"""What a router remembers of heads is little, however long clients make theirs."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable

import pytest

from penstock_router.endpoints import EndpointState
from penstock_router.pods import Pods
from penstock_wire.control.router_settings import Endpoint
from penstock_wire.headers import Headers
from penstock_wire.hop.heads import SlotTable
from penstock_wire.http import Request
from penstock_wire.http.client.head import encode_head

HEADS = 200
BYTES = 60_000


def _endpoint() -> Callable[[Headers], object]:
    state = EndpointState(
        Endpoint(name="e"),
        pods=Pods(clock=lambda: 0.0, random_source=random.Random(1), changed=lambda: None),
        clock=lambda: 0.0,
        random_source=random.Random(1),
        on_held=lambda: None,
    )
    return lambda headers: state.head(Request("POST", "/p", headers, b""))


def _plain() -> Callable[[Headers], object]:
    lines = b"x-request-id: 1\r\n"
    return lambda headers: encode_head(Request("POST", "/p", headers, b"", lines=lines), "a:1")


def _slots() -> Callable[[Headers], object]:
    table = SlotTable()
    return lambda headers: table.put(("POST", "/p", headers), BYTES)


@pytest.mark.parametrize("make", [_endpoint, _plain, _slots])
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
