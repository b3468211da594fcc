"""The reporter against a real server on loopback: what it sends, what it takes, how it bears failure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock_wire.control.reporter import BUSY_RETRY_SECONDS, Reporter, retry_after
from penstock_wire.headers import get
from penstock_wire.http import Request, Response
from penstock_wire.http.server.server import H1Front
from tests.support.clocks.waiting import SECONDS


class Operator:
    """Answers reports with what `answers` holds, the last one again and again."""

    def __init__(self) -> None:
        self.reports: list[Request] = []
        self.came = asyncio.Condition()
        self.answers: list[tuple[int, bytes]] = [(200, b'{"v":1,"nextReportMs":100}')]

    async def __call__(self, request: Request) -> Response:
        async with self.came:
            self.reports.append(request)
            self.came.notify_all()
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return Response(status=status, body=body)

    async def after(self, count: int) -> list[Request]:
        async with self.came:
            await asyncio.wait_for(self.came.wait_for(lambda: len(self.reports) >= count), SECONDS)
        return self.reports


@pytest.fixture
async def operator() -> Operator:
    return Operator()


@pytest.fixture
async def run(operator: Operator, tmp_path: Path) -> AsyncIterator[Reporter]:
    front = H1Front()
    listener = await front.listen("127.0.0.1", 0, operator)
    token = tmp_path / "token"
    token.write_text("one\n")
    taken: list[bytes | None] = []
    reporter = Reporter(
        url=f"http://127.0.0.1:{listener.address[1]}/base/",
        kind="sidecar",
        token_file=token,
        make=lambda sequence: json.dumps({"seq": sequence}).encode(),
        on_settings=taken.append,
        on_alone=lambda: taken.append(None),
    )
    reporter.taken, reporter.token = taken, token  # type: ignore[attr-defined]
    task = asyncio.create_task(reporter.run())
    yield reporter
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await front.close(0)


async def test_reports_carry_a_sequence_and_the_token_of_the_moment(operator: Operator, run: Reporter):
    await operator.after(1)
    run.token.write_text("two\n")  # type: ignore[attr-defined]
    reports = await operator.after(len(operator.reports) + 2)
    first, last = reports[0], reports[-1]
    assert (first.method, first.target) == ("POST", "/base/reports/sidecar")
    assert get(first.headers, b"authorization") == b"Bearer one"
    assert get(last.headers, b"authorization") == b"Bearer two"
    assert [json.loads(each.body)["seq"] for each in reports] == list(range(1, len(reports) + 1))


async def test_settings_in_the_answer_are_handed_on_and_it_is_told_when_there_are_none(
    operator: Operator, run: Reporter
):
    """An operator that does not answer as it should is none."""
    operator.answers.insert(0, (200, b'{"v":1,"nextReportMs":100,"settings":{"v":1,"version":4}}'))
    operator.answers.insert(0, (503, b"standby"))
    await operator.after(4)
    assert run.taken[:3] == [None, b'{"v":1,"version":4}', None]  # type: ignore[attr-defined]


async def test_a_failure_is_told_once_and_tried_again(
    operator: Operator, run: Reporter, capsys: pytest.CaptureFixture[str]
):
    operator.answers[:0] = [(403, b"who are you"), (200, b"garbage")]
    run.report_now()
    await operator.after(1)
    for count in (2, 3, 4):
        run.report_now()
        await operator.after(count)
    entries = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    messages = [line["message"] for line in entries]
    assert "report failed" in messages
    assert "expected status 200, found 403: who are you" in entries[0]["error"]


async def test_report_now_does_not_wait_for_the_interval(operator: Operator, run: Reporter):
    operator.answers[:] = [(200, b'{"v":1,"nextReportMs":3600000}')]
    await operator.after(1)
    for count in (2, 3):
        run.report_now()
        await operator.after(count)


@pytest.mark.parametrize(("interval", "longest"), [(0.6, 2.0), (1.0, 2.0), (3.5, 3.5), (60.0, 6.0)])
def test_retries_come_ever_more_seldom(interval: float, longest: float):
    waits = [retry_after(failures, interval) for failures in range(1, 4000)]
    assert waits[0] == 1.25
    assert waits == sorted(waits)
    assert waits[-1] == longest


async def test_a_pod_whose_reports_are_never_taken_tries_more_seldom_than_one_that_knows_the_interval(
    operator: Operator, run: Reporter, monkeypatch: pytest.MonkeyPatch
):
    intervals: list[float] = []

    def noted(_failures: int, interval: float) -> float:
        intervals.append(interval)
        return 0.01

    monkeypatch.setattr("penstock_wire.control.reporter.retry_after", noted)
    operator.answers[:] = [
        (503, b"busy"),
        (503, b"busy"),
        (200, b'{"v":1,"nextReportMs":4000}'),
        (503, b"busy"),
    ]
    for count in (1, 2, 3, 4, 5):
        run.report_now()
        await operator.after(count)
    assert intervals[:2] == [BUSY_RETRY_SECONDS] * 2
    assert intervals[2:] in ([4.0], [4.0, 4.0])


@pytest.mark.parametrize("url", ["ftp://x", "x:80", "http://", "https://"])
def test_an_url_that_cannot_be_used_is_refused(url: str):
    with pytest.raises(ValueError, match="expected an operator URL"):
        Reporter(
            url=url,
            kind="sidecar",
            token_file=None,
            make=lambda sequence: b"",
            on_settings=lambda data: None,
        )
