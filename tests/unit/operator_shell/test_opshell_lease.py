"""Leader election: one leader at a time, taken over when silent, lost in time."""

from __future__ import annotations

import asyncio

import pytest

from penstock_operator.errors import LeaseLost, Rejected, Unavailable
from penstock_operator.kinds import LEASE
from penstock_operator.kube.lease import Elector, LeaseTimes
from tests.support.clocks.hand_clock import HandClock, settle
from tests.support.worlds.memory_cluster import MemoryCluster

TIMES = LeaseTimes(duration=12, renew_within=8, retry=2)


def elector(cluster: MemoryCluster, clock: HandClock, identity: str) -> Elector:
    return Elector(cluster, namespace="n", name="l", identity=identity, clock=clock, times=TIMES)


async def test_the_first_leads_at_once_and_the_second_waits() -> None:
    """A fresh Lease is taken without a pause; only its holder leads."""
    cluster, clock = MemoryCluster(), HandClock()
    first, two = elector(cluster, clock, "one"), elector(cluster, clock, "two")
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    waiting = asyncio.create_task(two.acquire())
    for _ in range(30):
        await clock.advance(2)
        assert first.leads
        assert not two.leads
    assert cluster.find(LEASE, "n", "l")["spec"]["leaseTransitions"] == 0
    holding.cancel()
    waiting.cancel()
    await asyncio.gather(holding, waiting, return_exceptions=True)


async def test_a_silent_leader_is_replaced_after_the_lease_and_no_sooner() -> None:
    """By the time the second leads, the first has known for a while that it does not."""
    cluster, clock = MemoryCluster(), HandClock()
    first, two = elector(cluster, clock, "one"), elector(cluster, clock, "two")
    await first.acquire()
    waiting = asyncio.create_task(two.acquire())
    waited = 0.0
    while not waiting.done():
        await clock.advance(0.5)
        waited += 0.5
        assert not (first.leads and two.leads)
        assert waited <= 15
    assert waited >= TIMES.duration
    assert cluster.find(LEASE, "n", "l")["spec"]["holderIdentity"] == "two"
    assert cluster.find(LEASE, "n", "l")["spec"]["leaseTransitions"] == 1


@pytest.mark.parametrize("phase", [0.0, 0.4, 0.8, 1.2, 1.6])
async def test_a_standby_leads_within_twelve_seconds_of_a_death(phase: float) -> None:
    """With the times of production, wherever in its own rhythm the standby is when the leader dies."""
    cluster, clock = MemoryCluster(), HandClock()
    elector_ = Elector(cluster, namespace="n", name="l", identity="one", clock=clock)
    await elector_.acquire()
    holding = asyncio.create_task(elector_.hold())
    await clock.advance(phase)
    two = Elector(cluster, namespace="n", name="l", identity="two", clock=clock)
    waiting = asyncio.create_task(two.acquire())
    await clock.advance(20)
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    waited = 0.0
    while not waiting.done():
        await clock.advance(0.25)
        waited += 0.25
        assert waited <= 12
        assert not (elector_.leads and two.leads)
    assert two.leads


async def test_a_released_lease_is_taken_at_the_next_try() -> None:
    """A planned end does not cost the lease's duration."""
    cluster, clock = MemoryCluster(), HandClock()
    first, two = elector(cluster, clock, "one"), elector(cluster, clock, "two")
    await first.acquire()
    waiting = asyncio.create_task(two.acquire())
    await clock.advance(1)
    await first.release()
    assert not first.leads
    await clock.advance(2)
    assert waiting.done()
    assert two.leads


@pytest.mark.parametrize("hangs", [False, True], ids=["fails", "hangs"])
async def test_a_leader_that_cannot_renew_stops_before_anybody_takes_over(hangs: bool) -> None:
    """Errors and calls that never return both end in LeaseLost within renew_within."""
    cluster, clock = MemoryCluster(), HandClock()
    leader = elector(cluster, clock, "one")
    await leader.acquire()
    if hangs:
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def hang(*_: object, **__: object) -> None:
            await never

        cluster.get = cluster.apply = hang  # type: ignore[method-assign,assignment]
    else:

        def fail(*_: str) -> None:
            raise Unavailable(500, "induced")

        cluster.fail = fail
    holding = asyncio.create_task(leader.hold())
    passed = 0.0
    while not holding.done():
        await clock.advance(0.5)
        passed += 0.5
        assert passed < TIMES.duration
    with pytest.raises(LeaseLost, match="could not be renewed"):
        await holding
    assert not leader.leads


async def test_a_renewal_is_one_call_and_mends_a_lease_that_was_touched() -> None:
    """Without a read while the record is as we left it; one edited or deleted is read, and written again."""
    cluster, clock = MemoryCluster(), HandClock()
    leader = elector(cluster, clock, "one")
    await leader.acquire()
    reads = cluster.reads
    holding = asyncio.create_task(leader.hold())
    for _ in range(3):
        await clock.advance(TIMES.retry)
    assert cluster.reads == reads
    cluster.edit(LEASE, "n", "l", lambda live: live["metadata"].update(labels={"a": "b"}))
    await clock.advance(TIMES.retry)
    assert cluster.reads == reads + 1
    cluster.remove(LEASE, "n", "l")
    await clock.advance(TIMES.retry)
    assert cluster.find(LEASE, "n", "l")["spec"]["holderIdentity"] == "one"
    assert leader.leads
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)


async def test_a_leader_whose_work_stands_still_is_replaced() -> None:
    """It stops renewing, and stops leading before another pod leads."""
    cluster, clock = MemoryCluster(), HandClock()
    works = True
    leader = Elector(
        cluster, namespace="n", name="l", identity="one", clock=clock, times=TIMES, working=lambda: works
    )
    await leader.acquire()
    holding = asyncio.create_task(leader.hold())
    await clock.advance(TIMES.duration * 2)
    assert leader.leads
    works = False
    two = elector(cluster, clock, "two")
    waiting = asyncio.create_task(two.acquire())
    while not waiting.done():
        await clock.advance(0.5)
        assert not (leader.leads and two.leads)
    with pytest.raises(LeaseLost, match="could not be renewed"):
        await holding


async def test_a_leader_that_finds_another_holder_stops_at_once() -> None:
    """Whoever took the Lease, by hand even, has it."""
    cluster, clock = MemoryCluster(), HandClock()
    leader = elector(cluster, clock, "one")
    await leader.acquire()

    def take(live: dict[str, object]) -> None:
        live["spec"]["holderIdentity"] = "other"  # type: ignore[index]

    cluster.edit(LEASE, "n", "l", take)
    holding = asyncio.create_task(leader.hold())
    await clock.advance(2.1)
    await settle()
    with pytest.raises(LeaseLost, match="held by other"):
        await asyncio.wait_for(holding, 30)


async def test_of_two_candidates_for_a_free_lease_one_wins() -> None:
    """The write carries the version that was read."""
    cluster, clock = MemoryCluster(), HandClock()
    zero = elector(cluster, clock, "zero")
    await zero.acquire()
    await zero.release()
    first, two = elector(cluster, clock, "one"), elector(cluster, clock, "two")
    tasks = [asyncio.create_task(first.acquire()), asyncio.create_task(two.acquire())]
    await settle()
    assert [first.leads, two.leads].count(True) == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_one_that_may_not_ask_for_the_lease_says_so() -> None:
    """Its process is not ready then: a rollout must not take the pods away that lead."""
    cluster, clock, refusals = MemoryCluster(), HandClock(), list[str]()
    forbidden = True

    def fail(*_: str) -> None:
        if forbidden:
            raise Rejected(403, "leases is forbidden")

    cluster.fail = fail
    candidate = Elector(
        cluster, namespace="n", name="l", identity="one", clock=clock, times=TIMES, refused=refusals.append
    )
    waiting = asyncio.create_task(candidate.acquire())
    await clock.advance(20)
    assert not candidate.leads
    assert "leases is forbidden" in refusals[-1]
    forbidden = False
    await clock.advance(TIMES.retry)
    assert waiting.done()
    assert refusals[-1] == ""


async def test_a_refusal_is_over_when_another_candidate_is_seen_to_hold_the_lease() -> None:
    """Else a standby whose rights came late would never be ready, and its rollout would not end."""
    cluster, clock, refusals = MemoryCluster(), HandClock(), list[str]()
    await elector(cluster, clock, "one").acquire()

    def fail(*_: str) -> None:
        raise Rejected(403, "leases is forbidden")

    standby = Elector(
        cluster, namespace="n", name="l", identity="two", clock=clock, times=TIMES, refused=refusals.append
    )
    cluster.fail = fail
    waiting = asyncio.create_task(standby.acquire())
    await clock.advance(TIMES.retry)
    assert "leases is forbidden" in refusals[-1]
    cluster.fail = lambda *_: None
    await clock.advance(TIMES.retry)
    assert not waiting.done()
    assert refusals[-1] == ""
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_who_waits_names_the_holder_until_it_leads() -> None:
    """Once for each holder; the log, the metrics and the readiness of an installation follow from it."""
    cluster, clock, holders = MemoryCluster(), HandClock(), list[str]()
    first = elector(cluster, clock, "one/operator/a")
    await first.acquire()
    two = Elector(
        cluster, namespace="n", name="l", identity="two/operator/a", clock=clock, waiting=holders.append
    )
    waiting = asyncio.create_task(two.acquire())
    await clock.advance(5)
    assert holders == ["one/operator/a"]
    await first.release()
    await clock.advance(5)
    assert waiting.done()
    assert holders == ["one/operator/a", ""]
