"""Reports as they are kept: silence has a beginning, and a version has an end."""

from __future__ import annotations

from penstock_operator.reports import FRESH, Reports
from penstock_wire.control.report import EndpointReport, RouterReport, SidecarReport
from tests.support.hand_clock import HandClock


def test_pods_that_fall_silent_are_named_once() -> None:
    """Silence is noticed when it begins."""
    clock = HandClock()
    reports = Reports(clock)
    reports.sidecar("n", "m", SidecarReport(pod="m-1", uid="u", seq=1, state="ready"))
    reports.router(
        "n", RouterReport(pod="r", uid="r", seq=1, state="ready", endpoints={"e": EndpointReport()})
    )
    looked, named = clock.time(), []
    for _ in range(12):
        clock.turn(2)
        named += reports.silent(looked)
        looked = clock.time()
    assert sorted(named) == [("n", ""), ("n", "m")]


def test_whoever_is_named_silent_is() -> None:
    """A look in the very moment when a report's time ends finds it there, and the next one finds silence."""
    clock = HandClock()
    reports = Reports(clock)
    reports.sidecar("n", "m", SidecarReport(pod="m-1", uid="u", seq=1, state="ready"))
    since = clock.time()
    clock.turn(FRESH)
    assert (reports.silent(since), list(reports.of_backend("n", "m"))) == ([], ["m-1"])
    since = clock.time()
    clock.turn(0.1)
    assert (reports.silent(since), list(reports.of_backend("n", "m"))) == ([("n", "m")], [])


def test_nonsense_versions_do_not_count() -> None:
    """A pod cannot drive the version to where integers end."""
    reports = Reports(HandClock())
    reports.sidecar("n", "m", SidecarReport(pod="m-1", uid="u", seq=1, state="ready", settings_version=2**60))
    reports.sidecar("n", "m", SidecarReport(pod="m-2", uid="v", seq=1, state="ready", settings_version=7))
    assert reports.highest_version(reports.of_backend("n", "m")) == 7
