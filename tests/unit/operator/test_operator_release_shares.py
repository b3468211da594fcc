"""What a release asks for: from the stored status to weights, mirrors, users and floors."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from penstock_operator.api import BatchPolicySpec, ModelBackend, ModelEndpoint, TrafficSplit
from penstock_operator.api.batchpolicy import Priority
from penstock_operator.autoscaling import Floor, PodLoad, Sample, ScalerState, recommend, target_of
from penstock_operator.desired import traffic
from penstock_operator.desired.traffic import SplitPlan
from penstock_operator.releases import capacity, machine
from penstock_operator.releases.stored import stored
from penstock_operator.status import RouterObserved, split_status
from penstock_wire.control.router_settings import Compare, Mirror
from penstock_wire.control.traffic_rules import Match
from tests.support.worlds.releases import seen

NOW = datetime.datetime(2026, 11, 23, 9, tzinfo=datetime.UTC)
RULE = {"match": [{"header": "x-user", "value": "me"}]}
OTHER = {"name": "other", "percent": 5} | RULE


def split(
    release: dict[str, Any] | None = None,
    *,
    candidate: dict[str, Any] | None = None,
    compare: dict[str, Any] | None = None,
    **spec: Any,
) -> TrafficSplit:
    """A split whose backends say 70 and 30, with a release of `old` and `new` in its status."""
    shares = [{"name": "old", "weight": 70}, {"name": "new", "weight": 30} | (candidate or {})]
    strategy = {"stable": "old", "candidate": "new", "steps": [{"setWeight": 10}]}
    if compare is not None:
        strategy["analysis"] = {"compare": compare}
    state = {"stable": "old", "candidate": "new", "phase": "Progressing", "weight": 0} | (release or {})
    return TrafficSplit.parse(
        {
            "metadata": {"name": "s", "namespace": "n", "generation": 2},
            "spec": {"endpoint": "e", "backends": shares, "strategy": strategy, **spec},
            "status": {} if release is None else {"release": state},
        }
    )


def planned(
    resource: TrafficSplit,
    *,
    ready: dict[str, bool] | None = None,
    untried: tuple[str, ...] = (),
    priorities: dict[str, Priority] | None = None,
) -> traffic.TrafficPlan:
    endpoint = ModelEndpoint.parse({"metadata": {"name": "e", "namespace": "n"}, "spec": {"backend": "old"}})
    backends = {"old": True, "new": True} if ready is None else ready
    return traffic.plan([endpoint], [resource], backends, untried, priorities)


def weights(resource: TrafficSplit, **more: Any) -> dict[str, int]:
    return {share.name: share.weight for share in planned(resource, **more).endpoints["e"].backends}


@pytest.mark.parametrize("release", [None, {"weight": 0}, {"weight": 10}])
def test_without_its_stable_the_candidate_answers_at_any_weight(release: dict[str, Any] | None) -> None:
    """Also before a first look, as where a promoted release is applied anew; unless requests are to fail."""
    shared = weights(split(release), ready={"new": True})
    assert shared.keys() == {"new"}
    assert shared["new"] > 0
    failing = split(release, onMissing="Fail")
    assert weights(failing, ready={"new": True})["old"] >= 90
    assert weights(split(release), ready={}) == weights(split(release)), "nobody is there"


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        (None, {"old": 100, "new": 0}),
        ({"weight": 10}, {"old": 90, "new": 10}),
        ({"weight": 100, "phase": "Promoted"}, {"old": 0, "new": 100}),
        ({"weight": 10, "stable": "older"}, {"old": 100, "new": 0}),
    ],
    ids=["none yet", "a step", "promoted", "of another pair"],
)
def test_weights_are_the_stored_releases(release: dict[str, Any] | None, expected: dict[str, int]) -> None:
    """Whatever the spec has; of a release between other backends nothing holds."""
    assert weights(split(release)) == expected


def test_without_a_strategy_the_specs_weights_hold_again() -> None:
    assert weights(split({"weight": 10}, strategy=None)) == {"old": 70, "new": 30}


@pytest.mark.parametrize(
    ("status", "step"),
    [
        ({"step": 2, "stepStarted": "2026-11-23T09:00:00Z"}, 2),
        ({"stepStarted": "2026-11-23T09:00:00Z"}, None),
        ({"step": 2}, None),
        ({"step": 2, "stepStarted": "yesterday"}, None),
        ({"step": 2, "stepStarted": "2026-11-23T09:00:00"}, None),
    ],
    ids=["whole", "no step", "no time", "not a time", "a time of no zone"],
)
def test_a_release_is_what_its_status_holds(status: dict[str, Any], step: int | None) -> None:
    """What cannot be read is as if none had begun."""
    resource = split({"weight": 10})
    resource = TrafficSplit.parse(
        resource.document() | {"status": status | {"release": resource.status.release}}
    )
    release = stored(resource)
    assert (release.step if release else None) == step


@pytest.mark.parametrize(
    ("ready", "untried", "expected"),
    [
        ({"old": True}, (), {"old": 90}),
        ({"new": True}, (), {"new": 10}),
        ({"old": True, "new": False}, ("new",), {"old": 90}),
        ({"old": True, "new": False}, (), {"old": 90, "new": 10}),
    ],
    ids=["no candidate", "no stable", "never ready", "lost its pods"],
)
def test_backends_that_cannot_serve_are_left_out_as_ever(
    ready: dict[str, bool], untried: tuple[str, ...], expected: dict[str, int]
) -> None:
    assert weights(split({"weight": 10}), ready=ready, untried=untried) == expected


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        (split({"mirror": 50}), [Mirror(name="new", percent=50, compare=Compare(ignore=(), tolerance=0))]),
        (
            split({"mirror": 50}, compare={"ignore": ["$.id"], "tolerance": 0.1}, mirrors=[OTHER]),
            [
                Mirror(name="other", percent=5, match=(Match(header="x-user", value="me"),)),
                Mirror(name="new", percent=50, compare=Compare(ignore=("$.id",), tolerance=0.1)),
            ],
        ),
        (split({"mirror": 0}), []),
        (split({"mirror": 50, "weight": 1}), []),
        (split({"mirror": 50}, candidate=RULE), []),
        (split(), []),
    ],
    ids=["a step", "beside others", "0 %", "has requests of its own", "has rules", "not begun"],
)
def test_a_step_with_mirror_copies_to_the_candidate(resource: TrafficSplit, expected: list[Mirror]) -> None:
    """It is a backend or a mirror in the router's settings, never both, and used by the split either way."""
    plan = planned(resource)
    decided = plan.endpoints["e"]
    assert list(decided.mirrors) == expected
    copied = {mirror.name for mirror in expected}
    assert {share.name for share in decided.backends} == {"old", "new"} - copied
    assert plan.used_by["new"] == ("TrafficSplit/s",)


def test_copies_have_the_least_urgent_level_of_the_candidate() -> None:
    (mirror,) = planned(split({"mirror": 50}), priorities={"new": Priority(levels=3)}).endpoints["e"].mirrors
    assert (mirror.priority_header, mirror.priority_level) == ("x-penstock-priority", 3)


def backend(**scaling: Any) -> ModelBackend:
    model = {"container": {"image": "model:1"}, "protocol": "instances", "port": 8080, "readyPath": "/"}
    return ModelBackend.parse(
        {
            "metadata": {"name": "new", "namespace": "n"},
            "spec": {"model": model, "autoscaling": {"targetLoad": 10, "stableWindow": "6s"} | scaling},
        }
    )


def pods(count: int) -> list[PodLoad]:
    """Idle pods."""
    samples = tuple(Sample(at=float(at), load=0) for at in range(994, 1001))
    return [
        PodLoad(name=f"p{number}", ready=True, was_ready=True, left=False, samples=samples)
        for number in range(count)
    ]


@pytest.mark.parametrize("mode", ["Builtin", "External"])
@pytest.mark.parametrize(
    ("scaling", "floor", "current", "expected"),
    [
        ({"maxReplicas": 9}, 4, 1, (4, "Scale")),
        ({"maxReplicas": 9}, 4, 4, (4, "Release")),
        ({"maxReplicas": 3}, 4, 1, (3, "Scale")),
        ({"maxReplicas": 9, "minReplicas": 5}, 4, 5, (5, "Steady")),
        ({"maxReplicas": 9, "minReplicas": 0, "scaleToZero": {"after": "30s"}}, 2, 0, (2, "NoReports")),
        ({"maxReplicas": 9, "minReplicas": 0, "scaleToZero": {"after": "30s"}}, 2, 2, (2, "Release")),
        ({"maxReplicas": 9}, 0, 1, (1, "Steady")),
    ],
    ids=["raised", "held", "within maxReplicas", "below minReplicas", "woken", "not put to sleep", "none"],
)
def test_a_floor_is_as_min_replicas(
    mode: str, scaling: dict[str, Any], floor: int, current: int, expected: tuple[int, str]
) -> None:
    """And the recommendation says whose it is, also to who asks for it over HTTP."""
    spec = backend(**scaling, mode=mode)
    target = target_of(spec, BatchPolicySpec(), NOW, Floor(floor, "s"))
    assert target is not None
    state = ScalerState(first_look=0.0)
    recommendation, _ = recommend(target, current=current, pods=pods(current), state=state, now=1000.0)
    assert (recommendation.replicas, recommendation.verdict) == expected
    assert ("TrafficSplit s" in recommendation.message) == (floor > int(scaling.get("minReplicas", 1)))
    if recommendation.verdict == "Release":
        assert recommendation.limit == f"the release of TrafficSplit s needs {floor}"


@pytest.mark.parametrize(
    "time",
    [
        "", "soon", "2026-11-23", "2026-11-23T08:00:00", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00+23:00",
        "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-10:00", "2026-11-23T10:00:00+05:00",
    ],
)  # fmt: skip
@pytest.mark.parametrize("phase", ["Progressing", "Promoted"])
def test_a_status_that_somebody_wrote_stops_nothing(phase: str, time: str) -> None:
    """Times that cannot be read are as good as absent, others are in UTC; a step below the first is that."""
    resource = split({"phase": phase, "settled": time, "judged": time, "idleSince": time, "replicas": 2})
    strategy = resource.spec.strategy
    assert strategy is not None
    for started in (time, "2026-11-23T08:59:00Z"):
        members = {"step": -7, "step_started": started}
        edited = resource.model_copy(update={"status": resource.status.model_copy(update=members)})
        release = stored(edited)
        assert isinstance(capacity.floors(strategy, release, NOW), dict)
        looked = machine.advance(strategy, release, seen(now=NOW)).release
        assert looked.step >= 0
        state = looked.state
        known = [each for each in (state.settled, state.judged, state.idle_since) if each]
        assert all(each.startswith("2026-11-23T0") and each.endswith(":00Z") for each in known)
    assert release is not None
    assert release.state.settled == ("2026-11-23T05:00:00Z" if "+05" in time else None)


def test_while_the_endpoint_is_missing_nothing_is_said_of_a_release() -> None:
    """What was said last may be of a strategy that the spec has no longer; how far it has come stays."""
    resource = split({"weight": 10, "reason": "InvalidStrategy", "message": "of before"})
    begun = {"release": resource.status.release, "step": 0, "stepStarted": "2026-11-23T09:00:00Z"}
    resource = TrafficSplit.parse(resource.document() | {"status": begun})
    assert stored(resource) is not None
    plan = SplitPlan(accepted=False, endpoint_missing=True)
    result = split_status(
        resource, plan, RouterObserved(), {"old": True}, now="2026-11-23T09:00:00Z", release=stored(resource)
    )
    reasons = {each["type"]: each["reason"] for each in result["conditions"]}
    assert reasons == dict.fromkeys(("Accepted", "Ready", "Stalled"), "EndpointMissing")
    assert result["release"]["weight"] == 10
