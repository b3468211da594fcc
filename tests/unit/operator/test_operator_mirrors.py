"""Observed shares and mirrors: what the routers count becomes a split's status; what they get of it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_operator import status
from penstock_operator.api import ModelEndpoint, TrafficSplit
from penstock_operator.api.batchpolicy import Priority
from penstock_operator.desired import traffic
from penstock_operator.desired.traffic import SplitPlan
from penstock_operator.status import RouterObserved
from penstock_operator.traffic_window import SPAN, TrafficWindow
from penstock_wire.control.report import BackendTotals, Difference, EndpointReport, MirrorTotals, RouterReport
from penstock_wire.control.router_settings import Compare, Mirror
from penstock_wire.control.traffic_rules import Match
from tests.support.worlds.observed import LATER, NOW, pod

COMPARED = MirrorTotals(
    sent=300,
    dropped={"no_pod": 2, "stream": 1},
    unanswered={"queue_full": 9, "deadline": 1},
    causes={"no_pod": "no pod of the mirror is ready", "queue_full": "pod p answered 503 queue_full"},
    skipped={"refused": 10},
    codes={"200": 290},
    compared=290,
    differing={"value": 2},
    answered=290,
    seconds=2.9,
    served_seconds=1.45,
    first=(Difference(path="$.p[0].score", kind="value", expected="number", found="number", count=2),),
)


def report(uid: str = "u", requests: dict[str, int] | None = None, **mirrors: MirrorTotals) -> RouterReport:
    backends = {name: BackendTotals(requests=count) for name, count in (requests or {}).items()}
    ends = {"e": EndpointReport(listening=True, backends=backends, mirrors=mirrors)}
    return RouterReport(pod=uid, uid=uid, seq=1, state="ready", settings_version=5, endpoints=ends)


def split(old: dict[str, Any] | None = None, **spec: Any) -> TrafficSplit:
    shares = [{"name": "a", "weight": 9}, {"name": "b", "weight": 1}]
    return TrafficSplit.parse(
        {
            "metadata": {"name": "s", "namespace": "n", "generation": 2},
            "spec": {"endpoint": "e", "backends": shares, **spec},
            "status": old or {},
        }
    )


def status_of(resource: TrafficSplit, *reports: RouterReport, now: str = NOW, **more: Any) -> dict[str, Any]:
    seen = RouterObserved(pods=[pod("u")], reports={sent.pod: sent for sent in reports}, settings_version=5)
    backends = dict.fromkeys("abc", True)
    return status.split_status(resource, SplitPlan(accepted=True), seen, backends, now=now, **more)


def test_shares_are_observed_over_a_minute_and_all_routers() -> None:
    """Differences of counters: a router's first report counts nothing, a restarted one counts from zero."""
    window = TrafficWindow()
    for now, uid, a, b in (
        (0.0, "one", 1000, 5000),  # nobody knows when these were
        (1.0, "one", 1030, 5004),
        (2.0, "two", 7, 7),
        (3.0, "two", 17, 8),
        (11.0, "two", 5, 0),  # it began anew
    ):
        window.record(report(uid, {"a": a, "b": b}), now)
    assert window.of("e", 12.0) == {"a": 45, "b": 5}
    assert window.of("other", 12.0) == {}
    assert window.of("e", 1.0 + SPAN) == {"a": 5}
    window.forget("two")
    window.record(report("two", {"a": 500, "b": 0}), 70.0)
    assert window.of("e", 12.0 + SPAN) == {}


def test_errors_are_counted_over_a_minute_by_reason_for_all_endpoints() -> None:
    """As the requests are; a reason that a router makes up takes no room."""
    window = TrafficWindow()
    for number, now in enumerate((0.0, 1.0, 12.0)):
        reasons = {"deadline": 7 * number, "model_answer": number, f"made up {number}": 9}
        totals = {"a": BackendTotals(requests=100 * number, reasons=reasons)}
        ends = {name: EndpointReport(listening=True, backends=totals) for name in ("e", "f")}
        window.record(RouterReport(pod="u", uid="u", seq=number, state="ready", endpoints=ends), now)
    assert window.errors("a", 13.0) == (400, {"deadline": 28, "model_answer": 4})
    assert window.errors("a", 1.0 + SPAN) == (200, {"deadline": 14, "model_answer": 2})
    assert (window.errors("b", 13.0), window.failing(13.0)) == ((0, {}), {"a"})
    assert window.failing(12.0 + SPAN) == frozenset()


def test_a_backend_that_is_asked_again_brings_no_past_with_it() -> None:
    """While it is not asked, a router's report does not have it."""
    window = TrafficWindow()
    for now, backends in (
        (0.0, {"a": 1000, "b": 500}),
        (1.0, {"a": 1100}),
        (2.0, {"a": 1190, "b": 510}),
    ):
        window.record(report("one", backends), now)
    assert window.of("e", 3.0) == {"a": 190, "b": 10}


def test_endpoints_without_requests_take_no_room() -> None:
    """There may be thousands in a namespace, each with a split that asks for its own."""
    window = TrafficWindow()
    for now in (0.0, 1.0, 2.0):
        window.record(report("one", {"a": 1000, "b": 500}), now)
    assert [(slot.served, slot.errors, dict(slot.requests)) for slot in window._slots] == [({}, {}, {})]


def test_the_status_has_the_observed_shares() -> None:
    """Of each backend and in one line; none where there were no requests; the same on a second look."""
    first = status_of(split(), report(), served={"a": 178, "b": 22, "gone": 50})
    assert first["observed"] == "a 89%, b 11%"
    assert [weight["observed"] for weight in first["weights"]] == ["89%", "11%"]
    assert status_of(split(first), report(), now=LATER, served={"a": 178, "b": 22}) == first
    quiet = status_of(split(), report(), served={})
    assert "observed" not in quiet
    assert quiet["weights"] == [
        {"name": "a", "desired": 9, "applied": 9},
        {"name": "b", "desired": 1, "applied": 1},
    ]


def test_the_status_says_of_mirrors_what_all_routers_counted() -> None:
    """Sums, a percentage, the path that differs most, and a sentence."""
    mirrors = [{"name": "c", "compare": {}}, {"name": "d"}]
    other = MirrorTotals(
        sent=10, compared=10, differing={"type": 1}, answered=10, seconds=0.1, dropped={"no_pod": 1},
        causes={"no_pod": "what a second router found first"},
    )  # fmt: skip
    written = status_of(split(mirrors=mirrors), report("u", c=COMPARED), report("v", c=other, other=other))
    first = "$.p[0].score (value: number → number)"
    assert written["mirrors"] == [
        {
            "name": "c",
            "sent": 310,
            "dropped": 4,
            "mismatchedPercent": "1",
            "firstDifference": first,
            "summary": f"310 sent; 1 % of 300 differ, most at {first}; "
            "10 ms against the served answers' 4.8 ms; "
            "4 not copied: 3 no_pod (no pod of the mirror is ready), 1 stream; "
            "10 not answered by its model: 9 queue_full (pod p answered 503 queue_full), 1 deadline; "
            "10 not compared: 10 refused",
        },
        {"name": "d", "sent": 0, "dropped": 0, "summary": "no such ModelBackend: d; 0 sent"},
    ]
    assert written["mirrored"].startswith("c: 310 sent")
    assert (
        "mirrors" not in status_of(split(), report("u", c=COMPARED))
        or not status_of(split(), report())["mirrors"]
    )


def test_a_mirror_that_got_no_copy_says_why() -> None:
    """The first refused copy is in the status, with what it was; without a cause, the count."""
    totals = MirrorTotals(dropped={"refused": 1}, causes={"refused": "the client got 503 deadline"})
    (state,) = status_of(split(mirrors=[{"name": "c"}]), report("u", c=totals))["mirrors"]
    assert state["summary"] == "0 sent; 1 not copied: 1 refused (the client got 503 deadline)"
    older = MirrorTotals(dropped={"refused": 1})
    (state,) = status_of(split(mirrors=[{"name": "c"}]), report("u", c=older))["mirrors"]
    assert state["summary"] == "0 sent; 1 not copied: 1 refused"


@pytest.mark.parametrize(
    ("differing", "seconds", "percent", "times"),
    [
        (1000, 99.6, "100", "100 ms against the served answers' 1 ms"),
        (7, 100_000.0, "0.7", "100 s against the served answers' 1 ms"),
        (996, 0.0, "100", "0 ms against the served answers' 1 ms"),
        (53, 12.3, "5.3", "12 ms against the served answers' 1 ms"),
    ],
)
def test_figures_of_mirrors_are_written_without_exponents(
    differing: int, seconds: float, percent: str, times: str
) -> None:
    """With two digits, however large."""
    total = MirrorTotals(
        sent=1000, compared=1000, differing={"value": differing}, answered=1000, seconds=seconds,
        served_seconds=1.0,
    )  # fmt: skip
    (state,) = status_of(split(mirrors=[{"name": "c", "compare": {}}]), report("u", c=total))["mirrors"]
    assert state["mismatchedPercent"] == percent
    assert state["summary"].endswith(times)


@pytest.mark.parametrize(
    ("priorities", "header", "level"),
    [({}, "", 1), ({"c": Priority(levels=3, header="X-Urgency")}, "x-urgency", 3)],
)
def test_the_router_gets_the_mirrors_of_the_split_that_decides(
    priorities: dict[str, Priority], header: str, level: int
) -> None:
    """With the least urgent level; the mirror is in use, and paths of its model are closed to clients."""
    route = ModelEndpoint.parse({"metadata": {"name": "e", "uid": "u"}, "spec": {"backend": "a"}})
    rules = [{"header": "X-Group", "value": "beta"}, {"cookie": "g", "regex": "a{2}"}]
    compare = {"ignore": ["$.id"], "tolerance": 0.01}
    mirrors = [{"name": "c", "percent": 20, "match": rules, "compare": compare}]
    plan = traffic.plan([route], [split(mirrors=mirrors)], dict.fromkeys("abc", True), (), priorities)
    (settings,) = traffic.router_endpoints([route], plan, {"e": 20000}, {"c": ["/-/reconfigure"]})
    assert settings.mirrors == (
        Mirror(
            name="c",
            percent=20,
            match=(Match(header="X-Group", value="beta"), Match(cookie="g", regex="a{2}")),
            priority_header=header,
            priority_level=level,
            compare=Compare(ignore=("$.id",), tolerance=0.01),
        ),
    )
    assert [backend.name for backend in settings.backends] == ["a", "b"]
    assert settings.closed == ("/-/reconfigure",)
    assert plan.used_by["c"] == ("TrafficSplit/s",)
    without = traffic.plan([route], [], dict.fromkeys("abc", True), (), priorities)
    assert without.endpoints["e"].mirrors == ()


def test_a_rule_of_a_mirror_that_cannot_be_used_is_a_fault_of_the_split() -> None:
    """Named by its place, behind those of backends; the router gets the rule, and leaves it out itself."""
    route = ModelEndpoint.parse({"metadata": {"name": "e", "uid": "u"}, "spec": {"backend": "a"}})
    large = {"header": "x", "regex": "(.{100}){10}"}
    mirrors = [{"name": "c"}, {"name": "d", "match": [{"header": "x", "prefix": ""}, large]}]
    shares = [{"name": "a", "weight": 1, "match": [large]}]
    made = split(mirrors=mirrors, backends=shares)
    plan = traffic.plan([route], [made], dict.fromkeys("acd", True))
    expected = "regex: expected regular expressions of at most"
    assert [fault.partition(", found")[0] for fault in plan.splits["s"].faults] == [
        f"spec.backends[0].match[0].{expected} 1000 RE2 instructions together",
        f"spec.mirrors[1].match[1].{expected} 250 RE2 instructions together",
    ]
    assert [len(mirror.match) for mirror in plan.endpoints["e"].mirrors] == [0, 2]
    reported = status.split_status(
        made, plan.splits["s"], RouterObserved(pods=[], reports={}, settings_version=5), {}, now=NOW
    )
    (ready,) = [known for known in reported["conditions"] if known["type"] == "Ready"]
    assert (ready["reason"], "spec.mirrors[1].match[1]" in ready["message"]) == ("InvalidMatch", True)
