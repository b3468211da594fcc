"""An application on loopback as in a cluster: a model server and a sidecar a node, one router."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from penstock.composition import Application, Node
from tests.support.processes.ports import free_port
from tests.support.processes.router_process import RouterProcess, backend, endpoint
from tests.support.processes.sidecar_process import Program


class Composed:
    """The processes."""

    def __init__(self, folder: Path, path: Path) -> None:
        self._folder = folder
        self._path = path
        self._router = RouterProcess(folder)
        self._programs: list[Program] = []
        self.urls: dict[str, str] = {}
        self.admins: dict[str, str] = {}

    async def start(self, app: Application) -> None:
        """Start them all, and wait until each node is ready."""
        names = [node.name for node in app.nodes]
        ports = {name: free_port() for name in names}
        self.urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
        env = {"PYTHONPATH": str(self._path), "PENSTOCK_ENDPOINTS": json.dumps(self.urls)}
        addresses = await asyncio.gather(*[self._start(node, env) for node in app.nodes])
        targets = dict(zip(names, addresses, strict=True))
        await self._router.start(
            *[endpoint(name, backend(name, targets[name]), port=ports[name]) for name in names]
        )

    async def _start(self, node: Node, env: dict[str, str]) -> str:
        """Start a node's model server and sidecar; returns the sidecar's address."""
        arguments = json.dumps(node.init_kwargs)
        model = Program("penstock.serve", node.target, "--port=0", f"--init-kwargs={arguments}", env=env)
        self._programs.append(model)
        address = (await model.start()).removeprefix("data=")
        settings = self._folder / f"{node.name}.json"
        batching = node.spec.get("batching", {})
        settings.write_text(json.dumps({"v": 1, "backend": node.name, "batching": batching}))
        sidecar = Program(
            "penstock_sidecar",
            "--listen=127.0.0.1:0",
            "--admin=127.0.0.1:0",
            f"--model=http://{address}",
            f"--settings={settings}",
            "--propagation-delay=0s",
        )
        self._programs.append(sidecar)
        fields = dict(part.split("=", 1) for part in (await sidecar.start()).split())
        self.admins[node.name] = f"http://{fields['admin']}"
        return fields["data"]

    async def queued(self, node: str) -> int:
        """Items that wait in a node's sidecar."""
        async with self._router.session.get(f"{self.admins[node]}/queue") as answer:
            return int((await answer.json())["queued"])

    async def stop(self) -> None:
        """End them all."""
        await self._router.stop()
        await asyncio.gather(*[program.stop() for program in self._programs])
