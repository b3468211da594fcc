"""What the page shows, without a cluster: resources of every kind, and an API server that has their metrics.

`page_world.yaml` has them: a healthy and scaling backend under a release, one that cannot start, one that
downloads, a mirror whose answers all differ, a policy, and a workload of others with sidecars.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from penstock_cli.cluster import Cluster
from penstock_cli.ui.scrapes import Scrapes
from penstock_cli.ui.server import Server
from penstock_cli.ui.store import Store
from penstock_wire.http.server.server import H1Front
from penstock_wire.page.door import Door
from tests.support.processes.tiny_apiserver import TinyApiserver

Obj = dict[str, Any]
VIEWS = {
    "overview": ("#/", ".rows > li"),
    "backend": ("#/ModelBackend/shop/stable", "[data-panel=batches]:not([hidden])"),
    "broken": ("#/ModelBackend/shop/broken", ".notes"),
    "coming": ("#/ModelBackend/shop/coming.v2-1", ".notes"),
    "endpoint": ("#/ModelEndpoint/shop/classify", "svg[aria-label*=p99]"),
    "release": ("#/TrafficSplit/shop/classify", ".steps"),
    "policy": ("#/BatchPolicy/shop/small", "[data-panel=workloads]:not([hidden])"),
    "workload": ("#/Workload/shop/Deployment%2Ftheirs", "[data-panel=batches]:not([hidden])"),
    "reasons": ("#/reasons/Limited", "tr.wanted"),
}
"""Of each view its address, and a selector of what is there once it is whole."""
_DOCUMENT = Path(__file__).with_suffix(".yaml")


def resources() -> dict[str, list[Obj]]:
    """All of them, by kind."""
    return _read("resources")


def _read(part: str) -> Any:
    """A part of the document, in which `ago(60)` stands for a time a minute ago."""
    now = datetime.now(UTC)
    text = re.sub(
        r"ago\((\d+)\)",
        lambda match: f'"{now - timedelta(seconds=int(match[1])):%Y-%m-%dT%H:%M:%SZ}"',
        _DOCUMENT.read_text("utf-8"),
    )
    return yaml.safe_load(text)[part]


def _answers() -> Callable[[web.Request], Awaitable[web.Response]]:
    """Answers as the API server does, for pods whose counters grow; `*13` stands for 13 a second."""
    answers = _read("answers")

    async def answer(request: web.Request) -> web.Response:
        ending = next((each for each in answers if re.search(each, request.path)), None)
        if ending is None:
            return web.json_response({"code": 404, "reason": "NotFound"}, status=404)
        at = time.time() % 1e5
        return web.Response(text=re.sub(r"\*(\d+)", lambda rate: f"{int(rate[1]) * at}", answers[ending]))

    return answer


@contextlib.asynccontextmanager
async def shown(folder: Path) -> AsyncIterator[tuple[str, Store]]:
    """The page of that: its URL, and what it shows.

    Args:
        folder: for the kubeconfig.
    """
    app, api, path = web.Application(), TinyApiserver(), folder / "kubeconfig"
    app.router.add_route("*", "/{path:.*}", _answers())
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api.url = "http://{}:{}".format(*runner.addresses[0][:2])
    path.write_text(api.kubeconfig())
    cluster, store, front = Cluster.connect(str(path), None, "shop"), Store(), H1Front()
    for kind, items in resources().items():
        store.replace(kind, items)
    scrapes = Scrapes(cluster, store)
    door = Door(Server(cluster, store, scrapes, everywhere=False).answer)
    listener = await front.listen("127.0.0.1", 0, door.handle)
    scrapes.start()
    try:
        yield "http://{}:{}/{}".format(*listener.address, door.fragment()), store
    finally:
        scrapes.close()
        store.close()
        await front.close(0.0)
        await runner.cleanup()
