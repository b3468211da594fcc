"""A router's core before a fake network, on a fake loop: all but the sockets."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from prometheus_client import generate_latest

from penstock_router.endpoints import EndpointState
from penstock_router.forwarding.forwarder import Forwarder
from penstock_router.metrics import Metrics
from penstock_router.pods.endpoint_slices import Address
from penstock_router.pods.pool import Pods
from penstock_router.tracing import Begin, Tracing
from penstock_wire.control.router_settings import ColdStart, Endpoint, WeightedBackend
from penstock_wire.headers import Headers
from penstock_wire.http import Request, Response, Tunnel
from tests.support.worlds.fake_network import Network, Way


class HeldExchange:
    """An `Exchange` whose answer is kept."""

    def __init__(self, request: Request, answers: list[Response]) -> None:
        self._answers = answers
        self.request = request
        self.gone: Callable[[], object] | None = None
        self.answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def answer(self, response: Response) -> None:
        self._answers.append(response)
        if not self.answered.done():
            self.answered.set_result(response)

    def interim(self, status: int, headers: Headers) -> None:
        """See `Exchange.interim`."""

    def switch(self, headers: Headers) -> Tunnel:
        raise NotImplementedError


class World:
    """A router's core before a network, on a fake loop; its pods are those of backend `b`.

    Args:
        seconds: how long a pod takes for a request.
        tracing: makes spans of requests; None for none.
        network: an `Upstream` in place of a `Network` of its own.
    """

    def __init__(
        self,
        *hosts: str,
        seed: int = 1,
        cold: ColdStart | None = None,
        retries: int = 1,
        seconds: float = 0.01,
        timeout_ms: int = 30_000,
        tracing: Tracing | None = None,
        network: Any = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        chance = random.Random(seed)
        self.network = Network(seconds=seconds) if network is None else network
        self.pods = Pods(clock=self.loop.time, random_source=chance, changed=self._changed)
        self.pods.later = self.loop.call_later
        self.states: list[EndpointState] = []
        self.answers: list[Response] = []
        """All that were given."""
        self.state = self.endpoint("e", cold=cold, retries=retries, chance=chance, timeout_ms=timeout_ms)
        self.metrics = Metrics(self.state.held_by_backend)
        self.forwarder = Forwarder(
            pods=self.pods, upstream=self.network, metrics=self.metrics, clock=self.loop.time, pod="r"
        )
        self._begin: Begin = self.forwarder.begin
        if tracing is not None:
            self._begin = tracing.traced(self._begin, {"namespace": "n"})
        self.have(*hosts)

    def endpoint(
        self,
        name: str,
        *,
        cold: ColdStart | None = None,
        retries: int = 1,
        chance: random.Random,
        timeout_ms: int = 30_000,
    ) -> EndpointState:
        """An endpoint of backend `b`."""
        settings = Endpoint(
            name=name,
            backends=(WeightedBackend(name="b"),),
            cold_start=cold or ColdStart(),
            retries=retries,
            timeout_ms=timeout_ms,
        )
        self.states.append(
            EndpointState(
                settings,
                pods=self.pods,
                clock=self.loop.time,
                random_source=chance,
                on_held=lambda: None,
            )
        )
        return self.states[-1]

    def have(self, *hosts: str) -> None:
        """These pods are ready."""
        self.pods.set_slices({"b": tuple(Address(host=host, port=1) for host in hosts)})

    def all_are(self, way: Way, *hosts: str) -> None:
        """So do pods behave from now on."""
        self.network.ways.update(dict.fromkeys(hosts, way))

    def ask(
        self,
        identity: str = "x",
        *,
        timeout_ms: int | None = None,
        state: EndpointState | None = None,
        fields: Headers = (),
    ) -> asyncio.Task[Response]:
        """A client's request."""
        fields = (*fields, (b"x-request-id", identity.encode()))
        if timeout_ms is not None:
            fields = (*fields, (b"x-penstock-timeout-ms", str(timeout_ms).encode()))
        request = Request(method="POST", target="/", headers=fields, body=b"{}")
        return self.send(request, state=state)

    def send(self, request: Request, *, state: EndpointState | None = None) -> asyncio.Task[Response]:
        """A client's request, as it is."""
        return asyncio.create_task(self._serve(state or self.state, request))

    async def _serve(self, state: EndpointState, request: Request) -> Response:
        exchange = HeldExchange(request, self.answers)
        self._begin(state, exchange, b"", None)
        try:
            return await exchange.answered
        except asyncio.CancelledError:
            if exchange.gone is not None:
                exchange.gone()
                await asyncio.sleep(0)  # as a front does: its tasks end in the next turn
            raise

    def check_nothing_is_left(self) -> None:
        """Nobody waits, and no place is out."""
        assert [(state.held.count, state.held.bytes) for state in self.states] == [(0, 0)] * len(self.states)
        assert not any(window.out for state in self.states for window in state._windows.values())
        assert not any(pod.in_flight for pod in self.pods.ready("b"))

    def retries(self) -> float:
        """Further tries after a connection that could not be made."""
        text = generate_latest(self.metrics).decode()
        wanted = 'penstock_router_retries_total{reason="connect_failed"} '
        return sum(float(line.removeprefix(wanted)) for line in text.splitlines() if line.startswith(wanted))

    def _changed(self) -> None:
        for state in getattr(self, "states", ()):
            state.settle()


def statuses(answers: list[Response]) -> Counter[int]:
    """The number of answers by status."""
    return Counter(answer.status for answer in answers)
