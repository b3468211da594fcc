"""An `Upstream` on a fake loop whose pods have slots and queues, say how much room they have, and may lie."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from penstock_router.pods.pool import Pods
from penstock_wire.headers import REQUEST_ID, get
from penstock_wire.http import ConnectionLost, GiveUp, Opened, Request, Response, UpstreamError
from tests.support.worlds.fake_network import FULL, MOVED, WholeAnswer


class Slotted:
    """One pod.

    Args:
        queue: requests that may wait there.
    """

    def __init__(self, slots: int, queue: int, seconds: float) -> None:
        self.slots, self.queue, self.seconds = slots, queue, seconds
        self.lie = 0
        """Added to what it says of its room."""
        self.running: dict[str, asyncio.TimerHandle] = {}
        self.line: dict[str, Callable[[Response], None]] = {}
        self.stay: set[str] = set()
        """Of the line, those that came over HTTP/1.1, where none is handed back."""
        self.said = 0
        """How much room it said it has, last."""
        self.refused_at = float("-inf")

    @property
    def free(self) -> int:
        """Requests that would begin at once."""
        return 0 if self.line else self.slots - len(self.running)


class SlottedNetwork:
    """All pods, by host."""

    def __init__(self, pods: dict[str, Slotted]) -> None:
        self.pods = pods
        self.executed: Counter[str] = Counter()
        self.started: dict[str, float] = {}
        """When a pod began with a request, by its id."""
        self.told: Pods | None = None
        """Who is told of room."""
        self._loop = asyncio.get_running_loop()
        self._scheduled: set[str] = set()

    def report(self, host: str) -> None:
        """Have a pod say how much room it has, behind the answers of this turn."""
        if host not in self._scheduled:
            self._scheduled.add(host)
            self._loop.call_soon(self._report, host)

    def _report(self, host: str) -> None:
        self._scheduled.discard(host)
        pod = self.pods[host]
        pod.said = max(0, pod.free + pod.lie)
        assert self.told is not None
        self.told.on_room((host, 1), pod.said, len(pod.line), pod.slots)

    def recall(self, host: str, port: int, count: int) -> bool:
        """See `HopUpstream.recall`."""
        self._loop.call_soon(self._hand_back, host, count)
        return True

    def _hand_back(self, host: str, count: int) -> None:
        pod = self.pods[host]
        back = [identity for identity in reversed(pod.line) if identity not in pod.stay][:count]
        for identity in back:
            pod.line.pop(identity)(Response(503, MOVED))
        assert self.told is not None
        self._loop.call_soon(self.told.on_recalled, (host, 1), len(back))
        self.report(host)

    def _take(self, host: str, request: Request, answered: Callable[[Response], None]) -> Callable[[], None]:
        """Take a request, or refuse it; returns what gives it up."""
        pod = self.pods[host]
        identity = (get(request.fields, REQUEST_ID) or b"").decode()
        if pod.free > 0:
            self._begin(host, identity, answered)
        elif len(pod.line) < pod.queue:
            pod.line[identity] = answered
            if request.fresh:
                pod.stay.add(identity)
        else:
            pod.refused_at = self._loop.time()
            answered(Response(503, FULL))
        self.report(host)

        def give_up() -> None:
            pod.line.pop(identity, None)
            if (timer := pod.running.get(identity)) is not None:
                timer.cancel()
                self._ended(host, identity)

        return give_up

    def _begin(self, host: str, identity: str, answered: Callable[[Response], None]) -> None:
        pod = self.pods[host]
        self.executed[identity] += 1
        self.started[identity] = self._loop.time()

        def end() -> None:
            answered(Response(200, ()))
            self._ended(host, identity)

        pod.running[identity] = self._loop.call_later(pod.seconds, end)

    def _ended(self, host: str, identity: str) -> None:
        pod = self.pods[host]
        del pod.running[identity]
        if pod.line and len(pod.running) < pod.slots:
            first = next(iter(pod.line))
            self._begin(host, first, pod.line.pop(first))
        self.report(host)

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
        over = False

        def end(answer: Response | UpstreamError) -> None:
            nonlocal over
            if not over:
                over = True
                if whole_bytes < 0 and isinstance(answer, Response):
                    opened(WholeAnswer(answer.status, answer.headers))  # see `fake_network`
                else:
                    self._loop.call_soon(opened, answer)

        give_up = self._take(host, request, end)

        def leave() -> None:
            end(ConnectionLost("given up"))
            give_up()

        return leave

    def retire(self, host: str, port: int) -> None:
        """See `Upstream.retire`: no connection is kept here."""

    async def close(self) -> None:
        """See `Upstream.close`."""
