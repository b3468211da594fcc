"""The sidecar's model on an upstream that answers as it is told, for loops whose time jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from penstock_sidecar.model.client import Model
from penstock_sidecar.model.restart_detector import ListenerIdentity
from penstock_wire.http import GiveUp, Opened, Request, Response, UpstreamTimeout
from tests.support.http.called_back import call_back

Answer = int | Exception


class FakeListening:
    """What listens: 0 = nobody can tell."""

    def __init__(self) -> None:
        self.now = self.noted = 0

    @property
    def known(self) -> bool:
        return self.noted != 0

    def look(self) -> bool:
        before, self.noted = self.noted, self.now or self.noted
        return before not in (0, self.noted)

    def replaced(self) -> bool:
        return self.known and self.look()

    def forget(self) -> None:
        self.noted = 0


class World:
    """An upstream that answers what it is told, and a model that stands on it.

    `kept`: no request makes a connection. `prepares`: a process that is started anew needs to be.

    Args:
        model: further arguments of the model.
    """

    def __init__(self, answer: Answer = 200, **model: Any) -> None:
        self.answer = answer
        self.busy = False
        self.seconds = 0.0
        self.probes = 0
        self.batches = 0
        self.changes: list[bool] = []
        self.unprepared = ""
        self.prepares = False
        self.listening = FakeListening()
        self.retired = 0
        self.on_connect: Callable[[], object] = lambda: None
        self.on_answer: Callable[[], object] = lambda: None
        self.kept = False
        self.model = Model(
            host="h",
            port=1,
            listening=cast("ListenerIdentity", self.listening),
            ready_path="/ready",
            upstream=self,
            busy=lambda: self.busy,
            unprepared=self._unprepared,
            changed=self._changed,
            **model,
        )
        self.task = asyncio.create_task(self.model.watch())

    def retire(self, host: str, port: int) -> None:
        """The connections that were made before are used no more."""
        self.retired += 1

    def _unprepared(self) -> str:
        return self.unprepared

    def _changed(self) -> None:
        self.changes.append(self.model.ready)
        if self.prepares and self.model.gone:
            self.unprepared = "warm-up"

    def begin(
        self,
        host: str,
        port: int,
        request: Request,
        timeout: float,
        idle: float,
        whole_bytes: int,
        opened: Opened,
        connected: Callable[[], object] | None = None,
    ) -> GiveUp:
        """See `Upstream.begin`."""
        return call_back(self._answer(request, timeout, connected), opened)

    async def _answer(
        self, request: Request, timeout: float, connected: Callable[[], object] | None
    ) -> Response:
        self.on_connect()
        if connected is not None and not self.kept:
            connected()
        self.on_answer()
        self.probes += request.target == "/ready"
        self.batches += request.target != "/ready"
        if isinstance(self.answer, UpstreamTimeout):
            await asyncio.sleep(timeout)
        if self.seconds and request.target == "/ready":
            await asyncio.sleep(self.seconds)
        if isinstance(self.answer, Exception):
            raise self.answer
        return Response(status=self.answer)

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
