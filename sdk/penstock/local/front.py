"""The router before the pairs: one process that stays, and sends to the generation that it is turned to."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

from penstock.local.child import Child, Children, environment
from penstock.local.ports import HOST
from penstock.local.terminal import Terminal

HOLD = "600s"
"""How long a request waits for a model that loads, or that a mistake keeps from starting; its own timeout may
end first."""


class Front:
    """The router.

    Args:
        name: of the endpoint and its backend.
        port: where clients ask; 0 = any that is free.
        folder: where this session keeps its files.
        children: starts the program.
        terminal: takes what it writes.
    """

    def __init__(self, name: str, port: int, *, folder: Path, children: Children, terminal: Terminal) -> None:
        self._name = name
        self._port = port
        self._file = folder / "router.json"
        self._children = children
        self._terminal = terminal
        self._child: asyncio.Future[Child] = asyncio.get_running_loop().create_future()

    async def start(self) -> str:
        """Start it with nobody to send to: requests wait; returns its address.

        Raises:
            NotReady: it ended before it listened.
        """
        self.turn_to()
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
        return data

    def turn_to(self, *targets: str) -> None:
        """Send what comes from now on to these sidecars.

        Args:
            targets: addresses; none = requests wait.
        """
        backend = {"name": self._name, "targets": targets}
        endpoint = {
            "name": self._name, "route": "/", "coldStart": {"timeout": HOLD}, "backends": [backend]
        }  # fmt: skip
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps({"endpoints": [endpoint]}))
        fresh.replace(self._file)
        if self._child.done():
            self._child.result().send(signal.SIGHUP)

    async def ended(self) -> str:
        """Wait until it ends, which it should not; returns what to say of it."""
        return f"the router ended with exit code {await (await self._child).ended()}"
