"""The objects and the verdicts of `bench.zero`; its cycles need a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from bench.zero import resources
from bench.zero.cycles import Seen
from bench.zero.table import beside_keda, figures, page, verdicts, wrong
from penstock_operator.api import KINDS
from tests.support.pages.page import DOCS, Page


def test_everything_that_is_asked_for_fits_its_schema() -> None:
    settings = ({}, {"mode": "External"}, {"objective": "100ms"})
    backends = [resources.backend("m", collector="192.0.2.1:9", **each) for each in settings]
    for obj in (*backends, resources.endpoint("m")):
        KINDS[obj["kind"]].parse(obj | {"metadata": obj["metadata"] | {"uid": "u", "generation": 1}})


def test_keda_is_asked_for_as_the_guide_says() -> None:
    """The ScaledObject is the guide's, but for names and numbers."""
    page = Page.of(DOCS / "how-to/other-scalers.md")
    [wanted] = [each for each in page.documents() if each["kind"] == "ScaledObject"]
    found = resources.scaled_object("digits", polling=5)
    assert found["metadata"].pop("namespace") == resources.NAMESPACE
    found["spec"] |= {"minReplicaCount": 1, "maxReplicaCount": 8}
    [trigger] = found["spec"]["triggers"]
    trigger["metadata"]["url"] = trigger["metadata"]["url"].replace("/zero/", "/models/")
    assert found == wanted


def pod(name: str, *, ready: bool) -> dict[str, Any]:
    status = {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    return {"metadata": {"name": name}, "status": status}


def test_what_is_seen_of_a_cycle() -> None:
    """The moments at which replicas rose from 0 and a first pod became ready; asleep again without pods."""
    seen = Seen()
    for at, replicas in ((1.0, 1), (2.0, 0), (3.0, 1), (4.0, 2)):
        seen.backend({"spec": {"replicas": replicas}}, at)
    assert (seen.scaled, seen.most) == ([3.0], 2)
    seen.pod("ADDED", pod("a", ready=False), 5.0)
    seen.pod("MODIFIED", pod("a", ready=True), 6.0)
    seen.pod("MODIFIED", pod("b", ready=True), 7.0)
    assert seen.ready == [6.0]
    seen.backend({"spec": {"replicas": 0}}, 8.0)
    seen.pod("DELETED", pod("a", ready=True), 9.0)
    assert not seen.asleep()
    seen.pod("DELETED", pod("b", ready=True), 9.0)
    assert seen.asleep()


def cycle(burst: int = 50, **more: Any) -> dict[str, Any]:
    times = {"to_scale_ms": 100.0, "ready_to_sent_ms": 50.0, "to_ready_ms": 9.0, "answered_ms": 9.0}
    counts = {"outcomes": {"ok": burst}, "executed": burst, "twice": 0, "replicas": 2, "late_ms": 1.0}
    return {"burst": burst, **counts, **times, **more}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, ""),
        ({"outcomes": {"ok": 49, "refused": 1}, "executed": 49}, "1 requests: refused"),
        ({"executed": 48}, "2 requests were in no batch"),
        ({"twice": 3}, "3 requests came twice"),
    ],
)
def test_what_is_lost_or_comes_twice_is_wrong(change: dict[str, Any], problem: str) -> None:
    problems = wrong(figures([cycle(), cycle(**change)]))
    assert bool(problems) == bool(problem)
    assert problem in "; ".join(problems)


def test_verdicts() -> None:
    """By the 99th percentile of all cycles."""
    found = figures([*(cycle() for _ in range(98)), *2 * [cycle(to_scale_ms=350.0)]])
    document = {"figures": found, "verdicts": verdicts(found)}
    assert [(each["found_ms"], each["reached"]) for each in document["verdicts"]] == [
        (350.0, False),
        (50.0, True),
    ]
    text = page(document)
    assert (text.count("| reached |"), text.count("| missed |")) == (1, 1)
    assert "100 cycles, 5000 requests: none lost" in text


@pytest.mark.parametrize(("ours", "reached"), [(250.0, True), (251.0, False)])
def test_ours_is_held_against_a_quarter_of_kedas(ours: float, reached: bool) -> None:
    """By the 99th percentile of both."""
    keda = figures(20 * [cycle(to_scale_ms=1000.0)])
    verdict = beside_keda(keda, figures(100 * [cycle(to_scale_ms=ours)]))
    assert (verdict["bound_ms"], verdict["found_ms"], verdict["reached"]) == (250.0, ours, reached)
    assert "| reached |" in page({"figures": keda, "verdicts": [verdict]}) or not reached
