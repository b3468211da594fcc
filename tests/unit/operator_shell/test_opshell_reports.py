"""Reports as they are kept: silence has a beginning, and a version has an end."""

from __future__ import annotations

import msgspec

from penstock_operator.reports import FRESH, Reports
from penstock_wire.control.report import (
    FIRST_BYTE_BUCKETS,
    BackendTotals,
    EndpointReport,
    RouterReport,
    SidecarReport,
)
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


def test_releases_compare_what_comes_in_order_from_routers_that_are_there() -> None:
    """A straggler counts nothing; of a silent router, nobody knows; none that is gone is awaited."""
    clock = HandClock()
    reports = Reports(clock)
    reports.releases.follow("n", "e", "a", "b")

    def send(seq: int, requests: int, uid: str = "u", own: str = "") -> None:
        seconds = (requests, *[0] * (FIRST_BYTE_BUCKETS - 1))
        ends = {"e": EndpointReport(backends={"a": BackendTotals(requests=requests, seconds=seconds)})}
        sent = RouterReport(pod=uid, uid=uid, seq=seq, state="ready", endpoints=ends)
        reports.router("n", sent, endpoint=own)

    for seq, requests in ((1, 0), (2, 10), (4, 30), (3, 20), (5, 31)):
        send(seq, requests)
    send(1, 0, "own", own="e")
    assert reports.releases.take("n", "e").stable.requests == 31
    assert [reports.answered_lately("n", "e", name) for name in "ab"] == [31, 0]
    clock.turn(FRESH)
    send(6, 31)
    clock.turn(0.1)
    assert [reports.answered_lately("n", "e", name) for name in "ab"] == [31, None]
    reports.forget_pod("n", "own", "own")
    assert reports.answered_lately("n", "e", "b") == 0


def test_of_a_backend_that_is_gone_nothing_is_kept() -> None:
    """Its pods report while they drain: where backends come and go, their windows would be there for ever."""
    there = {"m"}
    reports = Reports(HandClock(), lambda _namespace, name: name in there)
    sent = SidecarReport(pod="m-1", uid="u", seq=1, state="ready")
    assert reports.sidecar("n", "m", sent).notable
    assert reports.age("n", "m") is not None
    there.clear()
    reports.forget_backend("n", "m")
    news = reports.sidecar("n", "m", msgspec.structs.replace(sent, seq=2, state="draining"))
    assert (news.taken, news.notable, reports.age("n", "m")) == (True, False, None)
    reports.forget_pod("n", "m-1", "u")
    assert (reports._windows, reports._sequences, reports._fresh_for) == ({}, {}, {})
