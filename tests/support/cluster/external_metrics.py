"""An external metrics API that serves Penstock's recommendations to a real HPA, as prometheus-adapter would.

`python -m tests.support.cluster.external_metrics ADDRESS OPERATOR_URL` listens on the address with a
certificate of its own and prints the port. It asks the operator at each call, and passes on its errors.
"""

from __future__ import annotations

import asyncio
import sys
import time

import aiohttp
from aiohttp import web

from penstock_operator.control import pki
from penstock_operator.control.certificates import server_context, show

GROUP = "external.metrics.k8s.io/v1beta1"
METRIC = "penstock_operator_backend_recommendation"


async def serve(address: str, operator: str) -> None:
    """Serve until killed."""
    context = server_context()
    life = 86_400.0
    authority = pki.make_authority(now=time.time(), life=life)
    show(context, pki.issue(authority, names=(address,), now=time.time(), life=life))

    async def discovery(_: web.Request) -> web.Response:
        return web.json_response(
            {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP, "resources": []}
        )

    async def value(request: web.Request) -> web.Response:
        selector = dict(pair.split("=") for pair in request.query["labelSelector"].split(","))
        url = f"{operator}/recommendation/{selector['namespace']}/{selector['backend']}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            if answer.status != 200:
                return web.Response(status=503, text=await answer.text())
            desired = (await answer.json())["desiredReplicas"]
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        item = {"metricName": METRIC, "metricLabels": selector, "timestamp": stamp, "value": str(desired)}
        return web.json_response(
            {"kind": "ExternalMetricValueList", "apiVersion": GROUP, "metadata": {}, "items": [item]}
        )

    app = web.Application()
    app.router.add_get(f"/apis/{GROUP}", discovery)
    app.router.add_get(f"/apis/{GROUP}/namespaces/{{namespace}}/{METRIC}", value)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, address, 0, ssl_context=context).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2]))
