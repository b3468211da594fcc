"""`batchWaitTimeout` is held against runs without it, next to each other in one process."""

import json
import os
import time

from bench import processes, report, table, waits
from bench.figures import Figures
from bench.targets import targets


def test_each_wait_stands_beside_a_run_without_one_as_often_first_as_second() -> None:
    runs = list(waits.pairs((1, 5, 20), 4))
    assert all(0 in pair and max(pair) > 0 for pair in runs)
    for milliseconds in (1, 5, 20):
        assert runs.count((0, milliseconds)) == runs.count((milliseconds, 0)) == 2


def test_the_ratio_of_neighbours_decides_not_that_of_the_medians() -> None:
    """Pairs are what is held against the bound; results without pairs still have the ratio of medians."""
    results = json.loads(table.RESULTS.read_text())
    name = "batchWaitTimeout 1 ms against 0, 16 connections"
    figures = Figures()
    figures.add("wait/0/16/rate", 1000, "items/s")
    figures.add("wait/1/16/rate", 900, "items/s")
    results["figures"] = figures.document()
    assert {target.name: target.measured for target in targets(results)}[name] == 0.9
    for ratio in (0.98, 1.0, 1.1):
        figures.add("wait/1/16/against_0", ratio, "times")
    results["figures"] = figures.document()
    assert {target.name: target.measured for target in targets(results)}[name] == 1.0
    assert "| 1 ms | 16 | 1.00 (0.98 to 1.10) | 3 |" in report.page(results)


def test_the_page_shows_what_a_peer_costs_and_dashes_for_what_was_not_measured() -> None:
    results = json.loads(table.RESULTS.read_text())
    figures = Figures()
    figures.add("latency/mosec/one/added_p50", 2.4, "ms")
    figures.add("throughput/mosec/64/cpu", 30.3, "µs/request")
    figures.add("memory/mosec/loaded/rss", 132, "MB")
    results["figures"] = figures.document()
    lines = report.page(results).splitlines()
    assert "| Mosec | 2.40 | - | - | 30.3 | - | - | 132 | - |" in lines
    assert not any(line.startswith("| Ray Serve | ") for line in lines)


def test_holding_is_held_against_none_by_pairs() -> None:
    results = json.loads(table.RESULTS.read_text())
    figures = Figures()
    for name, unit in waits.UNITS.items():
        figures.add(f"hold/on/4/{name}", 2500, unit)
        figures.add(f"hold/on/4/{name}_against_off", 1.6, "times")
    results["figures"] = figures.document()
    verdicts = {target.name: (target.measured, target.verdict) for target in targets(results)}
    assert verdicts["holding a slot against none, 4 connections"] == (1.6, "reached")
    assert verdicts["holding a slot against none, 8 connections"] == (None, "not measured")
    assert "| 4 | 2 500 | 1.60 | 1.60 | 1.60 | 1.60 | 1.60 |" in report.page(results)


def test_goodput_with_and_without_holding_stands_side_by_side() -> None:
    results = json.loads(table.RESULTS.read_text())
    figures = Figures()
    for way, share in (("holding", 0.98), ("without-holding", 0.97)):
        figures.add(f"goodput/{way}/150/share", share, "of min(offered, capacity)")
    results["figures"] = figures.document()
    lines = report.page(results).splitlines()
    assert "| the sidecar once more | 0.98 |" in lines
    assert "| the same with `batchWaitTimeout: 0ms`, by turns | 0.97 |" in lines


def test_the_cpu_time_of_a_process_grows_with_what_it_does() -> None:
    before, used = processes.scheduled_seconds(os.getpid()), time.thread_time()
    while time.thread_time() < used + 0.02:
        pass
    assert processes.scheduled_seconds(os.getpid()) >= before + 0.01
