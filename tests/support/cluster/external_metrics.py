"""An external metrics API that serves the operator's metrics to a real HPA, as prometheus-adapter would.

`python -m tests.support.cluster.external_metrics ADDRESS OPERATOR_URL` listens on the address. It asks the
operator at each call, and passes on its errors; without a series of the selector's labels it answers 404.
"""

from __future__ import annotations

import asyncio
import sys
import time

import aiohttp
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from tests.support.cluster.tls_app import serve

GROUP = "external.metrics.k8s.io/v1beta1"


def application(operator: str) -> web.Application:
    """The API, before an operator's port."""

    async def discovery(_: web.Request) -> web.Response:
        return web.json_response(
            {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP, "resources": []}
        )

    async def value(request: web.Request) -> web.Response:
        selector = dict(pair.split("=") for pair in request.query["labelSelector"].split(","))
        async with aiohttp.ClientSession() as session, session.get(f"{operator}/metrics") as answer:
            text = await answer.text()
            if answer.status != 200:
                return web.Response(status=503, text=text)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        items = [
            {
                "metricName": sample.name,
                "metricLabels": sample.labels,
                "timestamp": stamp,
                "value": str(int(sample.value)),
            }
            for family in text_string_to_metric_families(text)
            if family.name == request.match_info["metric"]
            for sample in family.samples
            if selector.items() <= sample.labels.items()
        ]
        kinds = {"kind": "ExternalMetricValueList", "apiVersion": GROUP, "metadata": {}}
        return web.json_response(kinds | {"items": items}, status=200 if items else 404)

    app = web.Application()
    app.router.add_get(f"/apis/{GROUP}", discovery)
    app.router.add_get(f"/apis/{GROUP}/namespaces/{{namespace}}/{{metric}}", value)
    return app


if __name__ == "__main__":
    asyncio.run(serve(application(sys.argv[2]), sys.argv[1]))
