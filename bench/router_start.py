"""`python -m bench.router_start`: how long a shared router takes until it serves 10 000 endpoints.

The router is a real process on one core, compiled where a compiler is. A stub of the operator answers its
reports with settings as the operator makes them, and a stub of the apiserver has an EndpointSlice of each
backend, with two pods. The time is from the start of the process to its first report that it is ready; at
rest it reports and nobody calls. As in a pod, in a network of its own:
`unshare -n sh -c "ip link set lo up; exec python -m bench.router_start --host [::]"`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from aiohttp import web

from bench import processes, product
from bench.processes import cpu_seconds, rss_mb
from penstock_router.pods.endpoint_slices import BY_CONTROLLER, OURS, SERVICE_LABEL
from penstock_wire.contract import BACKEND_LABEL, NAMESPACE_ENV, SIDECAR_PORT
from penstock_wire.control.router_settings import (
    Endpoint,
    Tenant,
    WeightedBackend,
    encode_tenant,
    encode_tenants,
)

FIRST_PORT = 20_000
SETTLE_SECONDS, REST_SECONDS = 3.0, 10.0


def settings(endpoints: int, namespaces: int) -> bytes:
    """The settings of so many endpoints, two of each backend."""
    ports = iter(range(FIRST_PORT, FIRST_PORT + endpoints + namespaces))
    tenants = {}
    for number in range(namespaces):
        own = range(number, endpoints, namespaces)
        served = tuple(
            Endpoint(
                name=f"endpoint-{each:05}",
                port=next(ports),
                backends=(WeightedBackend(name=f"model-{place // 2}"),),
            )
            for place, each in enumerate(own)
        )
        tenants[f"tenant-{number:04}"] = encode_tenant(Tenant(port=next(ports), endpoints=served))
    return encode_tenants(1, tenants, digest="all")


def slices(endpoints: int, namespaces: int) -> bytes:
    """A list of an EndpointSlice with two pods for each backend."""
    items = []
    for number in range(namespaces):
        space = f"tenant-{number:04}"
        for place in range((len(range(number, endpoints, namespaces)) + 1) // 2):
            name = f"model-{place}"
            own = {**OURS, **BY_CONTROLLER, BACKEND_LABEL: name, SERVICE_LABEL: f"{name}-backend"}
            at = f"0b5a7e7c-0000-4000-8000-{number:06}{place:06}"
            endpoints_of = [
                {
                    "addresses": [f"10.{number >> 8}.{number & 255}.{place * 2 + each}"],
                    "conditions": {"ready": True, "serving": True, "terminating": False},
                    "nodeName": f"node-{number % 50}",
                    "targetRef": {
                        "kind": "Pod",
                        "name": f"{name}-{each}",
                        "namespace": space,
                        "uid": f"{at}-{each}",
                    },
                }
                for each in range(2)
            ]
            owner = {"apiVersion": "v1", "kind": "Service", "name": f"{name}-backend", "uid": at}
            fields: dict[str, dict[str, object]] = {"f:addressType": {}, "f:endpoints": {}, "f:ports": {}}
            manager = {"manager": "kube-controller-manager", "operation": "Update", "fieldsV1": fields}
            metadata = {
                "name": f"{name}-backend-x",
                "namespace": space,
                "uid": at,
                "labels": own,
                "ownerReferences": [owner],
                "managedFields": [manager],
            }
            port = {"name": "http", "port": SIDECAR_PORT, "protocol": "TCP"}
            items.append(
                {"metadata": metadata, "addressType": "IPv4", "ports": [port], "endpoints": endpoints_of}
            )
    return json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()


async def measure(endpoints: int, namespaces: int, host: str) -> dict[str, float]:
    """Start a router and measure it.

    Args:
        host: where it listens.
    """
    document, listed = settings(endpoints, namespaces), slices(endpoints, namespaces)
    reports: list[int] = []
    ready = asyncio.Event()

    async def report(request: web.Request) -> web.Response:
        body = await request.read()
        sent = json.loads(body)
        reports.append(len(body))
        if sent["state"] == "ready":
            ready.set()
        whole = b"null" if sent["settingsDigest"] == "all" else document
        answer = b'{"v":1,"nextReportMs":600,"taken":%d,"settings":%s}' % (sent["seq"], whole)
        return web.Response(body=answer, content_type="application/json")

    async def watched(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.Response(body=listed, content_type="application/json")
        answer = web.StreamResponse()
        await answer.prepare(request)
        await asyncio.Event().wait()
        return answer

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/reports/router", report)
    app.router.add_get("/apis/discovery.k8s.io/v1/endpointslices", watched)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    found = {"endpoints": float(endpoints), "namespaces": float(namespaces)}
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder, "token")
        await asyncio.to_thread(token.write_text, "t")
        command = [
            *(sys.executable, "-m", "penstock_router", "--shared", "--propagation-delay=0s"),
            *(f"--listen={host}:{processes.free_port()}", f"--admin=127.0.0.1:{processes.free_port()}"),
            *(f"--report-to={url}", f"--token-file={token}", f"--kube-api={url}"),
        ]
        # As in images, the modules are there as bytecode: the first start makes it.
        own = {NAMESPACE_ENV: "penstock-system", "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": folder}
        for _ in range(2):
            ready.clear()
            core, began = max(os.sched_getaffinity(0)), time.monotonic()
            with processes.running(command, core=core, env=own, grace=60) as (process, _log):
                await asyncio.wait_for(ready.wait(), 120)
                found["start, s"] = time.monotonic() - began
                found["start, s of CPU"] = cpu_seconds(process.pid)
                await asyncio.sleep(SETTLE_SECONDS)
                found["memory, MB"] = rss_mb(process.pid)
                cpu, began = cpu_seconds(process.pid), time.monotonic()
                await asyncio.sleep(REST_SECONDS)
                took = time.monotonic() - began
                found["at rest, % of a core"] = (cpu_seconds(process.pid) - cpu) / took * 100
    await runner.cleanup()
    return found | {"a report at rest, KB": reports[-2] / 1e3, "settings, KB": len(document) / 1e3}


def main() -> int:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--endpoints", type=int, default=10_000)
    parser.add_argument("--namespaces", type=int, default=2000)
    parser.add_argument("--host", default="127.0.0.1", help="[::] as in a pod: only in a network of its own")
    arguments = parser.parse_args()
    print(product.choose())
    found = asyncio.run(measure(arguments.endpoints, arguments.namespaces, arguments.host))
    for name, value in found.items():
        print(f"{name:25} {value:10.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
