"""Nobody acts on a lost Lease: every write looks at it, by the monotonic clock, at the moment it is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock_operator.__main__ import Operator
from penstock_operator.config import Config
from penstock_operator.errors import LeaseLost, Rejected, Unavailable
from penstock_operator.kinds import BACKEND, CONFIG_MAP, ENDPOINT_SLICE, EVENT, LEASE, POLICY
from penstock_operator.kube.cluster import Cluster
from penstock_operator.kube.fence import FencedCluster
from penstock_operator.kube.lease import Elector
from penstock_operator.leader_endpoint import INTERVAL, LeaderEndpoint
from penstock_operator.workqueue import WorkQueue, work
from tests.support.clocks.hand_clock import HandClock, settle
from tests.support.worlds.memory_cluster import MemoryCluster
from tests.support.worlds.operator_harness import Harness, backend, policy

CHILD = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "n", "name": "c"}}
EVENT_OBJECT = {"apiVersion": "v1", "kind": "Event", "metadata": {"namespace": "n", "name": "e"}}
STATUS = {"kind": "BatchPolicy", "metadata": {"namespace": "n", "name": "p"}, "status": {"a": 1}}


def raising(error: Exception) -> Callable[..., None]:
    """A cluster's `fail` that always raises."""

    def fail(*_: str) -> None:
        raise error

    return fail


WRITES: dict[str, Callable[[Cluster], Any]] = {
    "apply": lambda cluster: cluster.apply(CONFIG_MAP, CHILD),
    "status": lambda cluster: cluster.apply_status(POLICY, STATUS),
    "scale": lambda cluster: cluster.apply_scale(BACKEND, "n", "m", 3),
    "annotate": lambda cluster: cluster.annotate(BACKEND, "n", "m", {"a": "1"}, uid="uid-2"),
    "delete": lambda cluster: cluster.delete(CONFIG_MAP, "n", "c"),
    "create": lambda cluster: cluster.create(EVENT, EVENT_OBJECT),
}


@pytest.mark.parametrize("verb", WRITES)
async def test_every_write_needs_the_lease_and_no_read_does(verb: str) -> None:
    """While we hold it the write passes; from the moment another may hold it, it is not made."""
    inner, clock = MemoryCluster(), HandClock()
    for obj in (policy(), backend()):
        inner.user_applies(obj)
    until = clock.time() + 8
    fenced = FencedCluster(inner, until=lambda: until, clock=clock)
    clock.turn(7.9)
    await WRITES[verb](fenced)
    before = len(inner.writes)
    clock.turn(0.2)
    with pytest.raises(LeaseLost, match="before a write"):
        await WRITES[verb](fenced)
    assert len(inner.writes) == before
    assert await fenced.get(POLICY, "n", "p") is not None
    assert len(await fenced.list(POLICY, keep=dict)) == 1


@pytest.mark.parametrize("verb", WRITES)
async def test_every_write_that_is_not_taken_is_counted_with_its_status(verb: str) -> None:
    """And raised all the same; a lost Lease is not an answer of the API server."""
    inner, clock, counted = MemoryCluster(), HandClock(), []
    until = clock.time() + 8
    fenced = FencedCluster(
        inner, until=lambda: until, clock=clock, failed=lambda *words: counted.append(words)
    )
    for error in (Rejected(403, "exceeded quota"), Unavailable(0, "no answer")):
        inner.fail = raising(error)
        with pytest.raises(type(error)):
            await WRITES[verb](fenced)
    kind = {
        "status": "BatchPolicy", "scale": "ModelBackend", "annotate": "ModelBackend", "create": "Event",
    }.get(verb, "ConfigMap")  # fmt: skip
    assert counted == [(verb, kind, 403), (verb, kind, 0)]
    clock.turn(9)
    with pytest.raises(LeaseLost):
        await WRITES[verb](fenced)
    assert len(counted) == 2


async def test_a_write_under_way_is_cut_when_the_lease_ends_and_goes_on_when_it_is_renewed() -> None:
    """A call that hangs does not outlast the Lease; a renewal meanwhile gives it more time."""
    clock, answer = HandClock(), asyncio.get_running_loop().create_future()

    class Hanging(MemoryCluster):
        async def apply(self, *_: Any) -> Any:
            return await asyncio.shield(answer)

    ends = [clock.time() + 8]
    fenced = FencedCluster(Hanging(), until=lambda: ends[-1], clock=clock)
    cut, kept = (asyncio.create_task(fenced.apply(CONFIG_MAP, CHILD)) for _ in range(2))
    ends.append(clock.time() + 10)
    await clock.advance(9)
    assert not cut.done()
    assert not kept.done()
    answer.set_result({"done": True})
    assert await kept == {"done": True}
    answer = asyncio.get_running_loop().create_future()
    late = asyncio.create_task(fenced.apply(CONFIG_MAP, CHILD))
    await clock.advance(2)
    with pytest.raises(LeaseLost, match="during a write"):
        await late
    await cut
    answer.cancel()


async def test_a_worker_that_comes_too_late_to_its_write_ends_the_work() -> None:
    """LeaseLost is not retried: the worker ends with it, and with it the process."""
    clock = HandClock()
    queue: WorkQueue[str] = WorkQueue(clock)
    failures: list[str] = []

    async def handle(_key: str) -> float | None:
        raise LeaseLost("induced")

    queue.add("a")
    warn = lambda key, _error, _delay: failures.append(key)  # noqa: E731 - one line is enough
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(work(queue, handle, warn, fatal=(LeaseLost,)), 20)
    assert failures == []
    assert queue.idle


async def test_a_manager_without_its_lease_writes_nothing_and_ends() -> None:
    """The whole control plane in memory, its Lease running out while work waits: not one write after that."""
    cluster, clock = MemoryCluster(), HandClock()
    elector = Elector(cluster, namespace="n", name="l", identity="one", clock=clock)
    await elector.acquire()
    fenced = FencedCluster(cluster, until=lambda: elector.until, clock=clock)
    harness = Harness(cluster, clock, fenced=fenced)
    harness.apply(backend())
    clock.turn(8)
    writes = len(cluster.writes)
    with pytest.raises(BaseExceptionGroup) as caught:
        await asyncio.wait_for(harness.manager.run(2), 20)
    assert caught.value.subgroup(LeaseLost) is not None
    assert len(cluster.writes) == writes


async def test_an_elector_that_sees_another_holder_lets_no_further_write_pass() -> None:
    """Before `hold` has raised, and whatever time was left."""
    cluster, clock = MemoryCluster(), HandClock()
    elector = Elector(cluster, namespace="n", name="l", identity="one", clock=clock)
    await elector.acquire()
    cluster.edit(LEASE, "n", "l", lambda live: live["spec"].update(holderIdentity="two"))
    holding = asyncio.create_task(elector.hold())
    await clock.advance(2)
    await settle()
    assert elector.until < clock.time()
    with pytest.raises(LeaseLost, match="held by two"):
        await asyncio.wait_for(holding, 20)


# -- the leader in its Service ------------------------------------------------------------------------------


def leader_endpoint(cluster: MemoryCluster, clock: HandClock, log: Callable[..., None]) -> LeaderEndpoint:
    return LeaderEndpoint(
        cluster, namespace="n", name="op", address="10.0.0.9", ports={"control": 8015}, clock=clock, log=log
    )  # fmt: skip


@pytest.mark.parametrize("harm", ["deleted", "edited", "unlabelled"])
async def test_the_leaders_address_comes_back(harm: str) -> None:
    """A slice that was deleted or edited is restored within seconds; a right one is left alone."""
    cluster, clock = MemoryCluster(), HandClock()
    lines: list[str] = []
    address = leader_endpoint(cluster, clock, lambda message, **_: lines.append(message))
    await address.publish()
    wanted = cluster.find(ENDPOINT_SLICE, "n", "op")
    keeping = asyncio.create_task(address.keep())
    await clock.advance(INTERVAL * 5)
    assert len(cluster.writes) == 1
    if harm == "deleted":
        cluster.remove(ENDPOINT_SLICE, "n", "op")
    elif harm == "edited":
        cluster.edit(ENDPOINT_SLICE, "n", "op", lambda live: live["endpoints"].append({"addresses": ["x"]}))
    else:
        cluster.edit(ENDPOINT_SLICE, "n", "op", lambda live: live["metadata"].update(labels={}))

    def fail(*_: str) -> None:
        raise Unavailable(500, "induced")

    cluster.fail = fail
    await clock.advance(INTERVAL)
    assert lines == ["not published"]
    cluster.fail = lambda *_: None
    await clock.advance(INTERVAL)
    live = cluster.find(ENDPOINT_SLICE, "n", "op")
    assert live["endpoints"] == wanted["endpoints"] == [
        {"addresses": ["10.0.0.9"], "conditions": {"ready": True}}
    ]  # fmt: skip
    assert live["metadata"]["labels"] == wanted["metadata"]["labels"]
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_every_writer_of_the_process_is_behind_the_fence() -> None:
    """As the process is put together: reconcilers, children, the control Service's slice."""
    cluster = MemoryCluster()
    operator = Operator(Config(pod_ip="10.0.0.9", report_to="http://operator:8015"), cluster)
    context = operator._manager.ctx
    writers = [context, context.applier, operator._leader_endpoint]
    for writer in writers:
        cluster_used = getattr(writer, "cluster", None) or getattr(writer, "_cluster", None)
        assert isinstance(cluster_used, FencedCluster), writer
    with pytest.raises(LeaseLost):
        await context.cluster.apply(CONFIG_MAP, CHILD)
    assert cluster.writes == []
