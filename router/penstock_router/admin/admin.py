"""Answers requests to the admin port: /livez, /readyz, /metrics, /settings."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from penstock_router.metrics import Metrics
from penstock_router.router import JSON, Router
from penstock_router.shared import SharedMetrics, SharedRouter
from penstock_wire.contract import LIVE_PATH, READY_PATH
from penstock_wire.control import router_settings
from penstock_wire.control.router_settings import RouterSettings
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.exposition import exposition
from penstock_wire.http import Request, Response

TEXT = ((b"content-type", b"text/plain; charset=utf-8"),)


class Admin:
    """Answers requests to the admin port.

    Args:
        router: the router that they are about.
    """

    def __init__(self, router: Router | SharedRouter) -> None:
        self._router = router

    def probe(self, request: Request, *, still: bool) -> Response | None:
        """Answer a health request, from any thread; returns None for any other request.

        A router that was ready stays ready until it drains or its loop stands still.

        Args:
            still: whether the router's event loop stands still.
        """
        if request.method not in ("GET", "HEAD") or request.path not in (LIVE_PATH, READY_PATH):
            return None
        if still:
            return PenstockError(Reason.NOT_READY, "the router's event loop stands still").response()
        state = self._router.state()
        if request.path == LIVE_PATH or state == "ready":
            return Response(status=200, headers=TEXT, body=b"ok\n")
        reason = Reason.DRAINING if state == "draining" else Reason.NOT_READY
        return PenstockError(reason, f"expected state ready, found {state}").response()

    async def handle(self, request: Request) -> Response:
        """Answer a request that is not a health request."""
        if request.method not in ("GET", "HEAD"):
            return PenstockError(
                Reason.METHOD_NOT_ALLOWED,
                f"the admin port takes GET, found {request.method}",
                headers=((b"allow", b"GET, HEAD"),),
            ).response()
        if request.path == "/metrics":
            return exposition(self._metrics(request), request.headers)
        if request.path == "/settings":
            settings = self._router.settings or RouterSettings(endpoints=())
            return Response(status=200, headers=JSON, body=router_settings.encode(settings))
        return PenstockError(Reason.NO_ROUTE, "the admin port has no such path").response()

    def _metrics(self, request: Request) -> Metrics | SharedMetrics:
        """All metrics; of a router that namespaces share only those of one, with `?namespace=NAME`."""
        metrics = self._router.metrics
        namespace = parse_qs(urlsplit(request.target).query).get("namespace")
        return metrics.of(namespace[0]) if namespace and isinstance(metrics, SharedMetrics) else metrics
