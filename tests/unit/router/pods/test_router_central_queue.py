"""Late binding as a whole against one central queue: whatever comes, and whatever pods say of their room."""

from __future__ import annotations

import asyncio
import dataclasses
import heapq
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.ledger import quantile
from penstock_router.pods.pod import SLOW_START_SECONDS
from penstock_router.pods.pool import FULL_SECONDS, RECALL_SECONDS
from penstock_wire.http import Response
from tests.support.clocks import fake_loop
from tests.support.worlds import simulated_growth
from tests.support.worlds.routed_pods import Routed
from tests.support.worlds.router_world import World
from tests.support.worlds.simulated_balance import UNLIKE, WAY, simulate
from tests.support.worlds.slotted_network import Slotted, SlottedNetwork

HOSTS = ("h0", "h1", "h2", "h3")
SECONDS = 0.5
"""That each request takes."""
CHANGES = st.tuples(
    st.sampled_from(["ask", "ask", "ask", "ask", "pods", "lie", "leave"]),
    st.sampled_from([0.0, 0.013, 0.11, 0.37, 0.9]),
    st.integers(0, 2**16 - 1),
)
PODS = st.lists(st.tuples(st.integers(1, 3), st.sampled_from([0, 0, 4])), min_size=1, max_size=len(HOSTS))


@dataclasses.dataclass
class Bench:
    """A router's core before pods with slots; all of them are old."""

    world: World
    network: SlottedNetwork
    hosts: list[str]
    ready: list[str]
    asked: dict[str, asyncio.Task[Response]] = dataclasses.field(default_factory=dict)
    held: dict[str, tuple[float, int]] = dataclasses.field(default_factory=dict)

    @classmethod
    async def of(cls, pods: Sequence[tuple[int, int]]) -> Bench:
        hosts = list(HOSTS[: len(pods)])
        network = SlottedNetwork(
            {host: Slotted(slots, queue, SECONDS) for host, (slots, queue) in zip(hosts, pods, strict=True)}
        )
        world = World(*hosts, network=network, timeout_ms=600_000)
        network.told = world.pods
        world.pods.recall = network.recall
        for host in hosts:
            network.report(host)
        await asyncio.sleep(SLOW_START_SECONDS + 1)
        return cls(world, network, hosts, hosts)

    def ask(self, timeout_ms: int | None = None) -> None:
        identity = str(len(self.asked))
        self.asked[identity] = self.world.ask(identity, timeout_ms=timeout_ms)

    def have(self, hosts: list[str]) -> None:
        self.ready = hosts
        self.world.have(*hosts)
        for host in hosts:  # a hop to it is there, or made anew
            self.network.report(host)

    @property
    def waiting(self) -> bool:
        """Whether a request waits, in the router or at a pod that is ready."""
        return bool(self.world.state.held.count or any(self.network.pods[host].line for host in self.ready))

    def check_nobody_waits_in_vain(self) -> None:
        """While a pod that says it has room has some. One that just refused is left alone at first."""
        now = self.world.loop.time()
        idle = [
            host
            for host in self.ready
            if (pod := self.network.pods[host]).said > 0
            and pod.free > 0
            and pod.refused_at + FULL_SECONDS < now
        ]
        assert not (idle and self.waiting), (idle, self.world.state.held.count)

    def check_the_first_deadline_went_first(self) -> None:
        """Of those that waited in the router, since this was asked last."""
        waiters = self.world.state.held.waiters("b")
        turns = {str(waiter.sequence): waiter.turn for waiter in waiters}
        stay = [turn for name, turn in self.held.items() if name in turns]
        started = {name for name in self.held if name not in turns and name in self.network.started}
        for name in started:
            assert all(self.held[name] < turn for turn in stay)
        self.held = turns


async def settle(bench: Bench) -> None:
    """Let all that is under way arrive."""
    await fake_loop.settle(60)
    for pod in bench.network.pods.values():
        assert len(pod.running) <= pod.slots


@settings(deadline=None, max_examples=150)
@given(PODS, st.lists(CHANGES, max_size=60))
async def test_no_request_waits_while_a_pod_that_says_so_has_room(
    pods: list[tuple[int, int]], changes: list[tuple[str, float, int]]
) -> None:
    """However pods come, go and lie, and clients leave: and each who stays is answered once."""
    bench = await Bench.of(pods)
    left = set()
    for what, pause, chance in changes:
        if what == "ask":
            bench.ask([None, 100_000, 200_000, 300_000][chance % 4])
        elif what == "pods":
            bench.have([host for place, host in enumerate(bench.hosts) if chance >> place & 1])
        elif what == "lie":
            host = bench.hosts[chance % len(bench.hosts)]
            bench.network.pods[host].lie = chance // 16 % 5 - 2
            bench.network.report(host)
        elif bench.asked:
            name = str(chance % len(bench.asked))
            bench.asked[name].cancel()
            left.add(name)
        await settle(bench)
        bench.check_the_first_deadline_went_first()
        await asyncio.sleep(pause)
        await settle(bench)
        bench.check_the_first_deadline_went_first()
        if pause > RECALL_SECONDS:  # who was asked for requests back, and had none, is asked again then
            bench.check_nobody_waits_in_vain()
    for pod in bench.network.pods.values():
        pod.lie = 0
    bench.have(bench.hosts)
    answers = await asyncio.gather(*bench.asked.values(), return_exceptions=True)
    for name, answer in zip(bench.asked, answers, strict=True):
        assert bench.network.executed[name] <= 1
        if name not in left:
            assert isinstance(answer, Response)
            assert (answer.status, bench.network.executed[name]) == (200, 1)
    await settle(bench)
    bench.world.check_nothing_is_left()


def central_queue(arrivals: Sequence[float], slots: int) -> list[float]:
    """When requests begin that wait in one queue for whichever slot is free."""
    free = [0.0] * slots
    begun = []
    for arrived in arrivals:
        begins = max(arrived, heapq.heappop(free))
        heapq.heappush(free, begins + SECONDS)
        begun.append(begins)
    return begun


@settings(deadline=None, max_examples=150)
@given(PODS, st.lists(st.sampled_from([0.001, 0.013, 0.11, 0.37]), min_size=1, max_size=60))
async def test_requests_begin_when_they_would_from_one_central_queue(
    pods: list[tuple[int, int]], gaps: list[float]
) -> None:
    """Where pods stay and say how it is: each slot is busy as long as anything waits.

    To the turn of the loop where all wait in the router. What waits at a pod may have to be asked for twice.
    """
    bench = await Bench.of(pods)
    arrivals = []
    for gap in gaps:
        arrivals.append(bench.world.loop.time())
        bench.ask()
        await asyncio.sleep(gap)
    await asyncio.gather(*bench.asked.values())
    expected = central_queue(arrivals, sum(slots for slots, _ in pods))
    found = sorted(bench.network.started.values())
    late = [ours - ideal for ours, ideal in zip(found, sorted(expected), strict=True)]
    under_way = RECALL_SECONDS if any(queue for _, queue in pods) else 0.0
    assert max(late) < under_way + 1e-6, late


ROUTED_PODS = st.lists(st.tuples(st.integers(1, 3), st.sampled_from([0.02, 0.06])), min_size=2, max_size=4)
ROUTED_ARRIVALS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.0003, 0.001, 0.005, 0.013]), st.integers(0, 2)), max_size=60
)


@settings(deadline=None, max_examples=60)
@given(ROUTED_PODS, ROUTED_ARRIVALS, st.integers(1, 3))
async def test_no_request_waits_long_while_another_pod_has_room_though_routers_do_not_know_of_each_other(
    pods: list[tuple[int, float]], gaps: list[tuple[float, int]], routers: int
) -> None:
    """Two may take one slot, and one may ask where nothing of its own waits: neither costs much."""
    bench = Routed(pods, routers=routers, way=WAY)
    await bench.start()
    at, arrivals = 0.0, []
    for gap, router in gaps:
        at += gap
        arrivals.append((at, router % routers))
    await bench.load(arrivals)
    assert len(bench.latencies) == sum(len(pod.begun) for pod in bench.pods.values()) == len(gaps)
    stuck = sum(network.counts["plain"] for network in bench.networks)
    assert stuck or bench.longest_in_vain < 0.02, bench.longest_in_vain
    for network in bench.networks:
        network.world.check_nothing_is_left()


@pytest.mark.long
@pytest.mark.parametrize("routers", [1, 3])
def test_among_unlike_pods_the_slowest_answers_come_nearly_as_soon_as_from_one_central_queue(
    routers: int,
) -> None:
    """Two of eight are three times slower, at 70 % of what they can do together, in simulated time."""
    routed, central = simulate(routers=routers, share=70, seconds=8, seed=1)
    assert quantile(sorted(routed.latencies), 0.99) < 1.3 * quantile(sorted(central), 0.99)
    assert routed.in_vain / len(central) < 3 * WAY


@pytest.mark.long
@pytest.mark.parametrize("routers", [1, 3])
def test_among_pods_of_unlike_slots_the_slowest_answers_come_nearly_as_soon_as_from_one_central_queue(
    routers: int,
) -> None:
    """Two of four take eight requests at once and two take one, at 85 % of what they can do together."""
    routed, central = simulate(routers=routers, share=85, seconds=5, seed=1, pods=UNLIKE["slots"])
    assert quantile(sorted(routed.latencies), 0.99) < 1.5 * quantile(sorted(central), 0.99)


@pytest.mark.long
@pytest.mark.parametrize("routers", [1, 3])
@pytest.mark.parametrize(
    ("added", "share"), [(simulated_growth.PODS, 0.7), (3 * simulated_growth.PODS, 0.36)]
)
def test_when_pods_are_added_those_who_wait_go_to_them_and_run_once(
    routers: int, added: int, share: float
) -> None:
    """With the load going on: newcomers do not take the new pods from who waits at the others.

    In one central queue, twice as many pods halve what is left of their wait; four times as many quarter it.
    """
    seconds = [
        quantile(simulated_growth.simulate(routers=routers, added=count, seed=1), 0.99)
        for count in (0, added)
    ]
    assert seconds[1] < share * seconds[0]


@pytest.mark.parametrize("routers", [1, 3])
def test_added_pods_have_their_part_of_what_waits_within_milliseconds_and_no_more(routers: int) -> None:
    """Routers take it from one pod after the other, and hear of what others of them sent to the new ones.

    With four pods added to four, that part is a half.
    """
    share = simulated_growth.share_of_added(routers=routers, added=simulated_growth.PODS, after=0.01, seed=1)
    assert 0.4 < share < 0.65


def test_held_requests_are_answered_whatever_the_latency_objective() -> None:
    """A cold start takes longer than any objective: they go to the first pod as it can answer them."""

    async def run() -> list[float]:
        routed = Routed([], routers=1, way=WAY, objective_ms=150)
        await routed.start()
        asking = [asyncio.create_task(routed.ask(0)) for _ in range(60)]
        await asyncio.sleep(5)
        assert not any(task.done() for task in asking)
        routed.add([(1, 0.03)])
        return await asyncio.gather(*asking)

    assert max(fake_loop.run(run())) < 5 + 60 * 0.03 + 1
