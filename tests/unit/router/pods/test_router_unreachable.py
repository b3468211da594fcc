"""Pods that are ready and take no connection: requests wait for them as they do for a first pod."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from penstock_wire.control.router_settings import ColdStart
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import Response
from tests.support.clocks import fake_loop
from tests.support.worlds.fake_network import Way
from tests.support.worlds.router_world import World, statuses


@pytest.mark.parametrize("way", ["refuses", "ignores", "away"])
@pytest.mark.parametrize("retries", [0, 1])
async def test_all_wait_for_the_only_pod_and_go_on_in_the_order_of_their_arrival(
    way: Way, retries: int
) -> None:
    """However many were trying when it became unreachable, and whoever came since."""
    world = World("a", retries=retries)
    world.all_are(way, "a")
    asking = []
    for index in range(200):
        asking.append(world.ask(str(index)))
        await asyncio.sleep(0.02)
    assert world.state.held_by_backend()["b"] >= 190
    world.all_are("up", "a")
    assert statuses(await asyncio.gather(*asking)) == {200: 200}
    assert world.network.executed == [str(index) for index in range(200)]
    world.check_nothing_is_left()


async def test_one_request_at_a_time_finds_out_and_at_least_once_in_three_seconds() -> None:
    """A probe takes 2 s where nobody answers, and another follows within 1 s; the metric counts them."""
    world = World("a")
    world.all_are("ignores", "a")
    asking = [world.ask(str(index)) for index in range(50)]
    await asyncio.sleep(10)
    began: list[float] = []
    most = 0

    def connects() -> None:
        nonlocal most
        began.append(world.loop.time())
        most = max(most, world.network.connecting)

    world.network.on_connect = connects
    before = world.retries()
    await asyncio.sleep(30)
    assert most == 1
    assert 9 <= len(began) <= 15
    assert world.retries() - before in (len(began) - 1, len(began))
    world.network.on_connect = lambda: None
    world.all_are("up", "a")
    back = world.loop.time()
    assert statuses(await asyncio.gather(*asking)) == {200: 50}
    assert world.loop.time() - back < 4
    world.check_nothing_is_left()


@pytest.mark.parametrize("way", ["refuses", "away"])
async def test_a_connection_lets_the_others_go_on_and_not_the_answer(way: Way) -> None:
    """The probe's own answer may take minutes."""
    world = World("a", seconds=20)
    world.all_are(way, "a")
    asking = [world.ask(str(index)) for index in range(8)]
    await asyncio.sleep(5)
    world.all_are("up", "a")
    began = world.loop.time()
    assert statuses(await asyncio.gather(*asking)) == {200: 8}
    assert world.loop.time() - began < 22
    world.check_nothing_is_left()


async def test_a_pod_that_is_reached_again_gets_as_many_at_once_as_it_had() -> None:
    """It is not cold: to begin with a few, as with a new pod, would pile up what keeps coming."""
    world = World("a", seconds=20)
    before = [world.ask(f"before {index}") for index in range(30)]
    await asyncio.sleep(1)
    world.all_are("refuses", "a")
    held = [world.ask(f"held {index}") for index in range(30)]
    await asyncio.sleep(2)
    assert len(world.network.executed) == 30
    world.all_are("up", "a")
    await asyncio.sleep(3)
    assert len(world.network.executed) == 60, "before any was answered"
    assert statuses(await asyncio.gather(*before, *held)) == {200: 60}
    world.check_nothing_is_left()


async def test_while_a_probe_computes_its_pod_may_be_lost_and_found_again() -> None:
    """A request that probed and got through does not keep the next probe from being sent."""
    world = World("a", seconds=25)
    world.all_are("refuses", "a")
    slow = world.ask("slow")
    await asyncio.sleep(1)
    world.all_are("up", "a")
    await asyncio.sleep(2)
    assert world.network.executed == ["slow"]
    world.all_are("refuses", "a")
    quick = world.ask("quick")
    await asyncio.sleep(1)
    world.all_are("up", "a")
    await asyncio.sleep(2)
    assert world.network.executed == ["slow", "quick"]
    assert statuses(await asyncio.gather(slow, quick)) == {200: 2}
    world.check_nothing_is_left()


async def test_a_pod_that_takes_its_place_gets_all_at_once() -> None:
    """A pod that died refuses connections until its EndpointSlice names the next one."""
    world = World("dead")
    world.all_are("ignores", "dead")
    asking = [world.ask(str(index)) for index in range(50)]
    await asyncio.sleep(20)
    world.have("dead", "next")
    began = world.loop.time()
    await asyncio.sleep(1)
    world.have("next")
    assert statuses(await asyncio.gather(*asking)) == {200: 50}
    assert world.loop.time() - began < 4
    world.check_nothing_is_left()


async def test_as_many_pods_are_tried_as_there_are_whatever_the_retries() -> None:
    """Three of four are gone: whoever meets them one after another is answered by the fourth."""
    world = World("a", "b", "c", "d", retries=0)
    world.all_are("ignores", "a", "b", "c")
    assert statuses(await asyncio.gather(*(world.ask(str(index)) for index in range(100)))) == {200: 100}
    world.check_nothing_is_left()


@pytest.mark.parametrize("timeout_ms", [300, 1000, 2500])
@pytest.mark.parametrize("hosts", ["a", "ab", "abc"])
async def test_the_endpoints_time_is_for_the_model_and_not_for_finding_a_pod(
    timeout_ms: int, hosts: str
) -> None:
    """However short it is, a request meets pods that ignore it and is answered by the one that comes back."""
    world = World(*hosts, timeout_ms=timeout_ms)
    world.all_are("ignores", *hosts)
    asking = [world.ask(str(index)) for index in range(20)]
    await asyncio.sleep(11)
    world.all_are("up", hosts[-1])
    back = world.loop.time()
    assert statuses(await asyncio.gather(*asking)) == {200: 20}
    assert world.loop.time() - back < 3 * len(hosts) + 1
    world.check_nothing_is_left()


async def test_where_the_hold_has_no_time_the_retries_are_what_there_is() -> None:
    """`coldStart.timeout: 0`: the first after the pod's return succeeds, too."""
    world = World("a", cold=ColdStart(timeout_ms=0), retries=2)
    world.all_are("refuses", "a")
    began = world.loop.time()
    assert (await world.ask()).status == 502
    assert world.loop.time() - began < 1
    assert world.retries() == 2
    world.all_are("up", "a")
    assert (await world.ask()).status == 200
    world.check_nothing_is_left()


async def test_every_endpoint_of_a_backend_goes_on_when_one_of_them_finds_out() -> None:
    """The pod is one; each endpoint has a line of its own."""
    world = World("a")
    other = world.endpoint("f", chance=random.Random(2))
    world.all_are("ignores", "a")
    asking = [world.ask(str(index), state=state) for index in range(20) for state in (world.state, other)]
    await asyncio.sleep(12)
    world.all_are("up", "a")
    assert statuses(await asyncio.gather(*asking)) == {200: 40}
    world.check_nothing_is_left()


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("refuses", b"cannot connect to a"),
        ("ignores", b"cannot connect to a"),
        ("away", b"its model takes no requests"),
    ],
)
async def test_when_the_holds_time_is_over_the_answer_says_what_could_not_be_reached(
    way: Way, words: bytes
) -> None:
    """502 with the last failure, for who tried and who only waited; no sooner, and hardly later."""
    world = World("a", cold=ColdStart(timeout_ms=7000))
    world.all_are(way, "a")
    began = world.loop.time()
    answers = await asyncio.gather(*(world.ask(str(index)) for index in range(20)))
    assert 7 <= world.loop.time() - began <= 9.1
    assert statuses(answers) == {502: 20}
    for answer in answers:
        assert b'"model_unreachable"' in answer.body
        assert words in answer.body
    world.check_nothing_is_left()


async def test_when_the_pod_went_away_meanwhile_the_answer_is_that_there_is_none() -> None:
    """What is true at the end is told: no pod is ready."""
    world = World("a", cold=ColdStart(timeout_ms=7000))
    world.all_are("refuses", "a")
    asking = world.ask()
    await asyncio.sleep(3)
    world.have()
    answer = await asking
    assert (answer.status, b'"backend_missing"' in answer.body) == (503, True)
    world.check_nothing_is_left()


@pytest.mark.parametrize("timeout_ms", [500, 2000, 5000])
async def test_nobody_waits_longer_than_the_client_said(timeout_ms: int) -> None:
    """Held, connecting or between the two: 504 at its time."""
    world = World("a")
    world.all_are("ignores", "a")
    began = world.loop.time()
    answers = await asyncio.gather(*(world.ask(str(n), timeout_ms=timeout_ms) for n in range(3)))
    assert world.loop.time() - began == pytest.approx(timeout_ms / 1000, abs=0.01)
    assert statuses(answers) == {504: 3}
    world.check_nothing_is_left()


async def test_a_request_without_the_time_for_a_connection_says_nothing_of_the_pod() -> None:
    """A client in a hurry must not have all others held."""
    world = World("a")
    world.all_are("ignores", "a")
    assert (await world.ask(timeout_ms=50)).status == 504
    assert len(world.pods.reachable("b")) == 1
    world.check_nothing_is_left()


async def test_a_client_that_leaves_leaves_the_line_and_its_probe_is_anothers() -> None:
    """Whoever probes may go in the middle of it."""
    world = World("a")
    world.all_are("ignores", "a")
    asking = []
    for index in range(10):
        asking.append(world.ask(str(index)))
        await asyncio.sleep(0.001)
    await asyncio.sleep(3)
    for task in asking[:5]:  # the first of them probes
        task.cancel()
    await asyncio.gather(*asking[:5], return_exceptions=True)
    await fake_loop.settle()
    assert world.state.held.count + world.network.connecting == 5
    world.all_are("up", "a")
    assert statuses(await asyncio.gather(*asking[5:])) == {200: 5}
    assert world.network.executed == ["5", "6", "7", "8", "9"]
    world.check_nothing_is_left()


async def test_more_than_may_wait_hear_so_at_once() -> None:
    """The bound of a cold start is this one's, too."""
    world = World("a", cold=ColdStart(max_pending=5))
    world.all_are("refuses", "a")
    asking = [world.ask(str(index)) for index in range(5)]
    await asyncio.sleep(1)
    # One of the five may be out to probe: its place in the line is taken, and it still returns to it.
    late = [(await world.ask()).status for _ in range(10)]
    assert set(late[1:]) == {503}
    world.all_are("up", "a")
    assert statuses(await asyncio.gather(*asking)) == {200: 5}
    world.check_nothing_is_left()


@pytest.mark.parametrize("way", ["refuses", "away"])
async def test_where_nothing_may_be_held_each_request_tries_for_itself(way: Way) -> None:
    """`maxPending: 0`: as many tries as `retries` says, and the first after the pod's return succeeds."""
    world = World("a", cold=ColdStart(max_pending=0), retries=2)
    world.all_are(way, "a")
    tries = 0

    def connects() -> None:
        nonlocal tries
        tries += 1

    world.network.on_connect = connects
    assert (await world.ask()).status == 502
    assert tries == 3
    world.all_are("up", "a")
    assert (await world.ask()).status == 200
    world.check_nothing_is_left()


async def test_a_probe_that_returns_after_the_holds_were_ended_is_answered() -> None:
    """A router that shuts down holds nobody any more, whoever was out to probe when it said so."""
    world = World("a")
    world.all_are("ignores", "a")
    asking = [world.ask(str(index)) for index in range(5)]
    probing = asyncio.Event()
    await asyncio.sleep(8)
    world.network.on_connect = probing.set
    await probing.wait()
    world.state.end_holds(PenstockError(Reason.DRAINING, "the router shuts down"))
    began = world.loop.time()
    assert statuses(await asyncio.gather(*asking)) == {503: 5}
    assert world.loop.time() - began <= 2.1
    world.check_nothing_is_left()


@pytest.mark.parametrize("seed", range(25))
async def test_whatever_pods_do_nobody_is_lost_doubled_or_forgotten(seed: int) -> None:
    """Pods come, go, refuse and ignore connections; clients leave and have deadlines of their own.

    At the end all is well, so all who waited are answered 200: the hold's time is longer than the trouble.
    """
    chance = random.Random(seed)
    hosts = [f"h{index}" for index in range(chance.choice([1, 1, 2, 4]))]

    world = World(*hosts, seed=seed, retries=chance.choice([0, 1, 3]), seconds=chance.choice([0.01, 0.5]))
    down_since: float | None = None
    asked: dict[str, tuple[asyncio.Task[Response], int | None]] = {}

    def connects() -> None:
        if down_since is not None and world.loop.time() - down_since > 2 * len(hosts) + 3:
            assert world.network.connecting == 1

    world.network.on_connect = connects
    gone = []
    for number in range(400):
        if chance.random() < 0.05:
            for host in hosts:
                ways: list[Way] = ["up", "refuses", "ignores", "away"]
                world.all_are(chance.choice(ways), host)
        if chance.random() < 0.02:
            world.have(*(host for host in hosts if chance.random() < 0.7))
            down_since = None  # one that was not there is tried by several at once
        alone = not any(
            world.network.ways.get(pod.address.host, "up") == "up" for pod in world.pods.ready("b")
        )
        ready = list(world.pods.ready("b"))
        if not (alone and ready):
            down_since = None
        elif down_since is None:
            down_since = world.loop.time()
        own = chance.choice([None, None, None, 300, 3000])
        asked[str(number)] = world.ask(str(number), timeout_ms=own), own
        if chance.random() < 0.1:
            leaving, _ = chance.choice(list(asked.values()))
            leaving.cancel()
            gone.append(leaving)
        await asyncio.sleep(chance.expovariate(10))
    world.all_are("up", *hosts)
    down_since = None
    world.have(*hosts)
    await asyncio.gather(*(task for task, _ in asked.values()), return_exceptions=True)
    ledger = Counter(world.network.executed)
    assert max(ledger.values()) == 1
    for identity, (task, own) in asked.items():
        if task.cancelled():
            assert task in gone
            continue
        status = task.result().status
        assert status in ((200,) if own is None else (200, 504)), (identity, status)
        if status == 200:
            assert ledger[identity] == 1
    world.check_nothing_is_left()
    # What is left behind must not hold anybody up later.
    began = world.loop.time()
    assert (await world.ask("last")).status == 200
    assert world.loop.time() - began < 1
