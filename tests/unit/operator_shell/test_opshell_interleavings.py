"""Any interleaving of events, failures and crashes ends in the state of a fresh run.

A machine plays users, kubelet, a bad apiserver and a killer beside one operator in memory. In the end there
is peace, and what is in the cluster must equal what a new operator makes of the same resources in a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from penstock_operator.errors import ClusterError, Conflict, Rejected, Unavailable
from penstock_operator.kinds import (
    BACKEND,
    CHILDREN,
    DEPLOYMENT,
    ENDPOINT,
    PARENTS,
    POD,
    POLICY,
    SERVICE,
    SPLIT,
    Kind,
)
from tests.support.worlds.memory_cluster import MemoryCluster
from tests.support.worlds.operator_harness import Harness, backend, endpoint, policy, split
from tests.support.worlds.operator_peace import REFUSED, kubelet, peace, shape

Obj = dict[str, Any]
ERRORS: tuple[ClusterError, ...] = (
    Unavailable(500, "induced"),
    Unavailable(0, "induced"),
    Conflict(409, "induced"),
    Rejected(403, "induced"),
)
BACKENDS, ENDPOINTS, POLICIES = ("a", "b"), ("e", "f"), ("p", "q")
# Windows that pass within the peace: what is compared is the number that the scaling comes to.
SCALINGS: tuple[Obj, ...] = (
    {"targetLoad": 4, "maxReplicas": 3, "stableWindow": "2s", "downscaleDelay": "0s"},
    {"targetLoad": 4, "minReplicas": 2, "maxReplicas": 2, "stableWindow": "4s", "downscaleDelay": "4s"},
)


class Killed(BaseException):
    """The process is gone."""


class Interleavings(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.harness = Harness()

    # -- users -------------------------------------------------------------------------------------------

    @rule(
        name=st.sampled_from(BACKENDS),
        replicas=st.integers(0, 2),
        image=st.sampled_from(["model:1", "model:2"]),
        ref=st.sampled_from([None, *POLICIES]),
        scaling=st.sampled_from([None, None, *SCALINGS]),
        config=st.sampled_from([None, {"threshold": 1}, REFUSED]),
        path=st.sampled_from([None, "/reconfigure"]),
        suspend=st.booleans(),
    )
    def apply_backend(
        self,
        name: str,
        replicas: int,
        image: str,
        ref: str | None,
        scaling: Obj | None,
        config: Obj | None,
        path: str | None,
        suspend: bool,
    ) -> None:
        wanted = backend(name, replicas=replicas, suspend=suspend)
        wanted["spec"] |= {"batchPolicyRef": ref} if ref else {}
        wanted["spec"] |= {"autoscaling": scaling} if scaling else {}
        wanted["spec"] |= {"userConfig": config} if config else {}
        wanted["spec"]["model"] |= {"reconfigurePath": path} if path else {}
        wanted["spec"]["model"]["container"]["image"] = image
        self.harness.apply(wanted)

    @rule(name=st.sampled_from(ENDPOINTS), serves=st.sampled_from(BACKENDS))
    def apply_endpoint(self, name: str, serves: str) -> None:
        self.harness.apply(endpoint(name, backend=serves))

    @rule(name=st.sampled_from(["s", "t"]), a=st.integers(0, 3), b=st.integers(1, 3))
    def apply_split(self, name: str, a: int, b: int) -> None:
        self.harness.apply(split(name, "e", a=a, b=b))

    @rule(name=st.sampled_from(POLICIES), size=st.sampled_from([4, 8]))
    def apply_policy(self, name: str, size: int) -> None:
        self.harness.apply(policy(name, maxBatchSize=size))

    @rule(which=st.integers(0, 99), collected=st.booleans())
    def delete(self, which: int, collected: bool) -> None:
        """Delete a resource; its children go at once, or when the garbage collector comes by."""
        kinds = {kind.kind: kind for kind in PARENTS}
        there = [key for key in sorted(self.harness.cluster.objects) if key[0] in kinds]
        if there:
            self.harness.cluster._remove(there[which % len(there)])
            if collected:
                self.harness.cluster.collect_garbage()

    @rule(which=st.integers(0, 99), how=st.sampled_from(["delete", "edit", "unlabel"]))
    def harm_a_child(self, which: int, how: str) -> None:
        """Somebody deletes or edits what we rendered."""
        kinds: dict[str, Kind] = {kind.kind: kind for kind in CHILDREN}
        there = [key for key in sorted(self.harness.cluster.objects) if key[0] in kinds]
        if not there:
            return
        key = there[which % len(there)]
        cluster, name = self.harness.cluster, key[2]
        if how == "delete":
            cluster._remove(key)
        elif how == "unlabel":
            cluster.edit(kinds[key[0]], "n", name, lambda live: live["metadata"].pop("labels", 0))
        elif key[0] == DEPLOYMENT.kind:
            cluster.edit(DEPLOYMENT, "n", name, lambda live: live["spec"].update(replicas=7))
        elif key[0] == SERVICE.kind:
            cluster.edit(SERVICE, "n", name, lambda live: live["spec"]["ports"][0].update(targetPort=1))

    # -- the cluster -------------------------------------------------------------------------------------

    @rule(load=st.sampled_from([0, 0, 5, 40]))
    def pods_come_and_report(self, load: int) -> None:
        self._run(kubelet(self.harness, load))

    @rule(which=st.integers(0, 99))
    def a_pod_dies(self, which: int) -> None:
        """Without a last word."""
        if there := self.harness.cluster.names(POD, "n"):
            self.harness.cluster.remove(POD, "n", there[which % len(there)])

    @rule(calls=st.integers(1, 6), error=st.sampled_from(ERRORS))
    def some_calls_fail(self, calls: int, error: ClusterError) -> None:
        left = [calls]

        def fail(*_call: str) -> None:
            if left[0] > 0:
                left[0] -= 1
                raise error

        self.harness.cluster.fail = fail

    @rule(after=st.integers(0, 6))
    def the_operator_is_killed(self, after: int) -> None:
        """Before its next call but so many; the next process lists, and may die as well."""
        self.harness.cluster.fail = self._killer(after)

    @rule()
    def the_watch_is_cut(self) -> None:
        """Events are lost until it is there again."""
        self.harness.events = False

    @rule()
    def the_watch_comes_back(self) -> None:
        self.harness.events = True
        self._run(self.harness.manager.relist())

    # -- the operator ------------------------------------------------------------------------------------

    @rule(keys=st.integers(1, 5))
    def work_a_little(self, keys: int) -> None:
        self._run(self._some(keys))

    @rule(seconds=st.sampled_from([0.2, 2.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self._run(self.harness.turn(seconds))

    async def _some(self, keys: int) -> None:
        manager = self.harness.manager
        for queue, handle in ((manager.queue, manager.reconcile), (manager.scale_queue, manager.scale)):
            for _ in range(min(keys, len(queue))):
                await self.harness.step(queue, handle)

    def _killer(self, after: int) -> Callable[..., None]:
        left = [after]

        def fail(*_call: str) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        return fail

    def _run(self, work: Any) -> None:
        """Run a step; an operator that is killed in it is followed by the next one."""
        try:
            self.loop.run_until_complete(work)
        except Killed:
            self.harness.cluster.fail = lambda *_: None
            self.harness.stop()
            self.harness = Harness(self.harness.cluster, self.harness.clock)
            self.loop.run_until_complete(self.harness.manager.sync())
        except ClusterError:
            pass  # a list that failed: the next one makes up for it

    # -- the end -----------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            self.loop.run_until_complete(self._verdict())
        finally:
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left))
            self.loop.close()

    async def _verdict(self) -> None:
        """Peace; then nothing is left to do, also for a new process; and all is as in a fresh run."""
        used, cluster = self.harness, self.harness.cluster
        cluster.fail = lambda *_: None
        used.events = True
        await self._end_what_lasts(used)
        await peace(used)
        cluster.writes.clear()
        used.manager.enqueue_all()
        await used.run()
        assert cluster.writes == []
        wanted = await self._fresh(cluster)
        shapes = shape(cluster)
        differ = [key for key in sorted(shapes.keys() | wanted.keys()) if shapes.get(key) != wanted.get(key)]
        assert not differ, "\n".join(f"{key}\n  {shapes.get(key)}\n  {wanted.get(key)}" for key in differ)
        again = await used.restart()
        await kubelet(again)
        for _ in range(5):  # the autoscaler looks meanwhile: every 2 s
            await again.turn(2)
        assert cluster.writes == []
        assert [error for error in again.errors if "Error" in error[1]] == []

    async def _end_what_lasts(self, used: Harness) -> None:
        """What a history leaves by design ends here, or the state of a fresh run would be another one.

        A suspended backend stays as it is. One without its policy keeps the last settings that it was told.
        One that an endpoint was moved away from keeps its requests until a pod of the new one is ready.
        """
        cluster = used.cluster
        for name in POLICIES:
            if (POLICY.kind, "n", name) not in cluster.objects:
                used.apply(policy(name))
        idle: list[str] = []
        for name in BACKENDS:
            if (BACKEND.kind, "n", name) not in cluster.objects:
                used.apply(backend(name))
            live = cluster.edit(BACKEND, "n", name, lambda live: live["spec"].update(suspend=False))
            if live["spec"].get("replicas") == 0 and "autoscaling" not in live["spec"]:
                idle.append(name)
        await self._ready_once(used, idle)

    async def _ready_once(self, harness: Harness, idle: list[str]) -> None:
        """Backends without replicas were ready once: others would not get a share in a split."""
        for replicas in (1, 0) if idle else ():
            for name in idle:
                harness.cluster.edit(
                    BACKEND,
                    "n",
                    name,
                    lambda live, count=replicas: live["spec"].update(replicas=count),  # type: ignore[misc]
                )
            await peace(harness)

    async def _fresh(self, used: MemoryCluster) -> dict[str, Any]:
        """What a new operator makes of the same resources, applied in the order of their making."""
        fresh = Harness()
        kinds = {kind.kind for kind in (BACKEND, ENDPOINT, SPLIT, POLICY)}
        parents = [live for key, live in used.objects.items() if key[0] in kinds]
        for live in sorted(parents, key=lambda live: int(live["metadata"]["uid"].split("-")[1])):
            own = {"namespace": "n", "name": live["metadata"]["name"]}
            fresh.apply({**{k: live[k] for k in ("apiVersion", "kind", "spec")}, "metadata": own})
        await fresh.run()
        await peace(fresh)
        specs = [(live["metadata"]["name"], live["spec"]) for live in parents if live["kind"] == BACKEND.kind]
        await self._ready_once(
            fresh, [name for name, spec in specs if spec.get("replicas") == 0 and "autoscaling" not in spec]
        )
        fresh.stop()
        return shape(fresh.cluster)


PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""No shrinking: one example is seconds of work, and a failure names its steps anyway."""

TestInterleavings = pytest.mark.long(Interleavings.TestCase)
TestInterleavings.settings = settings(
    max_examples=20,
    stateful_step_count=30,
    deadline=None,
    phases=PHASES,
    suppress_health_check=list(HealthCheck),
)
