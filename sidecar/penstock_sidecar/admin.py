"""The admin port: health for the kubelet, metrics, the drain hook, and pages for people."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import msgspec

from penstock_sidecar.drain import Drain
from penstock_sidecar.interfaces import RequestPath
from penstock_sidecar.metrics import Metrics, class_label, fits_of_most_batches
from penstock_wire import contract
from penstock_wire.addresses import unmapped
from penstock_wire.control import settings as wire_settings
from penstock_wire.control.artifact import ArtifactAdvice
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.exposition import exposition
from penstock_wire.headers import DRAIN, get
from penstock_wire.http import Request, Response

Problem = Callable[[], str]
"""Returns what is wrong, or an empty string."""


class Admin:
    """Answers the requests of the admin port.

    Args:
        path: the request path to show.
        drain: the drain that `/drain` begins.
        metrics: the metrics that `/metrics` shows.
        settings: the settings in effect.
        dead: why the process should be restarted; empty while it is well.
        unready: why nothing should be sent here; empty while the pod is ready.
        advice: what the first step of the pod's artifact is told; None without an artifact.
        debug: whether `/debug/tasks` is served.
        drain_secret: value that `x-penstock-drain` must have in requests to `/drain`; empty = any.
    """

    def __init__(
        self,
        *,
        path: RequestPath,
        drain: Drain,
        metrics: Metrics,
        settings: Callable[[], wire_settings.Settings],
        dead: Problem,
        unready: Problem,
        drain_secret: str,
        advice: Callable[[], Awaitable[ArtifactAdvice]] | None = None,
        debug: bool = False,
    ) -> None:
        self._path = path
        self._drain = drain
        self._metrics = metrics
        self._settings = settings
        self._dead = dead
        self._unready = unready
        self._drain_secret = drain_secret.encode()
        self._routes: dict[str, Callable[[Request], Awaitable[Response]]] = {
            contract.LIVE_PATH: self._livez,
            contract.READY_PATH: self._readyz,
            "/metrics": self._show_metrics,
            contract.DRAIN_PATH: self._begin_drain,
            "/settings": self._show_settings,
            "/queue": self._show_queue,
        }
        self._advice = advice
        if advice is not None:
            self._routes[contract.ADVICE_PATH] = self._advise
        if debug:
            self._routes["/debug/tasks"] = self._show_tasks

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        route = self._routes.get(request.path)
        if route is None:
            detail = f"expected one of {', '.join(self._routes)}, found {request.path[:100]}"
            return PenstockError(Reason.NO_ROUTE, detail).response()
        allowed = ("GET", "POST") if request.path == contract.DRAIN_PATH else ("GET", "HEAD")
        if request.method not in allowed:
            allow = (b"allow", ", ".join(allowed).encode())
            return PenstockError(
                Reason.METHOD_NOT_ALLOWED,
                f"expected {' or '.join(allowed)}, found {request.method}",
                headers=(allow,),
            ).response()
        return await route(request)

    async def _livez(self, _: Request) -> Response:
        return _health(self._dead())

    async def _readyz(self, _: Request) -> Response:
        return _health(self._dead() or self._unready())

    async def _show_metrics(self, request: Request) -> Response:
        return exposition(self._metrics, request.headers)

    async def _begin_drain(self, request: Request) -> Response:
        sent = get(request.headers, DRAIN) or b""
        if self._drain_secret and not hmac.compare_digest(sent, self._drain_secret):
            return PenstockError(
                Reason.FORBIDDEN, "expected this pod's x-penstock-drain value, found another or none"
            ).response()
        self._drain.begin()
        await self._drain.drained()
        return _text(200, self._drain.phase.value)

    async def _show_settings(self, _: Request) -> Response:
        settings = self._settings()
        document: dict[str, Any] = msgspec.to_builtins(settings)
        document["batching"]["maxQueuedItems"] = self._path.queue_limit
        # NB: whoever reaches the port may read it, and a userConfig may hold what only its model should know.
        document["userConfig"] = None if settings.user_config is None else "hidden"
        return _json(document)

    async def _advise(self, request: Request) -> Response:
        """Answer the pod's own first step: others must not learn the key."""
        host = unmapped(request.peer.partition("%")[0])
        if self._advice is None or not ipaddress.ip_address(host).is_loopback:
            return PenstockError(
                Reason.FORBIDDEN, f"expected a request of this pod, found one from {request.peer}"
            ).response()
        return _json(await self._advice())

    async def _show_tasks(self, _: Request) -> Response:
        """Name and lines of each task: its position in the code, and none of its data."""
        tasks = [
            {
                "name": task.get_name(),
                "stack": [_line(frame) for frame in task.get_stack(limit=20)],
            }
            for task in asyncio.all_tasks()
        ]
        return _json({"tasks": sorted(tasks, key=lambda task: str(task["name"]))})

    async def _show_queue(self, _: Request) -> Response:
        path = self._path
        document: dict[str, Any] = {
            "queued": path.queued,
            "ongoing": path.ongoing,
            "oldestAgeMs": round(path.oldest_age * 1000),
            "slots": path.slots,
            "drain": self._drain.phase.value,
            "lines": path.lines(),
            "fit": {class_label(name): fit for name, fit in fits_of_most_batches(path.fits())},
        }
        if (unbatched := path.unbatched) is not None:
            # The sums above count these requests, but no line of a batch has them.
            document["passing"] = {"queued": unbatched.queued, "ongoing": unbatched.ongoing}
        return _json(document)


def _line(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {code.co_qualname}"


def _health(problem: str) -> Response:
    return _text(503, problem) if problem else _text(200, "ok")


def _text(status: int, text: str) -> Response:
    return Response(
        status=status, headers=((b"content-type", b"text/plain; charset=utf-8"),), body=text.encode() + b"\n"
    )


def _json(document: Any) -> Response:
    return Response(
        status=200,
        headers=((b"content-type", b"application/json"),),
        body=msgspec.json.encode(document) + b"\n",
    )
