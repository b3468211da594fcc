"""What a run of the ledger's load says: its rate in the slowest seconds, and its errors by kind."""

from __future__ import annotations

import pytest

from bench.ledger import Entry
from tests.support.cluster.k8s import kinds_of
from tests.support.ledger.ledger_load import RATE_WINDOW_SECONDS, least_rate


def answered(*ends: float, outcome: str = "ok") -> list[Entry]:
    times = []
    for number, at in enumerate(ends):
        entry = Entry(number=number, intended=0.0)
        entry.sent, entry.ended, entry.outcome = 0.0, at, outcome
        times.append(entry)
    return times


def steady(begin: float, end: float, rate: float) -> list[float]:
    return [begin + (index + 0.5) / rate for index in range(int((end - begin) * rate))]


def test_a_steady_run_has_its_own_rate() -> None:
    assert least_rate(answered(*steady(0, 30, 100)), 0, 30) == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize("lull", [(0, 10), (7.3, 14.1), (20, 30)])
def test_the_slowest_seconds_count_wherever_they_are(lull: tuple[float, float]) -> None:
    begin, end = lull
    ends = [*steady(0, begin, 100), *steady(begin, end, 20), *steady(end, 30, 100)]
    assert least_rate(answered(*ends), 0, 30) == pytest.approx(20, rel=0.05)


def test_a_pause_of_a_window_is_no_rate_at_all() -> None:
    ends = [*steady(0, 10, 100), *steady(10 + RATE_WINDOW_SECONDS, 30, 100)]
    assert least_rate(answered(*ends), 0, 30) == 0


def test_only_good_answers_of_that_time_count() -> None:
    entries = answered(*steady(0, 10, 10)) + answered(*steady(0, 10, 90), outcome="refused")
    entries += answered(*steady(10, 20, 1000))
    assert least_rate(entries, 0, 10) == pytest.approx(10, rel=0.05)


def test_a_time_shorter_than_a_window_counts_whole() -> None:
    assert least_rate(answered(*steady(0, 2, 50)), 0, 2) == pytest.approx(50, rel=0.05)
    assert least_rate([], 3, 3) == 0


def test_errors_are_shown_by_kind() -> None:
    """By status, reason and the words of the detail, whatever its numbers; each kind's first has its body."""

    def error(sent: float, at: float, detail: str, body: str) -> dict[str, object]:
        return {"sent": sent, "at": at, "part": "", "detail": detail, "body": body}

    late, full = '{"detail":"after %s s","pod":"b-1"}', '{"detail": "3 wait"}'
    assert kinds_of(
        [
            error(1.0, 31.0, "error 504 deadline", late % "30.001"),
            error(1.5, 31.5, "error 504 deadline", late % "29.9"),
            error(1.7, 30.9, "error 504 deadline", late % "30"),
            error(2.0, 2.1, "refused 503 queue_full", full),
            error(2.5, 2.6, "lost connection ended", ""),
        ]
    ) == [
        f"3x error 504 deadline: sent 1.00 to 1.70, ended 30.90 to 31.50; the first: {late % '30.001'}",
        f"1x refused 503 queue_full: sent 2.00 to 2.00, ended 2.10 to 2.10; the first: {full}",
        "1x lost connection ended: sent 2.50 to 2.50, ended 2.60 to 2.60; the first: ",
    ]
