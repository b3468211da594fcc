"""A backend and its endpoint as the operator renders them, on loopback: the containers' commands and files.

Changed are only addresses and paths. There is no operator to report to, and the router is told the pod's
address by its file: on a cluster it reads it from an EndpointSlice.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock_operator.api import ModelBackend, ModelEndpoint
from penstock_operator.api.defaults import closed_paths
from penstock_operator.desired import deployment, ports, router, settings, traffic
from penstock_operator.desired.config import RenderConfig
from penstock_wire import contract
from tests.support.processes.ports import free_port
from tests.support.processes.sidecar_process import Program

CONFIG = RenderConfig(sidecar_image="sidecar", router_image="router")
POD = "pod-0"
_FIELDS = {"metadata.name": POD, "metadata.uid": "u-1", "metadata.namespace": "demo"}
_OF_REPORTS = ("--report-to", "--report-ca", "--token-file")

Obj = dict[str, Any]


def resource(kind: str, name: str, spec: Obj) -> Obj:
    """A resource as the API server has it."""
    metadata = {"name": name, "namespace": "demo", "uid": f"u-{name}", "generation": 1}
    return {"apiVersion": "penstock.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


class Rendered:
    """The processes of one pod and of a router."""

    def __init__(self, folder: Path, name: str, spec: Obj, env: Mapping[str, str]) -> None:
        self._folder = folder
        self._name = name
        self._backend = ModelBackend.parse(resource("ModelBackend", name, spec))
        self._endpoint = ModelEndpoint.parse(resource("ModelEndpoint", name, {"backend": name}))
        self._env = dict(env)
        self._programs: list[Program] = []
        self.url = ""

    async def start(self) -> None:
        """Start them, and wait until they serve."""
        pod = deployment.pod_template(self._backend, config=CONFIG, drain_secret="secret")["spec"]
        (model,), (sidecar,) = pod["containers"], pod["initContainers"]
        address = (await self._start(model, model["command"][2:], {"--port": "0"}))["data"]
        document = settings.next_version(
            settings.for_sidecar(self._backend, None), recorded=None, status_version=0, reported=0
        ).document
        served = await self._start(
            sidecar,
            ["penstock_sidecar", *sidecar["args"]],
            {"--model": f"http://{address}", "--settings": self._file("sidecar", document)},
        )
        await self._start_router(served["data"])

    async def stop(self) -> None:
        """End them."""
        await asyncio.gather(*[program.stop() for program in self._programs])

    async def _start_router(self, target: str) -> None:
        endpoints = [self._endpoint]
        plan = traffic.plan(endpoints, [], {self._name: True})
        given = ports.allocate([self._name], [])
        served = traffic.router_endpoints(endpoints, plan, given, {self._name: closed_paths(self._backend)})
        document = settings.next_version(
            settings.for_router(served), recorded=None, status_version=0, reported=0
        ).document
        objects = router.router_objects("demo", endpoints, config=CONFIG, document=document)
        (container,) = next(each for each in objects if each["kind"] == "Deployment")["spec"]["template"][
            "spec"
        ]["containers"]
        changed = json.loads(document)
        port = changed["endpoints"][0]["port"] = free_port()
        changed["endpoints"][0]["backends"][0]["targets"] = [target]
        await self._start(
            container,
            ["penstock_router", *container["args"]],
            {"--settings": self._file("router", json.dumps(changed).encode())},
        )
        self.url = f"http://127.0.0.1:{port}"

    async def _start(
        self, container: Obj, arguments: list[str], changes: Mapping[str, str]
    ) -> dict[str, str]:
        """Start a container's program; returns the addresses that it says."""
        changed = {"--listen": "127.0.0.1:0", "--admin": "127.0.0.1:0", **changes}
        kept = [arguments[0]]
        for before, argument in itertools.pairwise(arguments):
            if argument not in _OF_REPORTS and before not in _OF_REPORTS:
                kept.append(changed.get(before, argument))
        program = Program(*kept, env=self._env | _environment(container))
        self._programs.append(program)
        return dict(part.split("=", 1) for part in (await program.start()).split())

    def _file(self, name: str, document: bytes) -> str:
        path = self._folder / f"{name}.json"
        path.write_bytes(document)
        return str(path)


def _environment(container: Obj) -> dict[str, str]:
    rendered = {
        each["name"]: each["value"]
        if "value" in each
        else _FIELDS[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in container.get("env", ())
    }
    assert rendered[contract.POD_ENV] == POD
    return rendered
