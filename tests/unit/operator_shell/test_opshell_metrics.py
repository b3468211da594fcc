"""The work queues are measured under controller-runtime's names."""

from __future__ import annotations

import importlib.metadata
import re

import pytest

from penstock_operator.metrics import Metrics, QueueMetrics
from penstock_operator.workqueue import WorkQueue
from penstock_wire.version import DISTRIBUTION
from tests.support.clocks.hand_clock import HandClock


def sample(metrics: Metrics, name: str) -> float:
    match = re.search(rf'^{name}{{name="reconcile"}} (\S+)$', metrics.text().decode(), re.MULTILINE)
    assert match is not None, name
    return float(match[1])


async def test_every_metric_of_a_queue_follows_what_the_queue_does() -> None:
    """Depth, additions, waiting, working, failures, and what is under way at the moment of the scrape."""
    clock, metrics = HandClock(), Metrics()
    queue: WorkQueue[str] = WorkQueue(clock, observer=QueueMetrics(metrics, "reconcile"))
    metrics.watch_work("reconcile", queue.underway)
    for key in "aab":
        queue.add(key)
    assert sample(metrics, "workqueue_depth") == 2
    assert sample(metrics, "workqueue_adds_total") == 2
    clock.turn(3)
    await queue.get()
    clock.turn(1)
    await queue.get()
    assert sample(metrics, "workqueue_depth") == 0
    assert sample(metrics, "workqueue_queue_duration_seconds_sum") == 7
    clock.turn(2)
    assert sample(metrics, "workqueue_unfinished_work_seconds") == 5
    assert sample(metrics, "workqueue_longest_running_processor_seconds") == 3
    queue.done("a")
    queue.add_failed("b")
    queue.done("b")
    assert sample(metrics, "workqueue_retries_total") == 1
    assert sample(metrics, "workqueue_work_duration_seconds_sum") == 5
    assert sample(metrics, "workqueue_unfinished_work_seconds") == 0
    assert sample(metrics, "workqueue_longest_running_processor_seconds") == 0


def test_writes_that_failed_are_told_apart_by_status() -> None:
    """By verb and kind, too."""
    metrics = Metrics()
    for status in (409, 409, 0):
        metrics.write_failed("apply", "Service", status)
    text = metrics.text().decode()
    assert 'penstock_operator_write_errors_total{code="409",kind="Service",verb="apply"} 2.0' in text
    assert 'penstock_operator_write_errors_total{code="0",kind="Service",verb="apply"} 1.0' in text


def test_the_release_that_runs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As its package says; files that were never installed have none."""
    match = re.search(
        r'^penstock_operator_build_info{python="3[^"]+",version="([^"]+)"} 1', text(), re.MULTILINE
    )
    assert match is not None
    assert match[1] == importlib.metadata.version(DISTRIBUTION)

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert 'version="unknown"' in text()


def text() -> str:
    """A scrape of a fresh process."""
    return Metrics().text().decode()
