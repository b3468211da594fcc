"""Reports as they are kept: silence has a beginning, and a version has an end."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock_operator.kinds import BACKEND, CONFIG_MAP
from penstock_operator.reports import FRESH, Reports
from penstock_wire.control.report import (
    FIRST_BYTE_BUCKETS,
    BackendTotals,
    EndpointReport,
    RouterReport,
    SidecarReport,
    decode_sidecar,
    encode,
)
from tests.support.clocks.hand_clock import HandClock
from tests.support.worlds.operator_harness import Harness, endpoint, policy, serving, settings


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


async def test_a_version_that_a_pod_makes_up_leaves_room_for_changes() -> None:
    """One pod that was taken over must not end what the others of its backend can be told, or can report."""
    harness = await serving()
    highest = 2**53 - 1
    for made_up in (2**52 - 1, 2**52, 2**53 - 2, highest):
        harness.report("m", "m-backend-0", version=made_up)
        await harness.run()
    await harness.applied(policy(maxBatchSize=9))
    sent = settings(harness)
    assert (sent["version"] < highest - 2**51, sent["batching"]["maxBatchSize"]) == (True, 9)
    taken_up = SidecarReport(pod="p", uid="u", seq=1, state="ready", settings_version=sent["version"])
    assert decode_sidecar(encode(taken_up)) == taken_up


async def test_a_version_that_somebody_edited_is_not_followed_up() -> None:
    """Beyond the highest that a pod can report, each of its reports would be refused."""
    harness = await serving()

    def edited(obj: dict[str, Any]) -> None:
        obj["data"]["settings.json"] = obj["data"]["settings.json"].replace(
            '"version":1', f'"version":{2**53}'
        )

    harness.cluster.edit(CONFIG_MAP, "n", "m-backend-settings", edited)
    harness.cluster.edit(BACKEND, "n", "m", lambda obj: obj["status"].update(settingsVersion=2**60))
    await harness.run()
    version = settings(harness)["version"]
    assert version < 10
    assert harness.cluster.find(BACKEND, "n", "m")["status"]["settingsVersion"] == version


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


def test_names_that_a_router_makes_up_fill_no_memory() -> None:
    """It may be taken over: endpoints, backends and reasons that it makes up leave nothing behind."""
    harness = Harness()
    harness.apply(endpoint(backend="a"))
    sent = RouterReport(pod="r", uid="u", seq=1, state="ready")
    for seq in range(2, 12):
        made_up = {f"made-up-{seq}-{number}": BackendTotals(requests=seq) for number in range(100)}
        own = BackendTotals(
            requests=10 * seq, reasons={f"made-up-{seq}-{number}": 1 for number in range(100)}
        )
        ends = dict.fromkeys(("e", f"other-{seq}"), EndpointReport(backends=made_up | {"a": own}))
        harness.ctx.reports.router("n", msgspec.structs.replace(sent, seq=seq, endpoints=ends))
    traffic = harness.ctx.reports._traffic["n"]
    assert harness.ctx.reports.served("n", "e") == {"a": 90}
    assert traffic._last == {"u": {("e", "a", ""): 110}}
    assert [(slot.served, slot.errors) for slot in traffic._slots] == [({"e": {"a": 90}}, {})]
    harness.stop()


def test_a_backend_that_was_asked_is_counted_until_routers_let_go_of_it() -> None:
    """It leaves the split before they have taken that up, and may be back later."""
    asked = {"a", "b"}
    reports = Reports(HandClock(), asked=lambda _namespace, _endpoint: asked)
    for seq, counts in enumerate(({"a": 5, "b": 5}, {"a": 6, "b": 7}, {"a": 7}, {"a": 8, "b": 9, "c": 4}), 1):
        backends = {name: BackendTotals(requests=count) for name, count in counts.items()}
        ends = {"e": EndpointReport(backends=backends)}
        reports.router("n", RouterReport(pod="r", uid="u", seq=seq, state="ready", endpoints=ends))
        asked.discard("b")
    assert reports.served("n", "e") == {"a": 3, "b": 4}
