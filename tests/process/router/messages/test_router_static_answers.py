"""Answers that an endpoint gives itself: no pod is asked, and none is woken."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock_router.router import decode_settings
from penstock_wire.errors import DocumentError
from tests.support.processes.router_process import backend, endpoint

STATIC = [
    {"path": "/healthz", "body": "ok\n"},
    {"path": "/ready", "status": 204},
    {"path": "/info", "status": 203, "body": '{"model": "digits"}'},
]


async def test_a_probe_is_answered_without_a_pod(upstream: Any, router: Any) -> None:
    """At the front door below the route; no request is held, although the backend has no pod."""
    process = await router().start(endpoint("e", backend("none"), static=STATIC, methods=["POST"]))
    reply = await process.ask("/e/healthz?probe=1", method="GET")
    assert (reply.status, reply.body, reply.headers["content-type"]) == (
        200, b"ok\n", "text/plain; charset=utf-8",
    )  # fmt: skip
    assert "x-penstock-backend" not in reply.headers
    assert reply.headers["x-request-id"]
    empty = await process.ask("/e/ready", method="GET")
    assert (empty.status, empty.body) == (204, b"")
    info = await process.ask("/e/info", method="GET")
    assert (info.status, info.headers["content-type"]) == (203, "application/json")
    head = await process.ask("/e/healthz", method="HEAD")
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", "3")
    assert 'penstock_router_requests_total{backend="",code="200",endpoint="e",reason=""} 2.0' in (
        await process.metrics()
    )


async def test_all_else_is_the_models(upstream: Any, router: Any) -> None:
    """Another method, a path below, the same path of an endpoint without one."""
    server = await upstream()
    process = await router().start(
        endpoint("e", backend("b", server.target), static=STATIC), endpoint("f", backend("b", server.target))
    )
    for path, method in (("/e/healthz", "POST"), ("/e/healthz/x", "GET"), ("/f/healthz", "GET")):
        assert (await process.ask(path, method=method)).headers["x-penstock-backend"] == "b"
    assert len(server.seen) == 3


@pytest.mark.parametrize(
    ("static", "expected"),
    [
        ([{"path": "healthz"}], r"endpoints\[0\]\.static\[0\]\.path: expected a path such as /healthz"),
        ([{"path": "/a?b"}], r"static\[0\]\.path: expected a path"),
        ([{"path": "/a"}, {"path": "/a"}], r"static\[1\]\.path: expected a path that no other has"),
        ([{"path": "/a", "status": 204, "body": "x"}], r"static\[0\]\.body: expected none with status 204"),
        ([{"path": "/a", "status": 100}], "static"),
    ],
)
def test_what_cannot_be_meant_is_refused(static: list[dict[str, Any]], expected: str) -> None:
    document = {"endpoints": [endpoint("e", backend("b", "h:1"), static=static)]}
    with pytest.raises(DocumentError, match=expected):
        decode_settings(msgspec.json.encode(document), by_hand=True)
