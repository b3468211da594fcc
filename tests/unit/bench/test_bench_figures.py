"""Figures, targets, tables and the free batcher they are compared with."""

import json
from typing import Any

import pytest

from bench import ideal, report, table, targets
from bench.figures import Figures, median


def document(**keys: float) -> dict[str, Any]:
    """A results document with some figures."""
    figures = Figures()
    for key, value in keys.items():
        figures.add(key.replace("__", "/"), value, "items/s")
    return {"figures": figures.document(), "failures": {}, "voids": [], "versions": {}}


def test_a_figure_has_its_unit_median_and_spread() -> None:
    figures = Figures()
    for value in (3, 1, 2):
        figures.add("a/b/1/rate", value, "items/s")
    assert figures.document() == {
        "a/b/1/rate": {"unit": "items/s", "n": 3, "median": 2, "min": 1, "max": 3, "samples": [3, 1, 2]}
    }
    with pytest.raises(AssertionError, match="items/s"):
        figures.add("a/b/1/rate", 1, "ms")


def test_targets_say_by_how_much_they_were_missed() -> None:
    verdicts = {
        target.name: target.verdict
        for target in targets.targets(
            document(
                throughput__sidecar__256__rate=300,
                throughput__mosec__256__rate=200,
                throughput__model__256__rate=310,
                throughput__sidecar__64__cpu=18,
            )
        )
    }
    assert verdicts["throughput at 256 connections, against Mosec"] == "missed by 25%"
    assert verdicts["throughput at 256 connections, against the model's own limit"] == "reached"
    assert verdicts["CPU a request at 64 connections"] == "missed by 20%"
    assert verdicts["idle CPU"] == "not measured"


def test_the_free_batcher_takes_what_waits_when_the_model_falls_free() -> None:
    # 10 ms a batch + 1 ms an item: alone 11 ms; the two that came meanwhile share the next batch.
    assert ideal.latencies([0, 0.001, 0.002], 10, 1) == pytest.approx([11, 22, 21])
    assert ideal.latencies([0, 0, 0], 10, 1, max_batch=2) == pytest.approx([12, 12, 23])


def test_the_page_shows_what_the_results_say() -> None:
    written = table.found_in(table.PAGE.read_text())
    assert written is not None, f"docs/bench.md has no {table.BEGIN!r} … {table.END!r}"
    assert written == table.block(json.loads(table.RESULTS.read_text()))


def test_the_page_names_what_was_void_and_what_failed() -> None:
    results = json.loads(table.RESULTS.read_text())
    results["voids"].append({"what": "free/sidecar/64", "reason": "sends were late"})
    results["failures"]["ray"] = "not installed: no disk"
    page = report.page(results)
    assert "- void: free/sidecar/64: sends were late" in page
    assert "- failed: ray: not installed: no disk" in page


def test_a_quantity_that_was_not_measured_is_a_dash() -> None:
    assert median({"figures": {}}, "no/such/-/figure") is None
    assert report.number(None) == "-"
    assert report.number(12345.6) == "12 346"
