"""A backend that is deleted and made again under its name starts afresh; clocks of others do not count."""

from __future__ import annotations

import datetime

import pytest

from penstock_operator.clock import rfc3339
from penstock_operator.errors import Conflict
from penstock_operator.kinds import BACKEND
from penstock_operator.reconcile.scale_owners import YIELD
from tests.support.worlds.operator_harness import Harness, backend, backend_key

SCALING = {"targetLoad": 10, "maxReplicas": 5}


async def loaded() -> Harness:
    """An autoscaled backend under a load that asks for more than it may have."""
    harness = await Harness().applied(backend(autoscaling=SCALING))
    pods = harness.pods_ready("m-backend", 1)
    for _ in range(10):
        harness.report("m", pods[0], version=1, load=500)
        await harness.turn(1)
    assert harness.cluster.find(BACKEND, "n", "m")["spec"]["replicas"] == 5
    return harness


def replace_backend(harness: Harness, *, seen: bool) -> None:
    """Delete and make again; the watch reports the deletion, or (a cut watch) only the new one."""
    harness.events = seen
    for name in harness.cluster.names(BACKEND, "n"):
        harness.cluster._remove((BACKEND.kind, "n", name))
    harness.events = True
    harness.apply(backend(autoscaling=SCALING))


@pytest.mark.parametrize("seen", [True, False], ids=["told", "missed"])
async def test_nothing_learnt_of_a_backend_scales_its_namesake(seen: bool) -> None:
    """Load, pace and history were another's: the new one keeps the replicas it was made with."""
    harness = await loaded()
    replace_backend(harness, seen=seen)
    assert harness.manager._scaler._states == {}
    assert backend_key() not in harness.ctx.memory.scaled
    assert harness.ctx.reports.of_backend("n", "m") == {}
    await harness.turn(2)
    await harness.turn(2)
    live = harness.cluster.find(BACKEND, "n", "m")
    assert live["spec"].get("replicas", 1) == 1
    assert live["status"].get("scaling", []) == []


async def test_a_number_never_lands_in_a_namesake() -> None:
    """The backend was replaced between the look at it and the write: the write is refused."""
    harness = await loaded()
    uid = harness.uid(BACKEND, "m")
    replace_backend(harness, seen=True)
    with pytest.raises(Conflict):
        await harness.cluster.apply_scale(BACKEND, "n", "m", 4, uid=uid)


@pytest.mark.parametrize("skew", [-7200.0, 7200.0], ids=["ahead", "behind"])
async def test_another_scalers_number_stands_for_its_time_whatever_the_clocks_say(skew: float) -> None:
    """The API server's clock may differ from ours by hours; the time counts from when we saw the write."""
    harness = await Harness().applied(backend(autoscaling=SCALING))
    harness.cluster.scale(BACKEND, "n", "m", 4)
    written = harness.clock.now() - datetime.timedelta(seconds=skew)

    # The memory cluster does not set times, and keeps the entries of owners that stay.
    live = harness.cluster.objects[(BACKEND.kind, "n", "m")]
    for entry in live["metadata"]["managedFields"]:
        entry["time"] = rfc3339(written)
    harness.manager.put({**live, "metadata": {**live["metadata"], "resourceVersion": "99999"}})
    passed = 0.0
    while passed < YIELD - 10:
        await harness.turn(2)
        passed += 2
        assert harness.condition(BACKEND, "m", "ScalingActive") == ("False", "ForeignScaler")
    for _ in range(20):
        await harness.turn(2)
    assert (harness.condition(BACKEND, "m", "ScalingActive") or ("",))[0] == "True"
