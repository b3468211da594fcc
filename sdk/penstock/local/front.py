"""The router before the pairs: one process that stays, and sends to the generation that it is turned to."""

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
"""How long a request waits for a model that loads, or that a mistake keeps from starting; its own timeout may
end first."""


class Front:
    """The router: the front door is the endpoint that clients call, each other one has a port of its own.

    Args:
        port: where clients ask; 0 = any that is free.
        folder: where this session keeps its files.
        children: starts the program.
        terminal: takes what it writes.
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
        """Start it with one endpoint and nobody to send to: requests wait; returns its address.

        Args:
            name: of the endpoint.

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
        """The URLs of the endpoints that only other nodes call; a name keeps its port.

        Args:
            names: all of them, the one that clients call as the last.
        """
        for name in names[:-1]:
            if name not in self._ports:
                self._ports[name] = free_port()
        return {name: f"http://{HOST}:{self._ports[name]}" for name in names[:-1]}

    def serve(self, names: Sequence[str], targets: Mapping[str, str]) -> None:
        """Have these endpoints and no others, and send what comes from now on to these sidecars.

        Args:
            names: the one that clients call as the last.
            targets: addresses by name; requests for an endpoint without one wait.
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
        """Wait until it ends, which it should not; returns what to say of it."""
        return f"the router ended with exit code {await (await self._child).ended()}"
