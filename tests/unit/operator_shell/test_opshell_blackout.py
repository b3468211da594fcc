"""What the operator makes of reports that are lost, cannot be read, or come while its clock jumps."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest

from penstock_operator.kinds import BACKEND, POD
from penstock_wire.control.report import Fit, Items, SidecarReport, Totals, decode_sidecar, encode
from penstock_wire.errors import DocumentError, Reason
from tests.support.worlds.operator_harness import Harness, backend

PODS = 4
RATE = 27
"""Items a second at each pod: four are asked for, and are there."""
FIT = {"/": Fit(a_ms=100, b_ms=20, n=100)}
BATCHING = {"maxBatchSize": 32, "latencyObjective": "1s"}


class World:
    """A backend under a steady load whose pods report once a second, as bytes."""

    def __init__(self, operator: Harness) -> None:
        self.operator = operator
        self.names = operator.pods_ready("m-backend", PODS)
        self.second = 100
        self.refused = 0

    async def turn(self, *, wrong: dict[int, bytes | None]) -> None:
        """A second passes; of some pods the operator gets this instead of their reports, or nothing."""
        self.second += 1
        await self.operator.turn(0.5)
        for number, name in enumerate(self.names):
            sent = wrong.get(number, self._report(name))
            if sent is not None:
                self._hear(sent)
        await self.operator.turn(0.5)

    def _report(self, name: str) -> bytes:
        report = SidecarReport(
            pod=name, uid=self.operator.uid(POD, name), seq=self.second, state="ready", settings_version=1,
            items=Items(ongoing=8), fit=FIT,
            totals=Totals(arrived=RATE * self.second, refused={Reason.QUEUE_FULL: self.refused}),
        )  # fmt: skip
        return encode(report)

    def nan(self, number: int) -> bytes:
        """A pod's report with a time that is not a number."""
        document = json.loads(self._report(self.names[number]))
        document["fit"]["/"]["aMs"] = float("nan")
        return json.dumps(document).encode()

    def _hear(self, sent: bytes) -> None:
        """As the control server does."""
        try:
            report = decode_sidecar(sent)
        except DocumentError:
            return
        news = self.operator.ctx.reports.sidecar("n", "m", report)
        self.operator.manager.reported("n", "m", notable=news.notable)

    @property
    def replicas(self) -> int:
        return int(self.operator.cluster.find(BACKEND, "n", "m")["spec"]["replicas"])

    @property
    def available(self) -> tuple[str, str] | None:
        return self.operator.condition(BACKEND, "m", "MetricsAvailable")


@pytest.mark.parametrize("scaling", [{}, {"targetLoad": 8}], ids=["objective", "targetLoad"])
@pytest.mark.parametrize("many", [PODS // 2, PODS])
@pytest.mark.parametrize(
    ("what", "silence"), [("nothing", 40), ("nothing", 180), ("NaN", 40), ("garbage", 40)]
)
async def test_without_reports_the_number_stays_and_a_condition_says_so_within_30_s(
    what: str, silence: int, many: int, scaling: dict[str, Any]
) -> None:
    """Half of the pods' are lost, or all, for a while; when they are back, the number stays, too.

    What a full queue refused meanwhile asks for no pod now: that is over.
    """
    operator = Harness()
    quick = {"maxReplicas": 40, "stableWindow": "10s", "downscaleDelay": "5s"}
    await operator.applied(backend(replicas=PODS, autoscaling=quick | scaling, batching=BATCHING))
    world = World(operator)
    for _ in range(60):
        await world.turn(wrong={})
    assert (world.replicas, world.available) == (PODS, ("True", "ReportsReceived"))

    for second in range(silence):
        world.refused = 7 if second > 20 else 0
        bad: dict[str, bytes | None] = {"nothing": None, "garbage": b"\x00\xff{{" * 9}
        await world.turn(wrong={number: bad.get(what, world.nan(number)) for number in range(many)})
        assert world.replicas == PODS, second
        assert second < 30 or world.available == ("False", "TooManyUnknown")
    for second in range(90):
        await world.turn(wrong={})
        assert world.replicas == PODS, second
    assert world.available == ("True", "ReportsReceived")
    assert operator.errors == []


@pytest.mark.parametrize("hours", [-5, 5])
async def test_a_clock_that_jumps_changes_nothing(hours: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports carry no time, and the operator measures by the clock that does not jump."""
    operator = Harness()
    quick = {"maxReplicas": 40, "stableWindow": "10s", "downscaleDelay": "5s"}
    await operator.applied(backend(replicas=PODS, autoscaling=quick, batching=BATCHING))
    world = World(operator)
    for _ in range(60):
        await world.turn(wrong={})
    later = operator.clock.now() + datetime.timedelta(hours=hours)
    monkeypatch.setattr(operator.clock, "now", lambda: later)
    for second in range(60):
        await world.turn(wrong={})
        assert world.replicas == PODS, second
    assert world.available == ("True", "ReportsReceived")
