"""Of several installations one acts; the others write nothing, name it, and take over when it is gone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from penstock_operator.errors import LeaseLost, Rejected, Unavailable
from penstock_operator.kinds import LEASE, Kind
from penstock_operator.kube.cluster import Obj
from penstock_operator.kube.installation import (
    KEPT,
    LEASE_NAME,
    TIMES,
    Leadership,
    among_installations,
    identity_of,
)
from penstock_operator.kube.lease import Elector, LeaseTimes
from tests.support.clocks.hand_clock import HandClock
from tests.support.worlds.memory_cluster import MemoryCluster

T = TypeVar("T")

OWN = LeaseTimes(duration=10, renew_within=7, retry=1.5)
SETTLED = TIMES.settle + 0.1
"""Seconds after which the first installation leads."""


@dataclass
class Line:
    """One pod's way to the API server: calls fail, take time, and take effect even if the caller has left."""

    cluster: MemoryCluster
    clock: HandClock
    fails: Callable[[str], bool] = lambda _name: False
    takes: Callable[[], float] = lambda: 0.0

    async def get(self, kind: Kind, namespace: str, name: str) -> Obj | None:
        return await self._call(name, lambda: self.cluster.get(kind, namespace, name))

    async def apply(self, kind: Kind, obj: Obj) -> Obj:
        return await self._call(obj["metadata"]["name"], lambda: self.cluster.apply(kind, obj))

    async def create(self, kind: Kind, obj: Obj) -> Obj:
        return await self._call(obj["metadata"]["name"], lambda: self.cluster.create(kind, obj))

    async def _call(self, name: str, serve: Callable[[], Awaitable[T]]) -> T:
        async def served() -> T:
            await self.clock.sleep(self.takes())
            return await serve()

        answer = asyncio.ensure_future(served())
        answer.add_done_callback(lambda task: task.cancelled() or task.exception())
        result = await asyncio.shield(answer)
        await self.clock.sleep(self.takes())
        if self.fails(name):
            raise Unavailable(0, "induced")
        return result


@dataclass
class Pod:
    """A pod of an installation, run as the process does: asked to lead, and over when it has led."""

    cluster: Any
    clock: HandClock
    installation: str
    name: str = "op-1"
    watched: str = ""
    waits_for: list[str] = field(default_factory=list)
    lines: list[tuple[str, object]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    alive: bool = True

    def __post_init__(self) -> None:
        own = Elector(
            self.cluster, namespace=self.installation, name="penstock-operator", identity=self.name,
            clock=self.clock, times=OWN, working=lambda: self.alive,
        )  # fmt: skip
        self.leadership: Leadership = among_installations(
            self.cluster, own, lease_namespace="kube-system", watched=self.watched,
            identity=identity_of(self.installation, "penstock-operator", self.name), clock=self.clock,
            log=lambda message, **fields: self.lines.append((message, fields.get("holder"))),
            working=lambda: self.alive, waiting=self.waits_for.append,
            refused=self.refused.append,
        )  # fmt: skip
        self.run = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await self.leadership.acquire()
        await self.leadership.hold()

    @property
    def leads(self) -> bool:
        return self.clock.time() < self.leadership.until

    async def end(self) -> None:
        """As on SIGTERM."""
        await self.die()
        await self.leadership.release()

    async def die(self) -> None:
        """As on SIGKILL."""
        self.run.cancel()
        await asyncio.gather(self.run, return_exceptions=True)


def lease(cluster: MemoryCluster, name: str = LEASE_NAME) -> str:
    return str(cluster.find(LEASE, "kube-system", name)["spec"]["holderIdentity"])


async def led_after(clock: HandClock, pod: Pod, *others: Pod) -> float:
    """Seconds until a pod leads, while never two lead."""
    began = clock.time()
    while not pod.leads:
        await clock.advance(0.5)
        assert sum(each.leads for each in (pod, *others)) <= 1
        assert clock.time() - began < 120, pod.lines
    return clock.time() - began


@pytest.mark.parametrize("ends", ["ended", "killed", "deaf"])
async def test_a_second_installation_stands_by_and_names_the_first_until_that_is_gone(ends: str) -> None:
    """Not before its Lease has run out, or `KEPT` seconds after it was given back."""
    cluster, clock = MemoryCluster(), HandClock()
    first = Pod(cluster, clock, "one")
    await clock.advance(SETTLED)
    second = Pod(cluster, clock, "two")
    for _ in range(100):
        await clock.advance(2)
        assert (first.leads, second.leads) == (True, False)
    holder = "one/penstock-operator/op-1"
    assert lease(cluster) == holder
    assert second.waits_for == [holder]
    assert second.lines == [("another installation leads", holder)]
    assert first.lines == [("waiting until no other process can lead", None)]
    if ends == "ended":
        await first.end()
    elif ends == "killed":
        await first.die()
    else:
        first.alive = False
    waited = await led_after(clock, second, first)
    at_least = TIMES.settle + (KEPT if ends == "ended" else TIMES.duration - TIMES.retry)
    assert at_least <= waited <= TIMES.settle + TIMES.duration + OWN.duration
    assert second.waits_for == [holder, ""]
    assert lease(cluster) == "two/penstock-operator/op-1"
    await first.die()
    await second.die()


@pytest.mark.parametrize("ends", ["upgraded", "killed"])
async def test_the_pods_of_an_installation_change_places_before_another_installation(ends: str) -> None:
    """Its next pod need not wait for the second Lease: the first says that its predecessor has stopped."""
    cluster, clock = MemoryCluster(), HandClock()
    first = Pod(cluster, clock, "one")
    await clock.advance(SETTLED)
    next_pod, other = Pod(cluster, clock, "one", "op-2"), Pod(cluster, clock, "two")
    await clock.advance(30)
    await (first.end() if ends == "upgraded" else first.die())
    waited = await led_after(clock, next_pod, other, first)
    assert waited <= (2.0 if ends == "upgraded" else 12.0)
    assert lease(cluster) == "one/penstock-operator/op-2"
    assert next_pod.waits_for == []
    await clock.advance(60)
    assert not other.leads
    assert other.lines == [
        ("another installation leads", f"one/penstock-operator/{name}") for name in ("op-1", "op-2")
    ]
    for pod in (next_pod, other):
        await pod.die()


@pytest.mark.parametrize("newer_first", [True, False], ids=["rollback", "upgrade"])
async def test_a_release_that_has_one_lease_never_leads_beside_one_that_has_two(newer_first: bool) -> None:
    """Both have that of their own namespace, whichever comes first."""
    cluster, clock = MemoryCluster(), HandClock()

    def older() -> Elector:
        return Elector(
            cluster, namespace="one", name="penstock-operator", identity="old", clock=clock, times=OWN
        )

    newer = Pod(cluster, clock, "one", "new") if newer_first else None
    await clock.advance(1)
    old = older()
    taking = asyncio.create_task(old.acquire())
    await clock.advance(1)
    if newer is None:
        holding = asyncio.create_task(old.hold())
        newer = Pod(cluster, clock, "one", "new")
        await clock.advance(60)
        assert (old.leads, newer.leads) == (True, False)
        holding.cancel()
        await old.release()
        await clock.advance(SETTLED + 2)
        assert (old.leads, newer.leads) == (False, True)
    else:
        await clock.advance(60)
        assert (old.leads, newer.leads) == (False, True)
        await newer.end()
        await clock.advance(2)
        assert (old.leads, newer.leads) == (True, False)
    taking.cancel()
    await newer.die()


async def test_operators_of_different_namespaces_act_side_by_side_and_give_way_to_one_of_all() -> None:
    """Two for one namespace do not; and when the operator of all namespaces has gone they act again."""
    cluster, clock = MemoryCluster(), HandClock()
    in_a, in_b = Pod(cluster, clock, "one", watched="a"), Pod(cluster, clock, "two", watched="b")
    await clock.advance(2 * SETTLED)
    rival = Pod(cluster, clock, "three", watched="a")
    await clock.advance(60)
    assert [pod.leads for pod in (in_a, in_b, rival)] == [True, True, False]
    assert rival.waits_for == ["one/penstock-operator/op-1"]
    whole = Pod(cluster, clock, "four")
    await clock.advance(SETTLED)
    assert [pod.leads for pod in (in_a, in_b, rival, whole)] == [False, False, False, True]
    for pod in (in_a, in_b):
        with pytest.raises(LeaseLost, match=f"kube-system/{LEASE_NAME} is held by four/"):
            await pod.run
    again = Pod(cluster, clock, "two", "op-2", watched="b")
    await clock.advance(60)
    assert again.waits_for == ["four/penstock-operator/op-1"]
    assert not again.leads
    await whole.end()
    await led_after(clock, again)
    await clock.advance(60)
    assert again.leads  # what the other has left behind is not read as its presence
    assert rival.leads
    for pod in (again, rival):
        await pod.die()


@pytest.mark.parametrize("watched", ["", "a"])
async def test_who_cannot_ask_stops_acting_in_time(watched: str) -> None:
    """A Lease that cannot be renewed, or read where it is another's to hold: over within `renew_within`."""
    cluster, clock = MemoryCluster(), HandClock()
    pod = Pod(cluster, clock, "one", watched=watched)
    await clock.advance(2 * SETTLED)
    assert pod.leads

    def fail(_verb: str, _kind: str, namespace: str, name: str) -> None:
        if (namespace, name) == ("kube-system", LEASE_NAME):
            raise Unavailable(500, "induced")

    cluster.fail = fail
    await clock.advance(TIMES.renew_within + 1)
    assert not pod.leads
    with pytest.raises(LeaseLost, match="could not be renewed"):
        await pod.run


@pytest.mark.parametrize("slow", [0.0, 3.0])
async def test_of_several_that_find_no_lease_one_acts(slow: float) -> None:
    """An apply creates it, which cannot require that it does not exist, and may come late."""
    cluster, clock = MemoryCluster(), HandClock()
    made = [Pod(cluster, clock, "one"), Pod(Line(cluster, clock, takes=lambda: slow), clock, "two")]
    made.append(Pod(cluster, clock, "three"))
    for _ in range(120):
        await clock.advance(0.5)
        assert sum(each.leads for each in made) <= 1
    assert sum(each.leads for each in made) == 1
    for pod in made:
        await pod.die()


@pytest.mark.parametrize("watched", ["", "a"])
async def test_no_other_acts_beside_a_leader_whose_lease_was_deleted_and_whose_calls_fail(
    watched: str,
) -> None:
    """It goes on for `renew_within`, another one waits for longer, and so does that one's next pod."""
    cluster, clock = MemoryCluster(), HandClock()
    cut = False

    def second(number: int) -> Pod:
        return Pod(cluster, clock, "two", f"op-{number}", watched=watched)

    early = []
    if watched:  # it has led, and its next pod has once seen that there is no Lease for all namespaces
        before = second(0)
        await clock.advance(2 * SETTLED)
        assert before.leads
        await before.end()
        early = [second(1)]
    await clock.advance(1)
    first = Pod(Line(cluster, clock, lambda name: cut and name == LEASE_NAME), clock, "one")
    await clock.advance(SETTLED)
    (other,) = early or [second(1)]
    await clock.advance(SETTLED)
    cut = True
    cluster.remove(LEASE, "kube-system", LEASE_NAME)
    for _ in range(8):
        await clock.advance(0.5)
        assert (first.leads, other.leads) == (True, False)
    after = second(2)
    await other.end()
    waited = await led_after(clock, after, first)
    assert TIMES.settle <= waited + 4
    assert not first.leads
    await first.die()
    await after.die()


async def test_a_leader_whose_lease_was_deleted_makes_it_again_and_acts_on() -> None:
    cluster, clock = MemoryCluster(), HandClock()
    pod = Pod(cluster, clock, "one")
    await clock.advance(SETTLED)
    for _ in range(5):
        cluster.remove(LEASE, "kube-system", LEASE_NAME)
        for _ in range(40):
            await clock.advance(0.5)
            assert pod.leads
        assert cluster.find(LEASE, "kube-system", LEASE_NAME)["spec"]["acquireTime"]
    await pod.die()


async def test_an_operator_for_all_namespaces_waits_for_a_limited_one_that_cannot_see_it() -> None:
    """That one goes on for `renew_within` after it last saw no other holder."""
    cluster, clock = MemoryCluster(), HandClock()
    deaf = False
    limited = Pod(Line(cluster, clock, lambda name: deaf and name == LEASE_NAME), clock, "one", watched="a")
    await clock.advance(2 * SETTLED)
    assert limited.leads
    deaf = True
    whole = Pod(cluster, clock, "two")
    waited = await led_after(clock, whole, limited)
    assert TIMES.settle - TIMES.retry <= waited <= SETTLED + 0.5
    for pod in (limited, whole):
        await pod.die()


@pytest.mark.parametrize(
    ("ends", "away", "waits"),
    [
        ("ended", 10, False),
        ("ended", 16, True),
        ("ended", 60, True),
        ("killed", 20, False),
        ("killed", 40, True),
    ],
)
@pytest.mark.parametrize("deaf", [False, True])
async def test_an_operator_that_was_away_waits_for_a_limited_one_that_acts_by_then(
    ends: str, away: float, deaf: bool, *, waits: bool
) -> None:
    """That one only reads its Lease. Who is back before the Lease runs out does not wait.

    It is a new pod, or after a crash the same one.
    """
    cluster, clock = MemoryCluster(), HandClock()
    cut = False
    whole = Pod(cluster, clock, "one")
    await clock.advance(SETTLED)
    line = Line(cluster, clock, lambda name: cut and name == LEASE_NAME)
    limited = Pod(line, clock, "two", watched="a")
    await clock.advance(20)
    assert (whole.leads, limited.leads) == (True, False)
    await (whole.end() if ends == "ended" else whole.die())
    await clock.advance(away)
    if away > 30 + TIMES.settle + TIMES.retry:
        assert limited.leads
    cut = deaf
    back = Pod(cluster, clock, "one", "op-2" if ends == "ended" else "op-1")
    waited = await led_after(clock, back, limited)
    assert (waited > 1.0) == waits
    assert waited <= SETTLED + 0.5
    assert cluster.find(LEASE, "kube-system", LEASE_NAME)["spec"]["acquireTime"]
    for pod in (back, limited):
        await pod.die()


@pytest.mark.parametrize("seed", range(4))
async def test_two_never_act_at_once_whatever_becomes_of_leases_calls_and_pods(seed: int) -> None:
    """Leases are deleted; calls are late, fail, or are not answered; pods die. In the end one acts."""
    cluster, clock, chance = MemoryCluster(), HandClock(), random.Random(seed)
    trouble = True

    def start(installation: str, watched: str = "", number: int = 1) -> Pod:
        until = 0.0

        def fails(_name: str) -> bool:
            nonlocal until
            if trouble and chance.random() < 0.05:
                until = clock.time() + chance.choice((1, 15))
            return clock.time() < until and trouble

        def takes() -> float:
            return chance.choice((0, 0, 0, 0.01, 0.5, 4)) * chance.random() if trouble else 0.0

        return Pod(Line(cluster, clock, fails, takes), clock, installation, f"op-{number}", watched)

    pods = [start("one"), start("two"), start("in-a", "a"), start("also-a", "a"), start("in-b", "b")]
    deleted_at, acted = 0.0, set[str]()
    for step in range(2000):
        trouble = step < 1600
        await clock.advance(0.25, rounds=20)
        leading = [pod for pod in pods if pod.leads]
        acted.update(pod.installation for pod in leading)
        assert len(leading) == len({pod.watched for pod in leading}), leading
        assert len(leading) == 1 or all(pod.watched for pod in leading), leading
        # NB: a limited one cannot see a Lease that is made and deleted between two of its looks.
        if trouble and clock.time() > deleted_at + 16 and chance.random() < 0.03:
            deleted_at, leases = clock.time(), cluster.names(LEASE, "kube-system")
            chance.shuffle(leases)
            for name in leases[:1]:
                cluster.remove(LEASE, "kube-system", name)
        for at, pod in enumerate(pods):
            if pod.run.done() or (trouble and chance.random() < 0.002):
                await pod.die()
                pods[at] = start(pod.installation, pod.watched, step)
    assert sum(pod.leads for pod in pods) >= 1
    assert len(acted) > 1
    for pod in pods:
        await pod.die()


@pytest.mark.parametrize("watched", ["", "n"])
async def test_one_that_may_not_ask_for_the_lease_says_so(watched: str) -> None:
    """Its process is not ready then: a rollout must not take the pods away that lead."""
    cluster, clock = MemoryCluster(), HandClock()

    def fail(_verb: str, _kind: str, namespace: str, _name: str) -> None:
        if namespace == "kube-system" and forbidden:
            raise Rejected(403, "leases is forbidden")

    forbidden, cluster.fail = True, fail
    pod = Pod(cluster, clock, "one", watched=watched)
    await clock.advance(20)
    assert not pod.leads
    assert "leases is forbidden" in pod.refused[-1]
    forbidden = False
    await led_after(clock, pod)
    assert pod.refused[-1] == ""
    await pod.die()
