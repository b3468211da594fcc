"""The scaling part of a ModelBackend's status: conditions, the recommendation, the history, the load."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock_operator import status
from penstock_operator.api.backendstatus import LoadStatus, ModelBackendStatus, ScalingEntry, ScalingInputs
from penstock_operator.autoscaling import Recommendation
from penstock_operator.status import BackendObserved
from penstock_wire.control.report import ByCost, Fit, SidecarReport
from tests.support.worlds.observed import LATER, NOW, WELL, backend, by_type, deployment, message, pod


def recommendation(verdict: Any = "Scale", available: bool = True, replicas: int = 4) -> Recommendation:
    return Recommendation(
        replicas=replicas,
        current=1,
        verdict=verdict,
        message="load 35 / targetLoad 10 = 4",
        inputs=ScalingInputs(load=35, target_load=10, wanted=4, ready_pods=1),
        metrics_available=available,
    )


@pytest.mark.parametrize(
    ("spec", "seen", "active", "metrics"),
    [
        ({}, {"recommendation": None}, ("True", "FollowingLoad"), ("Unknown", "NotLookedYet")),
        ({}, {}, ("True", "FollowingLoad"), ("True", "ReportsReceived")),
        ({}, {"recommendation": recommendation("Limited")}, ("True", "Limited"), ("True", "ReportsReceived")),
        (
            {},
            {"recommendation": recommendation("ShortOfProcessors")},
            ("True", "ShortOfProcessors"),
            ("True", "ReportsReceived"),
        ),
        (
            {},
            {"recommendation": recommendation("TooManyUnknown", available=False)},
            ("True", "FollowingLoad"),
            ("False", "TooManyUnknown"),
        ),
        ({}, {"foreign_scaler": "hpa"}, ("False", "ForeignScaler"), ("True", "ReportsReceived")),
        (
            {"replicas": 0},
            {"foreign_scaler": "me"},
            ("False", "ScalingDisabled"),
            ("True", "ReportsReceived"),
        ),
        (
            {},
            {"recommendation": recommendation("NoHolder")},
            ("True", "NoHolder"),
            ("True", "ReportsReceived"),
        ),
        ({}, {"target_note": "too much"}, ("True", "TargetUnreachable"), ("True", "ReportsReceived")),
        ({"mode": "External"}, {}, ("True", "External"), ("True", "ReportsReceived")),
        (
            {"mode": "External"},
            {"recommendation": recommendation("Limited")},
            ("True", "Limited"),
            ("True", "ReportsReceived"),
        ),
        ({"suspend": True}, {}, ("False", "Suspended"), None),
    ],
)
def test_scaling_conditions(
    spec: dict[str, Any], seen: dict[str, Any], active: tuple[str, str], metrics: tuple[str, str] | None
) -> None:
    """Whether it scales, and whether it has enough reports to."""
    mode = {"mode": spec.pop("mode")} if "mode" in spec else {}
    scaled = backend(autoscaling={"targetLoad": 10, **mode}, **spec)
    observed = replace(WELL, **({"recommendation": recommendation()} | seen))
    conditions = by_type(status.backend_status(scaled, observed, now=NOW))
    assert conditions["ScalingActive"] == active
    assert conditions.get("MetricsAvailable") == metrics


@pytest.mark.parametrize(
    ("seen", "replicas", "active"),
    [
        ({"foreign_scaler": "hpa"}, 2, ("False", "ForeignScaler")),
        ({"foreign_scaler": "me"}, 0, ("False", "ScalingDisabled")),
        ({"recommendation": recommendation("Limited")}, 2, ("True", "Limited")),
    ],
)
def test_a_new_leader_keeps_what_the_last_one_has_shown_until_it_looks(
    seen: dict[str, Any], replicas: int, active: tuple[str, str]
) -> None:
    """Else another client's number would seem to be ours for a moment, and a 0 set by hand would be lost."""
    scaled = backend(autoscaling={"targetLoad": 10}, replicas=replicas)
    document = status.backend_status(
        scaled, replace(WELL, **({"recommendation": recommendation()} | seen)), now=NOW
    )
    known = scaled.model_copy(update={"status": ModelBackendStatus.model_validate(document)})
    after = status.backend_status(known, replace(WELL, recommendation=None), now=LATER)
    assert by_type(after)["ScalingActive"] == active
    assert after["desiredReplicas"] == 4
    without = known.model_copy(update={"spec": backend(replicas=replicas).spec})
    plain = status.backend_status(without, replace(WELL, recommendation=None), now=LATER)
    assert plain["desiredReplicas"] == replicas
    assert "ScalingActive" not in by_type(plain)


def test_a_backend_that_is_no_longer_suspended_follows_the_load() -> None:
    """Before the first look, too: the old condition says what is over."""
    suspended = backend(autoscaling={"targetLoad": 10}, suspend=True)
    document = status.backend_status(suspended, replace(WELL, recommendation=None), now=NOW)
    again = backend(autoscaling={"targetLoad": 10}).model_copy(
        update={"status": ModelBackendStatus.model_validate(document)}
    )
    after = by_type(status.backend_status(again, replace(WELL, recommendation=None), now=LATER))
    assert after["ScalingActive"] == ("True", "FollowingLoad")


def test_a_recommendation_is_shown_with_the_terms_of_its_number() -> None:
    """They are refreshed where asked for, and with another number or verdict; its age stays till then."""
    scaled = backend(autoscaling={"targetLoad": 10})
    why, later = recommendation(), "2026-01-02T03:04:05Z"
    moved = replace(why, message="load 39", inputs=why.inputs.model_copy(update={"load": 39}))

    def shown(before: Any, recommended: Any, now: str = later, **seen: Any) -> tuple[str, str, int]:
        old = scaled.model_copy(update={"status": ModelBackendStatus.model_validate(before)})
        document = status.backend_status(old, replace(WELL, recommendation=recommended, **seen), now=now)
        new = document["recommendation"]
        return new["verdict"], new["since"], new["inputs"]["load"]

    first = status.backend_status(scaled, replace(WELL, recommendation=why), now=NOW)
    assert shown(first, moved) == ("Scale", NOW, 35)
    assert shown(first, moved, terms=True) == ("Scale", NOW, 39)
    assert shown(first, replace(moved, replicas=5)) == ("Scale", later, 39)
    assert shown(first, replace(moved, verdict="Delayed")) == ("Delayed", later, 39)
    assert shown(first, None) == ("Scale", NOW, 35)
    plain = status.backend_status(backend(), replace(WELL, recommendation=why), now=NOW)
    assert "recommendation" not in plain
    assert not status.terms_moved(scaled.status.recommendation, why)
    known = ModelBackendStatus.model_validate(first).recommendation
    assert [status.terms_moved(known, looked) for looked in (why, moved, None)] == [False, True, False]


def change(step: int) -> ScalingEntry:
    why = recommendation()
    return ScalingEntry(time=NOW, from_=step, to=step + 1, reason=why.message, inputs=why.inputs)


def test_scaling_history() -> None:
    """Newest first, at most ten, one entry for one change; its inputs are integers."""
    scaled = backend(autoscaling={"targetLoad": 10})
    for step in range(1, 13, 2):
        both = (change(step), change(step + 1))
        result = status.backend_status(scaled, replace(WELL, scaled=both), now=LATER)
        scaled = scaled.model_copy(update={"status": type(scaled.status).model_validate(result)})
    assert [entry["to"] for entry in result["scaling"]] == list(range(13, 3, -1))
    assert result["scaling"][0] == {
        "time": NOW,
        "from": 12,
        "to": 13,
        "reason": "load 35 / targetLoad 10 = 4",
        "inputs": {
            "load": 35,
            "held": 0,
            "targetLoad": 10,
            "refused": 0,
            "wanted": 4,
            "readyPods": 1,
            "silentPods": 0,
        },
    }
    for scaled_now in (both, ()):  # the answer to the last write was lost; nothing was changed
        seen = replace(WELL, scaled=scaled_now, recommendation=recommendation(replicas=7))
        again = status.backend_status(scaled, seen, now=LATER)
        assert again["scaling"] == result["scaling"]
        assert again["desiredReplicas"] == 7


def test_ready_while_it_scales_itself_up() -> None:
    """The autoscaler's coming pods do not make a backend unwell; asked-for ones do."""
    seen = replace(WELL, deployment=deployment(replicas=3, ready=1), pods=[pod(), pod("new", ready=False)])
    own = backend(replicas=3, autoscaling={"targetLoad": 1})
    assert by_type(status.backend_status(own, seen, now=NOW))["Ready"] == ("True", "Serving")
    assert by_type(status.backend_status(backend(replicas=3), seen, now=NOW))["Ready"] == (
        "False",
        "RollingOut",
    )


def test_the_pods_asked_for_and_those_needed_are_both_named_where_they_differ() -> None:
    """One ready pod is enough of a backend that comes back from 0."""
    seen = replace(WELL, deployment=deployment(replicas=2, ready=0), pods=[pod(ready=False)])
    own = backend(replicas=2, autoscaling={"minReplicas": 0, "scaleToZero": {"after": "1m"}})
    told = message(status.backend_status(own, seen, now=NOW), "Ready")
    assert told == "0 of 2 pods are ready; needed: 1"


def test_scaled_to_zero() -> None:
    """Asked for, so well; but nothing serves."""
    seen = BackendObserved(deployment=deployment(replicas=0, ready=0), settings_version=1)
    conditions = by_type(status.backend_status(backend(replicas=0), seen, now=NOW))
    assert (conditions["Ready"], conditions["Available"]) == (
        ("True", "ScaledToZero"),
        ("False", "ScaledToZero"),
    )


@pytest.mark.parametrize(
    ("old", "new", "moved"),
    [(None, 0, True), (0, 0, False), (0, 1, True), (1, 0, True), (100, 109, False), (100, 111, True)],
)
def test_a_load_has_moved_where_a_number_has_changed_by_more_than_a_tenth(
    old: int | None, new: int, moved: bool
) -> None:
    """From nothing and to nothing always."""
    before = None if old is None else LoadStatus(queued=old)
    assert status.load_moved(before, LoadStatus(queued=new)) == moved


def test_terms_that_a_sidecar_makes_up_do_not_stand_twice() -> None:
    """They are a set in the CRD: the apiserver would refuse the whole status."""
    batch = ByCost(items=1, cost=1, error=0, error_by_items=0)
    fit = Fit(a_ms=1, b_ms=1, n=1, work={f"{'x' * 64}{end}": 1.0 for end in "ab"}, batch=batch)
    shown = status.by_cost([SidecarReport(pod="m-1", uid="u", seq=1, state="ready", fit={"/": fit})])
    assert shown is not None
    assert shown.terms == ("x" * 64,)
