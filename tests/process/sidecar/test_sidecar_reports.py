"""A sidecar that reports: the content of its reports, and the settings that it obeys."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock_wire.control import documents, report, settings
from penstock_wire.control.report import SidecarReport
from penstock_wire.headers import get
from penstock_wire.http import Request, Response
from penstock_wire.http.server.server import H1Front
from tests.support.processes.sidecar_process import HELD, Pair, got, until


class Operator:
    """Takes reports on loopback and answers with the settings that it holds."""

    def __init__(self) -> None:
        self.front = H1Front()
        self.reports: list[SidecarReport] = []
        self.requests: list[Request] = []
        self.settings: settings.Settings | None = None
        self.next_ms = 100
        self.url = ""

    async def start(self) -> None:
        listener = await self.front.listen("127.0.0.1", 0, self)
        self.url = f"http://127.0.0.1:{listener.address[1]}"

    async def __call__(self, request: Request) -> Response:
        self.requests.append(request)
        self.reports.append(report.decode_sidecar(request.body))
        answer: dict[str, Any] = {"v": 1, "nextReportMs": self.next_ms}
        if self.settings is not None:
            answer["settings"] = json.loads(settings.encode(self.settings))
        return Response(status=200, body=json.dumps(answer).encode())

    async def report_where(self, look: Callable[[SidecarReport], bool]) -> SidecarReport:
        """Wait for a report that is as wanted."""
        seen = len(self.reports)

        async def find() -> SidecarReport | None:
            return next((each for each in self.reports[max(0, seen - 1) :] if look(each)), None)

        report: SidecarReport = await until(find)
        return report


@pytest.fixture
async def operator() -> AsyncIterator[Operator]:
    made = Operator()
    await made.start()
    yield made
    await made.front.close(0)


@pytest.fixture
async def pair(operator: Operator, tmp_path: Path) -> AsyncIterator[Pair]:
    token = tmp_path / "token"
    token.write_text("secret-token")
    made = Pair(
        tmp_path,
        f"--report-to={operator.url}",
        f"--token-file={token}",
        env={"PENSTOCK_POD": "digits-0", "PENSTOCK_POD_UID": "uid-0", "PENSTOCK_BACKEND": "digits"},
    )
    # The file carries no version, which a sidecar that reports does not take.
    yield await made.start(ready=False)
    await made.stop()


async def test_it_waits_for_versioned_settings_and_then_obeys_the_operator_alone(
    operator: Operator, pair: Pair
):
    starting = await operator.report_where(lambda each: each.state == "starting")
    assert (starting.pod, starting.uid, starting.settings_version) == ("digits-0", "uid-0", 0)
    assert get(operator.requests[0].headers, b"authorization") == b"Bearer secret-token"
    assert "no settings yet" in (await pair.admin_get("/readyz")).body.decode()
    batching = settings.Batching(max_batch_size=5)
    operator.settings = settings.Settings(version=3, backend="digits", batching=batching)
    await operator.report_where(lambda each: each.state == "ready" and each.settings_version == 3)
    await pair.until_ready()
    assert (await pair.admin_get("/settings")).document["batching"]["maxBatchSize"] == 5
    # What the mounted ConfigMap says from now on counts for nothing, whatever its version.
    pair.settle(version=2**53 - 1, maxBatchSize=1)
    operator.settings = None
    seen = operator.reports[-1].seq
    await operator.report_where(lambda each: each.seq > seen + 8)
    assert (await pair.admin_get("/settings")).document["version"] == 3
    operator.settings = settings.Settings(version=1, backend="digits")
    sent = json.dumps(json.loads(settings.encode(operator.settings))).encode()
    taken = documents.digest(sent)
    await operator.report_where(lambda each: (each.settings_version, each.settings_digest) == (1, taken))


async def test_load_totals_and_drain_are_told(operator: Operator, pair: Pair):
    operator.settings = settings.Settings(version=1, batching=settings.Batching(max_batch_size=2))
    await operator.report_where(lambda each: each.state == "ready")
    asked = [asyncio.create_task(pair.predict(n, path=HELD)) for n in range(5)]
    busy = await operator.report_where(lambda each: each.items.queued > 0 and each.items.ongoing > 0)
    assert busy.items.queued + busy.items.ongoing <= 5
    await pair.release()
    assert [got(await task) for task in asked] == [[n] for n in range(5)]
    assert (
        await pair.ask(data=b'{"instances": 1}', headers={"content-type": "application/json"})
    ).status == 422
    done = await operator.report_where(lambda each: each.totals.answered == 5 and bool(each.totals.refused))
    assert (done.totals.arrived, done.totals.batch_items, done.totals.refused) == (5, 5, {"bad_shape": 1})
    assert 3 <= done.totals.batches <= 5
    waits = await operator.report_where(lambda each: each.processor_wait is not None)
    assert 0 <= (waits.processor_wait or 0) <= 1
    assert (await pair.admin_get("/drain")).status == 200
    await operator.report_where(lambda each: each.state == "draining")


async def test_the_first_arrival_after_idleness_is_reported_at_once(operator: Operator, pair: Pair):
    operator.settings = settings.Settings(version=1)
    await operator.report_where(lambda each: each.state == "ready")
    operator.next_ms = 3_600_000
    seen = operator.reports[-1].seq
    await operator.report_where(lambda each: each.seq > seen)
    asked = asyncio.create_task(pair.predict(1, path=HELD))
    report = await operator.report_where(lambda each: each.items.queued + each.items.ongoing > 0)
    assert report.totals.arrived == 1
    assert not asked.done()
    await pair.release()
    assert got(await asked) == [1]


async def test_with_the_operator_gone_requests_are_served_as_last_told(operator: Operator, pair: Pair):
    operator.settings = settings.Settings(version=1, batching=settings.Batching(max_batch_size=3))
    await operator.report_where(lambda each: each.state == "ready")
    await operator.front.close(0)

    async def serves() -> bool:
        return any("report failed" in line for line in pair.sidecar.log)

    await until(serves)
    assert got(await pair.predict(1)) == [1]
    assert (await pair.admin_get("/settings")).document["batching"]["maxBatchSize"] == 3
