"""A mutating webhook as KServe's: it gives each pod an init container and a container beside the model's.

`python -m tests.support.cluster.late_webhook ADDRESS` listens there.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys

from aiohttp import web

from tests.support.cluster.k8s import MODEL_IMAGE
from tests.support.cluster.tls_app import serve

NAMES = ("storage-initializer", "agent")
"""The init container and the container that it adds."""

_WAITS = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit()); signal.pause()"


def _container(name: str, code: str) -> dict[str, object]:
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    command = ["python", "-c", code]
    return {"name": name, "image": MODEL_IMAGE, "imagePullPolicy": "Never", "command": command} | {
        "securityContext": security
    }


async def _review(request: web.Request) -> web.Response:
    asked = (await request.json())["request"]
    first, second = NAMES
    loads, waits = _container(first, ""), _container(second, _WAITS)
    patch = [
        {"op": "add", "path": "/spec/initContainers/-", "value": loads}
        if asked["object"]["spec"].get("initContainers")
        else {"op": "add", "path": "/spec/initContainers", "value": [loads]},
        {"op": "add", "path": "/spec/containers/-", "value": waits},
    ]
    text = base64.b64encode(json.dumps(patch).encode()).decode()
    answer = {"uid": asked["uid"], "allowed": True, "patchType": "JSONPatch", "patch": text}
    return web.json_response(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
    )


if __name__ == "__main__":
    application = web.Application()
    application.router.add_post("/", _review)
    asyncio.run(serve(application, sys.argv[1]))
