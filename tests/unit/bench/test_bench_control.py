"""The objects and the report of the control plane's bench; the measuring needs a cluster."""

from __future__ import annotations

import json

import pytest

from bench import control_inside, control_resources
from bench.control_table import TARGETS, page
from bench.figures import Figures
from penstock_operator.api import KINDS


def test_everything_that_is_asked_for_fits_its_schema() -> None:
    """Endpoints lead to backends of their own namespace, and nothing is asked for twice."""
    objects = [obj for _, obj in control_resources.resources(7, 4, control_resources.namespaces(3))]
    for obj in objects:
        KINDS[obj["kind"]].parse(obj | {"metadata": obj["metadata"] | {"uid": "u", "generation": 1}})
    keys = {(obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"]) for obj in objects}
    assert len(keys) == 11
    for obj in objects:
        if obj["kind"] == "ModelEndpoint":
            assert ("ModelBackend", obj["metadata"]["namespace"], obj["spec"]["backend"]) in keys


def test_the_bare_loop_applies_what_the_operator_renders_without_owners() -> None:
    """Owner references would name parents that are nowhere, and everything would be collected as garbage."""
    calls = control_inside._children(2, 1, ["a"])
    bodies = [json.loads(body) for _, body in calls]
    kinds = sorted(body["kind"] for body in bodies)
    assert kinds.count("Deployment") == 3  # two backends and the router
    assert len({path for path, _ in calls}) == len(calls)
    assert not any("ownerReferences" in body["metadata"] for body in bodies)
    assert all("penstock.dev/desired-hash" in body["metadata"]["annotations"] for body in bodies)


@pytest.mark.parametrize(("value", "verdict"), [(0.0, "reached"), (10_000.0, "missed")])
def test_page_holds_each_figure_against_its_bound_by_the_worst_sample(value: float, verdict: str) -> None:
    figures = Figures()
    for key, _, _ in TARGETS:
        figures.add(key, 0.0, "s")
        figures.add(key, value, "s")
    document = {
        "date": "2000-01-01",
        "machine": {"cpu": "x", "cores": 2, "system": "s", "python": "3", "load_average_before": 1.0},
        "asked": {"backends": 1, "endpoints": 1, "namespaces": 1, "report_pods": 2},
        "figures": figures.document(),
        "writes": {"restart": {}, "one change": {"apply Deployment": 1.0}},
    }
    text = page(document)
    assert text.count(f"| {verdict} |") == len(TARGETS)
    assert "| restart | none |" in text
    assert "| one change | apply Deployment 1 |" in text
