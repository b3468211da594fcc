"""Which requests a pod has surely not read, by what it says and when."""

from __future__ import annotations

import random

import pytest

from penstock_router.endpoints import EndpointState
from penstock_router.forwarding.outcome import UNREAD_SECONDS, failed
from penstock_router.forwarding.request import ProxiedRequest
from penstock_router.forwarding.retry import CONNECTION_CLOSED
from penstock_router.pods.endpoint_slices import Address
from penstock_router.pods.pool import Pods
from penstock_wire.control.router_settings import Endpoint
from penstock_wire.errors import PenstockError
from penstock_wire.http import NotAdmitted, NotCarried, Request, RequestNotTaken, RequestUnread, UpstreamError
from tests.support.worlds.router_world import HeldExchange


@pytest.mark.parametrize(
    ("error", "seconds", "unread"),
    [
        (RequestUnread, UNREAD_SECONDS / 2, True),
        (RequestUnread, UNREAD_SECONDS, False),
        (RequestNotTaken, UNREAD_SECONDS, True),
        (NotAdmitted, UNREAD_SECONDS, True),
        (NotCarried, 0.0, False),
    ],
)
async def test_a_reset_counts_early_and_a_pod_s_own_word_always(
    error: type[UpstreamError], seconds: float, unread: bool
) -> None:
    """A late reset may be that of another who has the address by now; a goodbye is the pod's."""
    pods = Pods(clock=lambda: 0.0, random_source=random.Random(1), changed=lambda: None)
    pods.set_slices({"b": (Address(host="10.0.0.1", port=1),)})
    state = EndpointState(
        Endpoint(name="e"),
        pods=pods,
        clock=lambda: 0.0,
        random_source=random.Random(1),
        on_held=lambda: None,
    )
    request = Request("POST", "/p", (), b"")
    proxied = ProxiedRequest(HeldExchange(request, []), state, request, (), b"id", 1, 0.0, None, b"")
    proxied.upstream_request(0.0)
    (pod,) = pods.ready("b")
    if unread:
        assert failed(proxied, pod, error("gone"), pods, seconds).reason == CONNECTION_CLOSED
    else:
        with pytest.raises(PenstockError):
            failed(proxied, pod, error("gone"), pods, seconds)
    assert not pod.unreachable
