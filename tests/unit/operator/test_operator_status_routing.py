"""What is observed of routers and policies becomes conditions of endpoints, splits and policies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock_operator import status
from penstock_operator.api import BatchPolicy, ModelEndpoint, TrafficSplit
from penstock_operator.api.match import Match
from penstock_operator.desired.traffic import EndpointPlan, SplitPlan, Weight
from penstock_operator.status import EndpointObserved, PolicyUse, RouterObserved, refusal
from penstock_wire.control.report import EndpointReport, RouterReport
from tests.support.worlds.observed import LATER, NOW, PULL, by_type, message, pod

# --- ModelEndpoint --------------------------------------------------------------------------------------


def router_report(name: str = "r1", version: int = 5, **endpoints: EndpointReport) -> RouterReport:
    return RouterReport(
        pod=name, uid="u", seq=1, state="ready", settings_version=version, endpoints=endpoints
    )


LISTENS = EndpointReport(listening=True)
ROUTER = RouterObserved(pods=[pod("r1")], reports={"r1": router_report(e=LISTENS)}, settings_version=5)
SEEN = EndpointObserved(
    plan=EndpointPlan(route="/e", backends=(Weight(name="a", weight=1),)),
    router=ROUTER,
    backends={"a": True},
    port=20001,
)


def endpoint(**old: Any) -> ModelEndpoint:
    metadata = {"name": "e", "namespace": "n", "generation": 2}
    return ModelEndpoint.parse({"metadata": metadata, "spec": {"backend": "a"}, "status": old})


def test_an_endpoint_that_is_well() -> None:
    """URL, backends, shares; and no change on a second look."""
    result = status.endpoint_status(endpoint(), SEEN, now=NOW)
    assert by_type(result) == {
        "Ready": ("True", "Serving"),
        "Accepted": ("True", "Accepted"),
        "BackendsReady": ("True", "PodsReady"),
        "RouterReady": ("True", "Listening"),
    }
    assert status.endpoint_status(endpoint(**result), SEEN, now=LATER) == result
    del result["conditions"]
    assert result == {
        "observedGeneration": 2,
        "url": "http://e.n.svc",
        "shares": "a 100%",
        "backends": [{"name": "a", "weight": 1, "ready": True}],
    }


@pytest.mark.parametrize(
    ("spec", "most", "note"),
    [
        ({}, 5_000, None),  # the endpoint's default, beside a policy that somebody made short
        ({"timeout": "30s"}, 30_000, None),
        ({"timeout": "2m"}, 120_000, None),
        ({"timeout": "2m"}, 30_000, "timeout is 2m, but sidecars end a request after"),
        ({"timeout": "2m", "timeouts": {"firstByte": "30s"}}, 30_000, None),  # 2m is for pieces of a stream
        ({"timeout": "2m", "timeouts": {"firstByte": "40s"}}, 30_000, "timeouts.firstByte is 40s, but"),
    ],
)
def test_an_endpoint_whose_requests_never_get_its_time(
    spec: dict[str, Any], most: int, note: str | None
) -> None:
    """A time that was chosen, and that each sidecar cuts short, is named with both numbers; it is served."""
    metadata = {"name": "e", "namespace": "n", "generation": 2}
    asked = ModelEndpoint.parse({"metadata": metadata, "spec": {"backend": "a", **spec}})
    seen = replace(SEEN, default_timeouts={"a": most, "unused": 1})
    result = status.endpoint_status(asked, seen, now=NOW)
    assert by_type(result)["Ready"] == ("True", "Serving" if note is None else "TimeoutUnreachable")
    if note is not None:
        assert note in message(result, "Ready")
        assert message(result, "Ready").endswith("batching (30s): raise that of a")


def of_next_generation(resource: Any) -> Any:
    """The same, changed once more."""
    metadata = resource.metadata.model_copy(update={"generation": resource.metadata.generation + 1})
    return resource.model_copy(update={"metadata": metadata})


IGNORED = "is neither shared nor own, and is ignored"
HIDDEN = "pods are ready, but no router finds them, of"


def routers(**more: Any) -> dict[str, Any]:
    return {"router": replace(ROUTER, **more)}


@pytest.mark.parametrize(
    ("change", "kind", "reason", "text"),
    [
        (
            {"taken": ["EndpointSlice/e-shared-router"]},
            "Accepted",
            "NameTaken",
            "not ours, so not touched: EndpointSlice/e-shared-router; choose another name or delete it",
        ),
        ({"refused": refusal("Service e", 422, "no")}, "Accepted", "WriteRejected", "Service e: no"),
        ({"port": None}, "Accepted", "NoPort", "all 10000 ports of the namespace's router are taken"),
        (
            {"plan": replace(SEEN.plan, route="", route_taken_by="old")},
            "Accepted",
            "RouteConflict",
            "route /e is served for the older ModelEndpoint old; Service e serves this one",
        ),
        (
            {"plan": replace(SEEN.plan, missing=("b", "c"))},
            "BackendsReady",
            "BackendMissing",
            "no such ModelBackend: b, c",
        ),
        ({"backends": {"a": False}}, "BackendsReady", "BackendNotReady", "no pod is ready of: a"),
        (
            {"plan": replace(SEEN.plan, untried=("c",))},
            "BackendsReady",
            "BackendNotReady",
            "the others have its part until a pod is ready of: c",
        ),
        (
            {"plan": replace(SEEN.plan, untried=("c",)), "backends": {"a": False}},
            "BackendsReady",
            "BackendNotReady",
            "no pod is ready of: a; the others have its part until a pod is ready of: c",
        ),
        (
            {"backends": {"a": False}, "without_service": {"a", "other"}},
            "BackendsReady",
            "NoService",
            f"{HIDDEN}: a; the Service a-backend is not there or not Penstock's",
        ),
        (
            routers(taken=["Service/penstock-router"]),
            "RouterReady",
            "NameTaken",
            "not ours, so not touched: Service/penstock-router; delete it",
        ),
        (routers(refused=refusal("Service r", 422, "no")), "RouterReady", "WriteRejected", "Service r: no"),
        (routers(pods=[]), "RouterReady", "RouterStarting", "no router pod is ready"),
        (
            routers(pods=[pod("r1", ready=False, containerStatuses=[PULL])]),
            "RouterReady",
            "ImagePullFailed",
            "pod r1: container model: image example/model:1: Back-off pulling image",
        ),
        (
            routers(settings_version=6),
            "RouterReady",
            "Waiting",
            "0 of 1 ready routers have settings version 6; behind: r1",
        ),
        (
            routers(reports={"r1": router_report(e=EndpointReport(error="address in use"))}),
            "RouterReady",
            "PortFailed",
            "r1 cannot listen for it: address in use",
        ),
        (
            routers(reports={"r1": router_report()}),
            "RouterReady",
            "PortFailed",
            "r1 cannot listen for it: no error given",
        ),
    ],
)
def test_an_endpoint_that_is_not(change: dict[str, Any], kind: str, reason: str, text: str) -> None:
    """Each cause stands in its own condition and in the summary."""
    result = status.endpoint_status(endpoint(), replace(SEEN, **change), now=NOW)
    for which in (kind, "Ready"):
        assert by_type(result)[which] == ("False", reason)
        assert message(result, which) == text
    waits = reason in ("BackendNotReady", "NoService", "RouterStarting", "Waiting")
    assert ("Reconciling" in by_type(result)) == waits
    assert ("Stalled" in by_type(result)) == (not waits)


@pytest.mark.parametrize(
    ("count", "more", "text"),
    [
        (1, {}, "the only ready router"),
        (2, {}, "all 2 ready routers"),
        (1, {"sort": "dedicated"}, "the only ready dedicated router"),
        (2, {"sort": "shared", "home": "h"}, "all 2 ready shared routers, in h"),
        (
            1,
            {"door_refused": refusal("Service r", 422, "no")},
            "the only ready router; of the namespace's front door, refused: Service r: no",
        ),
        (
            1,
            {"unknown_mode": ""},
            f"the only ready router; the namespace's label penstock.dev/router= {IGNORED}",
        ),
    ],
)
def test_an_endpoint_says_which_routers_serve_it(count: int, more: dict[str, Any], text: str) -> None:
    """And what is wrong around them; it is ready all the same."""
    names = [f"r{number}" for number in range(count)]
    reports = {name: router_report(e=LISTENS) for name in names}
    change = routers(pods=[pod(name) for name in names], reports=reports, **more)
    result = status.endpoint_status(endpoint(), replace(SEEN, **change), now=NOW)
    assert by_type(result)["Ready"] == ("True", "Serving")
    assert message(result, "RouterReady") == text


def test_shared_routers_that_are_behind_are_said_to_be_in_their_namespace() -> None:
    change = routers(settings_version=6, sort="shared", home="h")
    result = status.endpoint_status(endpoint(), replace(SEEN, **change), now=NOW)
    assert (
        message(result, "Ready") == "0 of 1 ready shared routers, in h, have settings version 6; behind: r1"
    )


def test_silent_routers_leave_the_summary_as_it_was() -> None:
    """A restart of the operator makes no endpoint unready; a new one waits for a first report."""
    silent = replace(SEEN, router=replace(ROUTER, reports={}))
    new = by_type(status.endpoint_status(endpoint(), silent, now=NOW))
    assert (new["RouterReady"], new["Ready"]) == (("Unknown", "NoReports"), ("Unknown", "NoReports"))
    known = endpoint(**status.endpoint_status(endpoint(), SEEN, now=NOW))
    old = by_type(status.endpoint_status(known, silent, now=LATER))
    assert (old["RouterReady"], old["Ready"]) == (("Unknown", "NoReports"), ("True", "Serving"))
    changed = by_type(status.endpoint_status(of_next_generation(known), silent, now=LATER))
    assert (changed["RouterReady"], changed["Ready"]) == (("Unknown", "NoReports"), ("Unknown", "NoReports"))


def test_settings_that_are_not_written_yet_are_waited_for() -> None:
    """No report can be of them: neither is the endpoint served, nor has a port failed."""
    for reports in ({"r1": router_report(e=LISTENS)}, {"r1": router_report()}, {}):
        seen = replace(SEEN, router=replace(ROUTER, unmade=True, reports=reports))
        conditions = by_type(status.endpoint_status(endpoint(), seen, now=NOW))
        assert (conditions["RouterReady"], conditions["Ready"]) == (
            ("False", "Waiting"),
            ("False", "Waiting"),
        )
        assert ("Reconciling" in conditions, "Stalled" in conditions) == (True, False)


def test_a_backend_of_weight_0_need_not_be_ready() -> None:
    """It gets nothing."""
    plan = replace(SEEN.plan, backends=(Weight(name="a", weight=1), Weight(name="b", weight=0)))
    seen = replace(SEEN, plan=plan, backends={"a": True, "b": False})
    result = status.endpoint_status(endpoint(), seen, now=NOW)
    assert by_type(result)["Ready"] == ("True", "Serving")
    assert result["backends"][1] == {"name": "b", "weight": 0, "ready": False}


def test_a_backend_that_requests_ask_for_by_a_rule_is_to_be_ready() -> None:
    """Whatever its weight: they wait for it."""
    rule = Match(header="x", value="1")
    plan = replace(
        SEEN.plan, backends=(Weight(name="a", weight=1), Weight(name="b", weight=0, match=(rule,)))
    )
    result = status.endpoint_status(
        endpoint(), replace(SEEN, plan=plan, backends={"a": True, "b": False}), now=NOW
    )
    assert by_type(result)["BackendsReady"] == ("False", "BackendNotReady")


# --- TrafficSplit ---------------------------------------------------------------------------------------


def split(**old: Any) -> TrafficSplit:
    shares = [{"name": "a", "weight": 9}, {"name": "b", "weight": 1}]
    metadata = {"name": "s", "namespace": "n", "generation": 2}
    return TrafficSplit.parse(
        {"metadata": metadata, "spec": {"endpoint": "e", "backends": shares}, "status": old}
    )


BOTH = {"a": True, "b": True}


def test_a_split_that_is_taken_up() -> None:
    """`applied` follows when every ready router has reported the settings."""
    result = status.split_status(split(), SplitPlan(accepted=True), ROUTER, BOTH, now=NOW)
    assert by_type(result) == {"Ready": ("True", "Applied"), "Accepted": ("True", "Accepted")}
    assert result["shares"] == "a 90%, b 10%"
    assert result["weights"] == [
        {"name": "a", "desired": 9, "applied": 9},
        {"name": "b", "desired": 1, "applied": 1},
    ]
    again = status.split_status(split(**result), SplitPlan(accepted=True), ROUTER, BOTH, now=LATER)
    assert again == result


def test_a_split_on_its_way() -> None:
    """Until then the weights that were applied before stand, and the first time none."""
    behind = replace(ROUTER, settings_version=6)
    result = status.split_status(split(), SplitPlan(accepted=True), behind, BOTH, now=NOW)
    assert by_type(result)["Ready"] == ("False", "Waiting")
    assert "Reconciling" in by_type(result)
    assert result["weights"][0] == {"name": "a", "desired": 9}
    old = split(weights=[{"name": "a", "desired": 5, "applied": 5}])
    result = status.split_status(old, SplitPlan(accepted=True), behind, BOTH, now=NOW)
    assert result["weights"] == [{"name": "a", "desired": 9, "applied": 5}, {"name": "b", "desired": 1}]


@pytest.mark.parametrize(
    ("plan", "kind", "reason", "text"),
    [
        (
            SplitPlan(accepted=False, conflict_with="old"),
            "Accepted",
            "Conflict",
            "TrafficSplit old splits ModelEndpoint e already: it is older, or as old and first by name",
        ),
        (
            SplitPlan(accepted=False, endpoint_missing=True),
            "Accepted",
            "EndpointMissing",
            "no such ModelEndpoint: e",
        ),
        (
            SplitPlan(accepted=True, missing=("b",)),
            "Ready",
            "BackendMissing",
            "no such ModelBackend: b; the others share its weight",
        ),
        (
            SplitPlan(accepted=True, missing=("b",), on_missing="Fail"),
            "Ready",
            "BackendMissing",
            "no such ModelBackend: b; its requests fail",
        ),
        (
            SplitPlan(accepted=True, faults=("spec.backends[0].match[1].regex: expected less",)),
            "Ready",
            "InvalidMatch",
            "rules that cannot be used, and match nothing: spec.backends[0].match[1].regex: expected less",
        ),
    ],
)
def test_a_split_that_cannot_be(plan: SplitPlan, kind: str, reason: str, text: str) -> None:
    """The cause, and Stalled: only a person can mend it."""
    result = status.split_status(split(), plan, ROUTER, {"a": True}, now=NOW)
    for which in (kind, "Ready"):
        assert by_type(result)[which] == ("False", reason)
        assert message(result, which) == text
    assert by_type(result)["Stalled"] == ("True", reason)
    if plan.missing:
        applied = 0 if plan.on_missing == "Share" else 1
        assert result["weights"][1] == {"name": "b", "desired": 1, "applied": applied}


@pytest.mark.parametrize(
    ("left_out", "applied", "text"),
    [
        (("b",), 0, "no pod was ready yet of: b; until then the others have its part"),
        ((), 1, "no pod was ready yet of: b; requests wait for the first"),
    ],
)
def test_a_split_with_a_backend_that_was_never_ready(
    left_out: tuple[str, ...], applied: int, text: str
) -> None:
    """It waits for that backend by name; the split does not need a person."""
    plan = SplitPlan(accepted=True, untried=("b",), left_out=left_out)
    result = status.split_status(split(), plan, ROUTER, BOTH, now=NOW)
    assert by_type(result)["Ready"] == ("False", "WaitingForBackend")
    assert message(result, "Ready") == text
    assert "Reconciling" in by_type(result)
    assert "Stalled" not in by_type(result)
    assert [weight["applied"] for weight in result["weights"]] == [9, applied]


def test_a_split_of_silent_routers() -> None:
    """As with endpoints: unknown at first, kept later."""
    silent = replace(ROUTER, reports={})
    plan = SplitPlan(accepted=True)
    first = status.split_status(split(), plan, silent, BOTH, now=NOW)
    assert by_type(first)["Ready"] == ("Unknown", "NoReports")
    well = split(**status.split_status(split(), plan, ROUTER, BOTH, now=NOW))
    assert by_type(status.split_status(well, plan, silent, BOTH, now=NOW))["Ready"] == ("True", "Applied")
    changed = status.split_status(of_next_generation(well), plan, silent, BOTH, now=NOW)
    assert by_type(changed)["Ready"] == ("Unknown", "NoReports")


# --- BatchPolicy ----------------------------------------------------------------------------------------


def policy(**old: Any) -> BatchPolicy:
    spec = old.pop("spec", {})
    return BatchPolicy.parse({"metadata": {"name": "p", "generation": 8}, "spec": spec, "status": old})


@pytest.mark.parametrize(
    ("uses", "truth", "reason", "text"),
    [
        ([], "True", "Unused", "no ModelBackend and no pod names it"),
        ([("b", 2, 2)], "True", "Applied", ""),
        ([("b", 0, 0)], "True", "Applied", ""),
        ([("b", 2, 1), ("c", 1, 1)], "False", "Applying", "2 of 3 ready pods; behind: b"),
    ],
)
def test_policy(uses: list[tuple[str, int, int]], truth: str, reason: str, text: str) -> None:
    """Whether all ready pods of all its users obey it."""
    seen = [PolicyUse(name=name, ready_pods=ready, applied_pods=done) for name, ready, done in uses]
    result = status.policy_status(policy(), seen, now=NOW)
    assert by_type(result)["Ready"] == (truth, reason)
    assert message(result, "Ready") == text
    assert ("Reconciling" in by_type(result)) == (truth == "False")
    assert status.policy_status(policy(**result), seen, now=LATER) == result


def test_applied_generation() -> None:
    """It moves when all ready pods of a backend have taken the policy up, and not before."""
    old = policy(backends=[{"name": "b", "appliedGeneration": 7, "pods": 2}, {"name": "gone", "pods": 1}])
    half = status.policy_status(old, [PolicyUse(name="b", ready_pods=2, applied_pods=1)], now=NOW)
    assert half["backends"] == [{"name": "b", "appliedGeneration": 7, "pods": 1}]
    full = status.policy_status(old, [PolicyUse(name="b", ready_pods=2, applied_pods=2)], now=NOW)
    assert full["backends"] == [{"name": "b", "appliedGeneration": 8, "pods": 2}]


def test_policy_of_unreachable_size() -> None:
    """Ready, with both numbers."""
    result = status.policy_status(policy(spec={"maxBatchSize": 32, "maxQueuedItems": 8}), [], now=NOW)
    assert by_type(result)["Ready"] == ("True", "BatchUnreachable")
    assert message(result, "Ready") == "maxBatchSize is 32, but maxQueuedItems lets no more than 8 wait"
