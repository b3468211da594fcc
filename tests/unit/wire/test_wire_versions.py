"""Versions meet: an upgrade of the operator leaves older sidecars running; each side reads the other's words.

What a later version adds, wherever it adds it, is not in the way of an earlier one; what an earlier one does
not say has a default.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock_wire.control import report, router_settings, settings


def later(value: Any, *, free: bool = False) -> Any:
    """The document as a later version may write it: with unknown members in every object.

    Args:
        free: the object's members are names, not fields: what is in them is of ours again.
    """
    if isinstance(value, dict):
        kept = {
            name: member if name == "userConfig" else later(member, free=name in FREE)
            for name, member in value.items()
        }
        return kept if free else kept | {"fromLater": {"a": [1, None]}, "fromLaterToo": True}
    return [later(member) for member in value] if isinstance(value, list) else value


FREE = {"refused", "fit", "codes", "reasons", "backends", "endpoints", "mirrors", "tenants"}
"""Members that hold a map by name (those that hold a list do not matter)."""

SETTINGS = settings.Settings(
    version=3,
    backend="b",
    batching=settings.Batching(max_batch_size=7, fairness=settings.Fairness(header="x-tenant")),
    user_config={"any": {"thing": 1}},
)
SERVED = router_settings.Endpoint(
    name="e", port=20000, backends=(router_settings.WeightedBackend(name="b", weight=2),)
)
ROUTER = router_settings.RouterSettings(
    version=4,
    endpoints=(SERVED,),
    tenants={"n": router_settings.Tenant(port=10000, endpoints=(SERVED,))},
)
SIDECAR_REPORT = report.SidecarReport(
    pod="p",
    uid="u",
    seq=1,
    state="ready",
    items=report.Items(queued=2),
    totals=report.Totals(arrived=3, refused={"queue_full": 1}),
    fit={"/p": report.Fit(a_ms=1.0, b_ms=2.0, n=3)},
    reconfigure=report.Reconfigure(version=1, ok=True),
)
ROUTER_REPORT = report.RouterReport(
    pod="p",
    uid="u",
    seq=1,
    state="ready",
    endpoints={"e": report.EndpointReport(backends={"b": report.BackendTotals(codes={"200": 1})})},
    tenants={"n": report.TenantReport(door=True, endpoints={"e": report.EndpointReport(listening=True)})},
)


@pytest.mark.parametrize(
    ("document", "decode"),
    [
        (SETTINGS, settings.decode),
        (ROUTER, router_settings.decode),
        (SIDECAR_REPORT, report.decode_sidecar),
        (ROUTER_REPORT, report.decode_router),
    ],
    ids=["settings", "router-settings", "sidecar-report", "router-report"],
)
def test_what_a_later_version_adds_is_ignored_at_every_level(document: Any, decode: Any) -> None:
    """An older sidecar obeys the known members of newer settings; an older operator reads newer reports."""
    extended = later(json.loads(settings.encode(document)))
    assert "fromLater" in extended
    assert decode(json.dumps(extended).encode()) == document


def test_an_answer_with_more_in_it_still_brings_the_settings() -> None:
    """The settings in it are handed on as they came, for the decoder above."""
    extended = {"v": 1, "nextReportMs": 2000, "settings": later(json.loads(settings.encode(SETTINGS)))}
    answer, document = report.decode_answer(json.dumps(later(extended)).encode())
    assert answer.next_report_ms == 2000
    assert document is not None
    assert settings.decode(document) == SETTINGS


@pytest.mark.parametrize("decode", [report.decode_sidecar, report.decode_router])
def test_an_earlier_report_has_defaults_for_what_it_does_not_say(decode: Any) -> None:
    """These five members were there from the beginning; everything since has a default."""
    decoded = decode(b'{"v": 1, "pod": "p", "uid": "u", "seq": 1, "state": "ready"}')
    assert (decoded.pod, decoded.settings_version) == ("p", 0)


def test_earlier_settings_have_defaults_for_what_they_do_not_say() -> None:
    """A newer sidecar beside an older operator."""
    assert settings.decode(b'{"v": 1, "version": 2}') == settings.Settings(version=2)
    assert router_settings.decode(b'{"v": 1, "version": 2, "endpoints": []}').version == 2
