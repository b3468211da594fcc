"""A model server and its sidecar, as in one pod: started together, ended one after the other."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.local.child import Child, Children, NotReady, environment
from penstock.local.nodes import NodeDocument
from penstock.local.options import Options
from penstock.local.ports import HOST, free_port
from penstock.local.terminal import Terminal
from penstock_wire import contract
from penstock_wire.http import Request, UpstreamError
from penstock_wire.http.client.pool import H1Upstream
from penstock_wire.http.sending import send

LOOK_SECONDS = 0.02
REPORT_SECONDS = 2.0
"""Time until a warning with the sidecar's reason, if it is not ready after its model."""
LEAVE_SECONDS = 1
"""How long a leaving sidecar still takes requests: by then the router sends to its successor."""
DRAIN_SECONDS = 30
MODEL_SECONDS = 30


class Pair:
    """The model server and the sidecar of one node, in one generation.

    Args:
        node: the node, with its settings of batching.
        options: options of the command.
        urls: URLs of the endpoints for its handles, by name.
        folder: folder of this session's files.
        children: starts the programs.
        upstream: sends requests to the sidecar's admin port.
        terminal: takes the programs' output.
    """

    def __init__(
        self,
        node: NodeDocument,
        options: Options,
        *,
        urls: Mapping[str, str],
        folder: Path,
        children: Children,
        upstream: H1Upstream,
        terminal: Terminal,
    ) -> None:
        self.name = node.name
        """Name of the node."""
        self._node = node
        self._options = options
        self._urls = urls
        self._folder = folder
        self._children = children
        self._upstream = upstream
        self._terminal = terminal
        self._started: list[Child] = []
        self._data_port = self._admin_port = 0
        self._mark = secrets.token_hex(8)
        self._asks = node.settings is None and options.settings is None
        """Whether the sidecar's settings are those that the class gives."""

    @property
    def address(self) -> str:
        """The address at which the sidecar takes requests."""
        return f"{HOST}:{self._data_port}"

    async def start(self) -> None:
        """Start both and wait until the sidecar can take requests.

        Raises:
            NotReady: one of them ended before; both are then ended.
            IsApplication: the target is an application; both are then ended.
        """
        model_port, self._data_port, self._admin_port = free_port(), free_port(), free_port()
        try:
            model = await self._start("model", self._model(model_port), self._model_environment(), self._mark)
            settings = await model.settings() if self._asks else self._node.settings
            sidecar = await self._start("sidecar", self._sidecar(model_port, settings), environment())
            await asyncio.gather(model.ready(), sidecar.ready())
            await self._until_ready(sidecar)
        except BaseException:
            await self.kill()
            raise

    async def ended(self) -> str:
        """Wait until one of both ends; return a message about it."""
        ends = {asyncio.create_task(child.ended()): child for child in self._started}
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ends:
                task.cancel()
        return "; ".join(f"the {ends[task].name} ended with exit code {task.result()}" for task in done)

    async def retire(self) -> None:
        """Let the pair answer its accepted requests, and end it; it gets no new ones."""
        model, sidecar = self._started
        await sidecar.end(signal.SIGTERM, LEAVE_SECONDS + DRAIN_SECONDS + 5)
        await model.end(signal.SIGTERM, MODEL_SECONDS)

    async def kill(self) -> None:
        """Kill both."""
        await asyncio.gather(*(child.kill() for child in self._started))

    async def ask(self, path: str) -> tuple[int, bytes]:
        """Get a page of the sidecar's admin port; status 0 if it does not answer."""
        request = Request(method="GET", target=path, headers=((b"host", HOST.encode()),), body=b"")
        try:
            answer = await send(self._upstream, HOST, self._admin_port, request, timeout=1.0)
        except UpstreamError:
            return 0, b""
        return answer.status, answer.body

    async def _start(
        self, name: str, arguments: list[str], variables: dict[str, str], mark: str = ""
    ) -> Child:
        child = await self._children.start(
            self._called(name),
            arguments,
            environment=variables,
            say=lambda line: self._terminal.child_line(self._called(name), line),
            mark=mark,
        )
        self._started.append(child)
        return child

    def _called(self, program: str) -> str:
        """Name of a program in lines and errors; for an application, with the node's name."""
        return f"{self.name} {program}" if self._node.settings is not None else program

    async def _until_ready(self, sidecar: Child) -> None:
        shown, report_at = b"", asyncio.get_running_loop().time() + REPORT_SECONDS
        while True:
            status, text = await self.ask(contract.READY_PATH)
            if status == 200:
                return
            if not sidecar.running:
                raise NotReady("the sidecar ended before its model was ready")
            if text != shown and asyncio.get_running_loop().time() > report_at:
                shown = text
                self._terminal.say(
                    f"{self._called('sidecar'):<8}| not ready: {text.decode('utf-8', 'replace')}",
                    level="warning",
                )
            await asyncio.sleep(LOOK_SECONDS)

    def _model(self, port: int) -> list[str]:
        arguments = json.dumps(self._node.init_kwargs)
        return [
            "penstock.serve", self._node.target, f"--host={HOST}", f"--port={port}",
            f"--init-kwargs={arguments}", "--docs", f"--mark={self._mark}",
            *([f"--own-settings={self._options.batch or 0}"] if self._asks else []),
        ]  # fmt: skip

    def _model_environment(self) -> dict[str, str]:
        # Unbuffered, so that output is shown at once. No bytecode with --reload: Python would use the old one
        # for a file that was changed within the same second and has its old length.
        kept = {"PYTHONDONTWRITEBYTECODE": "1"} if self._options.reload else {}
        known = {contract.ENDPOINTS_ENV: json.dumps(dict(self._urls))} if self._urls else {}
        return environment(PYTHONUNBUFFERED="1", **kept, **known, **{contract.BACKEND_ENV: self.name})

    def _sidecar(self, model_port: int, own: Mapping[str, Any] | None) -> list[str]:
        arguments = [
            "penstock_sidecar",
            f"--listen={self.address}",
            f"--admin={HOST}:{self._admin_port}",
            f"--model=http://{HOST}:{model_port}",
            f"--reconfigure-path={contract.RECONFIGURE_PATH}",
            f"--propagation-delay={LEAVE_SECONDS}s",
            f"--drain-timeout={DRAIN_SECONDS}s",
            "--log-level=warning",
        ]
        settings = self._options.settings
        if settings is None:
            settings = self._folder / f"{self.name}.json"
            batch = {} if self._options.batch is None else {"maxBatchSize": self._options.batch}
            settings.write_text(json.dumps({"backend": self.name, "batching": batch, **(own or {})}))
        return [*arguments, f"--settings={settings}"]
