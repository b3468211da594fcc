"""A split's mirrors and observed shares, from what users write and routers report to settings and status."""

from __future__ import annotations

from typing import Any

from penstock_operator.kinds import POD, SPLIT
from penstock_operator.reconcile.manager import TRAFFIC_INTERVAL
from penstock_wire.control.report import BackendTotals, EndpointReport, MirrorTotals, RouterReport
from tests.support.worlds.operator_harness import Harness, backend, endpoint, policy, serving, settings, split

ROUTER = "penstock-router-settings"


def mirrored() -> Any:
    resource = split(m=1)
    resource["spec"]["mirrors"] = [{"name": "other", "percent": 10, "compare": {}}]
    return resource


def report(harness: Harness, seq: int, requests: int) -> None:
    totals = MirrorTotals(sent=requests, compared=requests, answered=requests)
    ends = EndpointReport(
        listening=True, backends={"m": BackendTotals(requests=requests)}, mirrors={"other": totals}
    )
    name = "penstock-router-0"
    news = harness.ctx.reports.router(
        "n",
        RouterReport(
            pod=name, uid=harness.uid(POD, name, "n"), seq=seq, state="ready",
            settings_version=settings(harness, ROUTER)["version"], endpoints={"e": ends},
        ),
    )  # fmt: skip
    harness.manager.reported("n", "", notable=news.notable)


async def test_the_level_of_copies_follows_the_mirrors_policy() -> None:
    """The routers get it when the policy has it, when it changes, and when the backend takes another one."""
    harness = Harness()
    for resource in (endpoint(), backend(), backend("other", batchPolicyRef="p"), policy(), mirrored()):
        harness.apply(resource)
    await harness.run()

    def level() -> tuple[str, int]:
        (mirror,) = settings(harness, ROUTER)["endpoints"][0]["mirrors"]
        return mirror["priorityHeader"], mirror["priorityLevel"]

    assert level() == ("", 1)
    await harness.applied(policy(priority={"levels": 3}))
    assert level() == ("x-penstock-priority", 3)
    harness.apply(policy("q", priority={"levels": 5, "header": "X-Own"}))
    harness.apply(backend("other", batchPolicyRef="q"))
    await harness.run()
    assert level() == ("x-own", 5)


async def test_a_split_shows_what_routers_count_now_and_then() -> None:
    """Not with each report, and nothing is written where nothing moved."""
    harness = await serving()
    await harness.applied(backend("other"), mirrored())
    report(harness, 100, 1000)
    await harness.run()
    harness.clock.turn(TRAFFIC_INTERVAL)
    report(harness, 101, 1010)
    await harness.run()
    status = harness.cluster.find(SPLIT, "n", "s")["status"]
    assert status["observed"] == "m 100%"
    assert status["weights"][0]["observed"] == "100%"
    assert status["mirrors"][0]["sent"] == 1010
    harness.clock.turn(1.0)
    report(harness, 102, 1020)
    await harness.run()
    assert harness.cluster.find(SPLIT, "n", "s")["status"] == status
    harness.clock.turn(TRAFFIC_INTERVAL)
    report(harness, 103, 1030)
    await harness.run()
    assert harness.cluster.find(SPLIT, "n", "s")["status"]["mirrors"][0]["sent"] == 1030
