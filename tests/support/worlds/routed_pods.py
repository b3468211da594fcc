"""Routers before pods on a fake loop: all that decides is real, hops and sidecars included.

What is simulated is what takes time: each way of a hop, and the model. So a router learns of a pod, and a
pod of a request, as late as in a cluster, and two runs with one seed are the same.
"""

from __future__ import annotations

import asyncio
import collections
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

from penstock_router.pods.pod import SLOW_START_SECONDS
from penstock_sidecar.batching.dispatcher import Dispatcher
from penstock_sidecar.handler import SidecarHandler
from penstock_sidecar.metrics import Metrics
from penstock_sidecar.passthrough.passthrough import Passthrough
from penstock_sidecar.protocols import PROTOCOLS
from penstock_wire.control.settings import Batching, Settings
from penstock_wire.headers import REQUEST_ID
from penstock_wire.hop.client import HopClient, HopPool
from penstock_wire.hop.successor import HopSuccessor
from penstock_wire.http import Exchange, GiveUp, Opened, Request, Response
from penstock_wire.http.server.server import H1Front, H1Listener
from tests.support.worlds.router_world import HeldExchange, World

FIELDS = ((b"host", b"a"), (b"content-type", b"application/json"))
BODY = b'{"instances": [1]}'
ANSWER = Response(200, ((b"content-type", b"application/json"),), b'{"predictions": [1]}')


class Way:
    """A transport whose bytes arrive after a while, in their order."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._under_way: collections.deque[bytes] = collections.deque()
        self.arrives: Callable[[bytes], object] = lambda data: None
        """Gets them."""

    def write(self, data: bytes) -> None:
        """See `asyncio.WriteTransport`."""
        self._under_way.append(data)
        self._loop.call_later(self._seconds, lambda: self.arrives(self._under_way.popleft()))

    def is_closing(self) -> bool:
        """See `asyncio.BaseTransport`."""
        return False

    def get_extra_info(self, name: str) -> None:
        """See `asyncio.BaseTransport`: there is no socket."""


class SimulatedPod:
    """A sidecar before a model that takes one item at a time in each slot.

    Args:
        host: its name; its port is 1.
        objective_ms: its `latencyObjective`; None for none.
    """

    def __init__(self, host: str, slots: int, seconds: float, objective_ms: int | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.host, self.slots, self._seconds = host, slots, seconds
        self.running = 0
        """Items with the model."""
        self.begun: list[float] = []
        """When each began."""
        self.changed: Callable[[], object] = lambda: None
        """Called when something begins or ends, or a request comes or goes."""
        settings = Settings(
            batching=Batching(
                max_batch_size=1,
                max_concurrent_batches=slots,
                max_queued_items=None if objective_ms else 1000,
                latency_objective_ms=objective_ms,
            )
        )
        metrics, clock = Metrics(), self._loop.time
        passthrough = Passthrough(open=self._never, settings=settings, observer=metrics, clock=clock)
        self._dispatcher = dispatcher = Dispatcher(
            send=self._send,
            protocol=PROTOCOLS["instances"],
            batching=settings.batching,
            observer=metrics,
            clock=clock,
            unbatched=passthrough,
            on_room=lambda: self._successor.changed(),
        )
        self._successor = HopSuccessor(lambda: (dispatcher.free, dispatcher.queue.items, dispatcher.capacity))
        self._handler = SidecarHandler(
            dispatcher=dispatcher,
            protocol=PROTOCOLS["instances"],
            passthrough=passthrough,
            observer=metrics,
            clock=clock,
        )
        self._front = H1Front()
        self._listener = H1Listener(self._front, self._take, None)
        self._task = asyncio.create_task(dispatcher.run())

    @property
    def queued(self) -> int:
        """Items that wait."""
        return self._dispatcher.queue.items

    @property
    def free(self) -> int:
        """Slots that nothing is to take."""
        return max(0, self.slots - self.running - self.queued)

    def _take(self, exchange: Exchange) -> None:
        self._handler.begin(exchange)
        recall = exchange.request.recall
        if recall is not None:

            def recalled() -> int:
                count = recall()
                self.changed()
                return count

            exchange.request.recall = recalled
        self.changed()

    async def _never(self, *_: Any, **__: Any) -> Any:
        raise AssertionError

    async def _send(self, request: Request, timeout: float) -> Response:
        self.running += 1
        self.begun.append(self._loop.time())
        self.changed()
        await asyncio.sleep(self._seconds)
        self.running -= 1
        self._loop.call_soon(self.changed)  # once its slot is given to who waits
        return Response(ANSWER.status, ANSWER.headers, ANSWER.body)

    def connect(self, pool: HopPool, seconds: float, *, plain: bool = False) -> HopClient:
        """A hop to it.

        Args:
            plain: nothing is said of room there, and nothing handed back: in place of HTTP/1.1.
        """
        there, back = Way(seconds), Way(seconds)
        client = HopClient(pool, (self.host, 1), self._loop, cast("asyncio.Transport", there))
        back.arrives = client.data_received
        successor = HopSuccessor() if plain else self._successor
        far = successor(self._front, self._listener, self._loop, cast("asyncio.Transport", back), "r")
        there.arrives = far.data_received
        return client


class Hops:
    """An `Upstream` with a hop to each pod."""

    def __init__(self, pods: dict[str, SimulatedPod], seconds: float) -> None:
        self._hops: dict[str, HopClient] = {}
        self._plain: dict[str, HopClient] = {}
        self._pods, self._seconds = pods, seconds
        self.world: World
        """The router."""
        self.counts: Counter[str] = Counter()
        """Recalls: all, those that brought nothing, and requests that were handed back too often."""

    def connect(self) -> None:
        """Have the hops that are not there yet."""
        for host, pod in self._pods.items():
            if host not in self._hops:
                self._hops[host] = pod.connect(self, self._seconds)
                self._plain[host] = pod.connect(self, self._seconds, plain=True)

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
        """See `Upstream.begin`; over HTTP/1.1 go requests that were handed back too often."""
        self.counts["plain"] += request.fresh
        lines = self._plain if request.fresh else self._hops
        return lines[host].begin(request, timeout, idle, whole_bytes, opened).give_up

    def recall(self, host: str, port: int, count: int) -> bool:
        """See `HopUpstream.recall`."""
        self.counts["asked"] += 1
        self._hops[host].recall(count)
        return True

    def room(self, connection: HopClient, free: int, waiting: int, capacity: int) -> None:
        """See `HopPool.room`."""
        if connection is self._hops.get(connection.key[0]):
            self.world.pods.on_room(connection.key, free, waiting, capacity)

    def recalled(self, connection: HopClient, count: int) -> None:
        """See `HopPool.recalled`."""
        self.counts["in vain"] += not count
        self.world.pods.on_recalled(connection.key, count)

    def leaves(self, connection: HopClient) -> None:
        """See `HopPool.leaves`."""
        raise AssertionError

    forget = silent = leaves


class Routed:
    """Pods, and routers that share them and do not know of each other.

    Args:
        pods: slots and seconds of each.
        way: seconds between a router and a pod.
        objective_ms: `latencyObjective` of all pods; None for none.
    """

    def __init__(
        self,
        pods: Sequence[tuple[int, float]],
        *,
        routers: int,
        way: float,
        objective_ms: int | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._objective_ms = objective_ms
        self.pods: dict[str, SimulatedPod] = {}
        self._make(pods)
        self.networks = [Hops(self.pods, way) for _ in range(routers)]
        for seed, network in enumerate(self.networks):
            network.world = World(network=network, seed=seed, timeout_ms=600_000)
            network.world.pods.recall = network.recall
        self.latencies: list[float] = []
        self.in_vain = 0.0
        """Seconds that requests waited at pods, each while a slot was free for it at another one."""
        self.longest_in_vain = 0.0
        """The longest time in which there was such a request at any moment."""
        self._vain = 0
        self._at = self._vain_since = self._loop.time()

    def _make(self, pods: Sequence[tuple[int, float]]) -> None:
        for slots, seconds in pods:
            host = f"h{len(self.pods)}"
            pod = self.pods[host] = SimulatedPod(host, slots, seconds, self._objective_ms)
            pod.changed = self._changed

    def _meet(self) -> None:
        for network in self.networks:
            network.world.have(*self.pods)
            network.connect()

    async def start(self) -> None:
        """Have all pods ready, and as old as they need to be."""
        self._meet()
        await asyncio.sleep(SLOW_START_SECONDS + 1)

    def add(self, pods: Sequence[tuple[int, float]]) -> None:
        """Have more pods ready, which are new."""
        self._make(pods)
        self._meet()

    def _changed(self) -> None:
        now = self._loop.time()
        self.in_vain += (now - self._at) * self._vain
        self._at = now
        before = self._vain
        self._vain = min(
            sum(pod.free for pod in self.pods.values()),
            sum(max(0, pod.queued + pod.running - pod.slots) for pod in self.pods.values()),
        )
        if not before:
            self._vain_since = now
        self.longest_in_vain = max(self.longest_in_vain, now - self._vain_since)

    async def ask(self, router: int) -> float:
        """Send a request to a router, and take its answer; returns the seconds that it took."""
        request = Request("POST", "/predict", (*FIELDS, (REQUEST_ID, b"%d" % len(self.latencies))), BODY)
        exchange = HeldExchange(request, [])
        asked = self._loop.time()
        world = self.networks[router].world
        world.forwarder.begin(world.state, exchange)
        answer = await exchange.answered
        assert (answer.status, answer.body) == (ANSWER.status, ANSWER.body)
        took = self._loop.time() - asked
        self.latencies.append(took)
        return took

    async def load(self, arrivals: Sequence[tuple[float, int]]) -> list[float]:
        """Send requests, and take their answers.

        Args:
            arrivals: seconds from now, ascending, and the router of each.

        Returns:
            The seconds that each took.
        """
        begin = self._loop.time()
        asked = []
        for at, router in arrivals:
            await asyncio.sleep(begin + at - self._loop.time())
            asked.append(asyncio.create_task(self.ask(router)))
        return await asyncio.gather(*asked)
