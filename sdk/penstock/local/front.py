"""The router before the pairs: one lasting process, which sends requests to the current generation."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.local.child import Child, Children, environment
from penstock.local.ports import HOST, free_port
from penstock.local.terminal import Terminal
from penstock_wire.contract import RECONFIGURE_PATH

HOLD = "600s"
"""How long a request waits for a model that is loading, or that fails to start; its own timeout can end
first."""


class Front:
    """The router: its main port serves the endpoint that clients call, every other endpoint has its own port.

    Args:
        port: port for clients; 0 = any free one.
        folder: folder of this session's files.
        children: starts the program.
        terminal: takes the program's output.
    """

    def __init__(self, port: int, *, folder: Path, children: Children, terminal: Terminal) -> None:
        self._port = port
        self._file = folder / "router.json"
        self._children = children
        self._terminal = terminal
        self._ports: dict[str, int] = {}
        self._targets: dict[str, str] = {}
        self._names: tuple[str, ...] = ()
        self._child: asyncio.Future[Child] = asyncio.get_running_loop().create_future()

    async def start(self, name: str) -> str:
        """Start the router with one endpoint without targets, so that requests wait; return its address.

        Args:
            name: name of the endpoint.

        Raises:
            NotReady: it ended before it listened.
        """
        self.serve((name,), {})
        child = await self._children.start(
            "router",
            [
                "penstock_router", f"--listen={HOST}:{self._port}", f"--admin={HOST}:0",
                f"--settings={self._file}", "--propagation-delay=0s", "--log-level=warning",
            ],
            environment=environment(),
            say=lambda line: self._terminal.child_line("router", line),
        )  # fmt: skip
        data = (await child.ready())["data"]
        self._child.set_result(child)
        self._write()
        return data

    def urls(self, names: Sequence[str]) -> dict[str, str]:
        """Return the URLs of the endpoints that only other nodes call; a name keeps its port.

        Args:
            names: all endpoints; clients call the last one.
        """
        for name in names[:-1]:
            if name not in self._ports:
                self._ports[name] = free_port()
        return {name: f"http://{HOST}:{self._ports[name]}" for name in names[:-1]}

    def serve(self, names: Sequence[str], targets: Mapping[str, str]) -> None:
        """Replace the endpoints, and send new requests to these sidecars.

        Args:
            names: the endpoints; clients call the last one.
            targets: sidecar addresses by name; requests for an endpoint without an address wait.
        """
        self._names = tuple(names)
        self._targets = dict(targets)
        self._write()

    def _write(self) -> None:
        endpoints: list[dict[str, Any]] = []
        for name in self._names:
            targets = [self._targets[name]] if name in self._targets else []
            place = {"route": "/"} if name == self._names[-1] else {"route": "", "port": self._ports[name]}
            backend = {"name": name, "targets": targets}
            rules = {"coldStart": {"timeout": HOLD}, "closed": [RECONFIGURE_PATH]}
            endpoints.append({"name": name, "backends": [backend], **rules, **place})
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps({"endpoints": endpoints}))
        fresh.replace(self._file)
        if self._child.done():
            self._child.result().send(signal.SIGHUP)

    async def ended(self) -> str:
        """Wait until the router ends, which it should not; return a message about it."""
        return f"the router ended with exit code {await (await self._child).ended()}"
