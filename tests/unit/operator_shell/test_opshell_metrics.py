"""The work queues are measured under controller-runtime's names."""

from __future__ import annotations

import re

from penstock_operator.metrics import Metrics, QueueMetrics
from penstock_operator.workqueue import WorkQueue
from tests.support.hand_clock import HandClock


def sample(metrics: Metrics, name: str) -> float:
    found = re.search(rf'^{name}{{name="reconcile"}} (\S+)$', metrics.text().decode(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


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
