"""What golden files do not show: versions, ports, who serves what."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_operator.api import BatchPolicy, ModelBackend, ModelEndpoint, TrafficSplit
from penstock_operator.api.match import Match
from penstock_operator.desired import backend as backends
from penstock_operator.desired import deployment, labels, objects, ports, router, settings, traffic
from penstock_operator.desired.config import RenderConfig
from penstock_operator.desired.traffic import Weight
from penstock_wire.control import traffic_rules

CONFIG = RenderConfig(sidecar_image="s", router_image="r")


def backend(name: str = "b", **spec: Any) -> ModelBackend:
    return ModelBackend.parse(
        {"metadata": {"name": name, "uid": name}, "spec": {"model": {"container": {"image": "i"}}} | spec}
    )


def endpoint(
    name: str, day: int = 1, status: Any = None, deleted: bool = False, **spec: Any
) -> ModelEndpoint:
    stamp = f"2026-01-{day:02}T00:00:00Z"
    metadata = {"name": name, "uid": name, "creationTimestamp": stamp}
    if deleted:
        metadata["deletionTimestamp"] = stamp
    return ModelEndpoint.parse(
        {"metadata": metadata, "spec": {"backend": "a"} | spec, "status": status or {}}
    )


def split(name: str, to: str, day: int = 1, uid: str = "", **weights: int) -> TrafficSplit:
    metadata = {"name": name, "uid": uid or name, "creationTimestamp": f"2026-01-{day:02}T00:00:00Z"}
    shares = [{"name": key, "weight": value} for key, value in weights.items()]
    return TrafficSplit.parse({"metadata": metadata, "spec": {"endpoint": to, "backends": shares}})


# --- settings and their version --------------------------------------------------------------------------


def recorded(document: settings.Versioned) -> dict[str, Any]:
    return settings.configmap({"name": "c"}, document.document)


def test_version_begins_at_one_and_stays() -> None:
    """Equal settings keep their version, byte for byte."""
    make = settings.for_sidecar(backend(), None)
    first = settings.next_version(make, recorded=None, status_version=0, reported=0)
    assert (first.version, first.changed) == (1, True)
    again = settings.next_version(make, recorded=recorded(first), status_version=1, reported=1)
    assert (again.version, again.changed, again.document) == (1, False, first.document)


@pytest.mark.parametrize(
    ("status_version", "reported", "version"), [(0, 0, 2), (1, 1, 2), (5, 1, 6), (1, 9, 10), (7, 9, 10)]
)
def test_a_change_raises_the_version_above_all_that_is_known(
    status_version: int, reported: int, version: int
) -> None:
    """1 + max(ConfigMap, status, reported): no pod that remembers more will refuse it."""
    first = settings.next_version(
        settings.for_sidecar(backend(), None), recorded=None, status_version=0, reported=0
    )
    changed = settings.next_version(
        settings.for_sidecar(backend(batching={"maxBatchSize": 2}), None),
        recorded=recorded(first),
        status_version=status_version,
        reported=reported,
    )
    assert (changed.version, changed.changed) == (version, True)


def test_a_lost_configmap_is_made_anew_above_what_pods_know() -> None:
    """Pods that obey version 4 obey the new record too."""
    make = settings.for_sidecar(backend(), None)
    assert settings.next_version(make, recorded=None, status_version=4, reported=4).version == 5


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"settings.json": "no json"},
        {"settings.json": "[1]"},
        {"settings.json": "{}"},
        {"settings.json": '{"version": "1"}'},
        {"settings.json": '{"version": true}'},
        {"settings.json": '{"version": -1}'},
    ],
)
def test_a_record_that_cannot_be_read_is_none(data: Any) -> None:
    """Somebody's edit of the ConfigMap is overwritten, not obeyed."""
    assert settings.recorded_version({"data": data}) is None
    assert settings.recorded_version(None) is None


def test_a_hand_edited_record_is_mended() -> None:
    """Other bytes under the same version get the next version."""
    make = settings.for_sidecar(backend(), None)
    first = settings.next_version(make, recorded=None, status_version=0, reported=0)
    edited = {"data": {"settings.json": first.document.decode().replace("32", "16")}}
    mended = settings.next_version(make, recorded=edited, status_version=1, reported=1)
    assert (mended.version, mended.changed) == (2, True)


def test_settings_follow_the_policy() -> None:
    """A policy's change reaches the document; its metadata does not."""
    policy = BatchPolicy.parse({"metadata": {"name": "p", "generation": 9}, "spec": {"maxBatchSize": 4}})
    named = backend(batchPolicyRef="p")
    assert settings.for_sidecar(named, policy)(1) != settings.for_sidecar(named, None)(1)
    assert b'"maxBatchSize":4' in settings.for_sidecar(named, policy)(1)


# --- objects ---------------------------------------------------------------------------------------------


def rendered(**spec: Any) -> dict[str, dict[str, Any]]:
    objects = backends.backend_objects(
        backend(**spec),
        document=b"{}",
        config=CONFIG,
        pinned=deployment.pinned_template(backend(**spec), config=CONFIG, new_secret="s", live=None),
    )
    return {item["kind"]: item for item in objects}


def test_replicas_decide_only_number_and_budget() -> None:
    """Scaling rolls nothing: the pod template stays, byte for byte."""
    first, three = rendered(replicas=1), rendered(replicas=3)
    assert "PodDisruptionBudget" not in first
    assert "PodDisruptionBudget" in three
    template = [each["Deployment"]["spec"]["template"] for each in (first, three, rendered(replicas=0))]
    assert template[0] == template[1] == template[2]


@pytest.mark.parametrize(
    "spec",
    [
        {"batching": {"maxBatchSize": 2}},
        {"batchPolicyRef": "p"},
        {"autoscaling": {"targetLoad": 3}},
        {"suspend": True},
        {"maxOngoingRequests": 3},
        {"userConfig": {"threshold": 3}},
        {"batching": {"latencyObjective": "1s", "priority": {"levels": 2}, "fairness": {"header": "a"}}},
    ],
)
def test_what_is_hot_rolls_nothing(spec: dict[str, Any]) -> None:
    """Batching, the policy, scaling, the limit and userConfig never enter the pod template."""
    assert rendered(**spec)["Deployment"] == rendered()["Deployment"]
    python = {"model": {"python": {"target": "a:B", "image": "i"}}}
    assert rendered(**spec, **python)["Deployment"] == rendered(**python)["Deployment"]


@pytest.mark.parametrize(
    "spec",
    [
        {"model": {"container": {"image": "j"}}},
        {"drain": {"timeout": "1s"}},
        {"podTemplate": {"annotations": {"a": "b"}}},
        {"sidecar": {"logLevel": "debug"}},
        {"model": {"container": {"image": "i"}, "protocol": "v2"}},
        {"model": {"container": {"image": "i"}, "reconfigurePath": "/c"}},
        {"warmup": {"requests": [{"path": "/p"}]}},
    ],
)
def test_what_rolls_changes_the_template(spec: dict[str, Any]) -> None:
    """Model, drain, podTemplate, sidecar and warm-up do."""
    assert rendered(**spec)["Deployment"]["spec"]["template"] != rendered()["Deployment"]["spec"]["template"]


def test_the_settings_bring_what_is_hot_of_a_backend() -> None:
    """The limit where nothing is batched, with its default, and the userConfig, as any JSON."""
    default = json.loads(settings.for_sidecar(backend(), None)(1))
    assert (default["maxOngoingRequests"], default["userConfig"]) == (100, None)
    for config in ({"a": [1, {"b": None}]}, "text", 3, [], False):
        document = settings.for_sidecar(backend(maxOngoingRequests=7, userConfig=config), None)(1)
        decoded = json.loads(document)
        assert (decoded["maxOngoingRequests"], decoded["userConfig"]) == (7, config)


def test_warm_up_requests_are_of_the_pods_own_template() -> None:
    """They travel in an annotation of the pod, mounted as a file: a change rolls, old pods keep theirs."""

    def pod(body: Any) -> dict[str, Any]:
        requests = [{"path": "/p", "headers": {"a": "b"}, "body": body}, {"path": "/q", "method": "GET"}]
        objects = rendered(warmup={"requests": requests, "timeout": "5s"})
        template: dict[str, Any] = objects["Deployment"]["spec"]["template"]
        return template

    template = pod({"instances": [1]})
    annotation = json.loads(template["metadata"]["annotations"]["penstock.dev/warmup"])
    assert annotation == [
        {"path": "/p", "method": "POST", "headers": {"a": "b"}, "body": {"instances": [1]}},
        {"path": "/q", "method": "GET", "headers": {}, "body": None},
    ]
    spec = template["spec"]
    (volume,) = [volume for volume in spec["volumes"] if volume["name"] == "penstock-warmup"]
    assert volume["downwardAPI"]["items"] == [
        {
            "path": "warmup.json",
            "fieldRef": {"fieldPath": "metadata.annotations['penstock.dev/warmup']"},
        }
    ]
    arguments = spec["initContainers"][0]["args"]
    assert arguments[arguments.index("--warmup") + 1] == "/etc/penstock/warmup/warmup.json"
    assert arguments[arguments.index("--warmup-timeout") + 1] == "5s"
    assert "penstock-warmup" not in str(spec["containers"])
    assert pod({"instances": [2]}) != template


def test_our_labels_win() -> None:
    """A label of the user's that a stored object smuggled in never takes a pod out of its selector."""
    template = rendered(podTemplate={"labels": {labels.BACKEND: "other", "a": "b"}})["Deployment"]["spec"][
        "template"
    ]
    assert template["metadata"]["labels"] == labels.of_backend("b") | {"a": "b"}


def test_only_the_sidecar_sees_the_token() -> None:
    """No container of the user's mounts a token of any audience."""
    spec = rendered()["Deployment"]["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert [mount["name"] for mount in spec["containers"][0]["volumeMounts"]] == ["penstock-tmp"]
    assert "penstock-token" in [mount["name"] for mount in spec["initContainers"][0]["volumeMounts"]]


@pytest.mark.parametrize(
    ("model", "takes"),
    [
        ({"container": {"image": "i"}}, False),
        ({"container": {"image": "i"}, "reconfigurePath": "/c"}, True),
        ({"python": {"image": "i", "target": "m:C"}}, True),
    ],
)
def test_model_and_sidecar_share_what_shows_who_reconfigures(model: dict[str, Any], takes: bool) -> None:
    """Where the model takes a userConfig; the secret of the drain is another, which the model has not."""
    source = next(value for value in model.values() if isinstance(value, dict))
    source["env"] = [
        {"name": "PENSTOCK_RECONFIGURE_SECRET", "value": "the user's"},
        {"name": "LAST", "value": "1"},
    ]
    spec = rendered(model=model)["Deployment"]["spec"]["template"]["spec"]
    (ours,), (its,) = (
        [
            {variable["name"]: variable.get("value") for variable in container["env"]}
            for container in spec[kind]
        ]
        for kind in ("initContainers", "containers")
    )
    assert [variable["name"] for variable in spec["containers"][0]["env"]].count(
        "PENSTOCK_RECONFIGURE_SECRET"
    ) == 1
    assert its["LAST"] == "1"
    secret = ours.get("PENSTOCK_RECONFIGURE_SECRET")
    assert (secret is not None) == takes
    assert its["PENSTOCK_RECONFIGURE_SECRET"] == (secret or "the user's")
    assert ours["PENSTOCK_DRAIN_SECRET"] not in its.values()
    assert ours["PENSTOCK_DRAIN_SECRET"] not in (secret or "")


def test_the_hash_tells_what_was_desired() -> None:
    """The stamp does not change the hash it holds; a changed or dropped field does."""
    deployment = rendered()["Deployment"]
    stamped = objects.stamped(deployment)
    assert labels.DESIRED_HASH not in deployment["metadata"].get("annotations", {})
    assert stamped["metadata"]["annotations"][labels.DESIRED_HASH] == objects.desired_hash(deployment)
    assert objects.desired_hash(stamped) == objects.desired_hash(deployment)
    assert objects.stamped(stamped) == stamped
    assert objects.desired_hash(rendered(replicas=2)["Deployment"]) != objects.desired_hash(deployment)
    noted = deployment | {"metadata": deployment["metadata"] | {"annotations": {"a": "b"}}}
    assert objects.desired_hash(objects.stamped(noted)) == objects.desired_hash(noted)
    assert objects.desired_hash(noted) != objects.desired_hash(deployment)


_TEXT = st.text(st.characters(exclude_characters="\x7f", exclude_categories=()))
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([0.25, 1.5, -3.0]) | _TEXT,
    lambda each: st.lists(each) | st.dictionaries(_TEXT, each),
    max_leaves=20,
)


@given(st.dictionaries(_TEXT.filter(lambda name: name != "metadata"), _JSON))
def test_the_hash_is_what_versions_before_wrote(spec: dict[str, Any]) -> None:
    """Otherwise an upgrade would write each object of a cluster."""
    assert objects.desired_hash({"spec": spec}) == objects.digest({"spec": spec})


# --- ports -----------------------------------------------------------------------------------------------


def service(name: str, port: int, day: int = 1) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "labels": {labels.ENDPOINT: name},
            "creationTimestamp": f"2026-01-{day:02}T00:00:00Z",
        },
        "spec": {"ports": [{"port": 80, "targetPort": port}]},
    }


names = st.sets(st.text("abcdef", min_size=1, max_size=3), max_size=30)


@given(wanted=names, others=names)
def test_ports_are_unique_stable_and_independent_of_order(wanted: set[str], others: set[str]) -> None:
    """A port once given stays when endpoints come and go; no two share one."""
    first = ports.allocate(wanted, [])
    assert sorted(first) == sorted(wanted)
    assert len(set(first.values())) == len(first)
    assert all(ports.FIRST <= port <= ports.LAST for port in first.values())
    assert ports.allocate(sorted(wanted, reverse=True), []) == first
    live = [service(name, port) for name, port in first.items()]
    after = ports.allocate(wanted | others, live)
    assert {name: after[name] for name in wanted} == first
    assert len(set(after.values())) == len(after)


def test_the_older_of_two_services_keeps_a_port() -> None:
    """A copied Service does not take its original's port away."""
    allocated = ports.allocate(["a", "b"], [service("b", 20005, day=2), service("a", 20005, day=1)])
    assert allocated["a"] == 20005
    assert allocated["b"] != 20005


def test_the_port_of_a_service_on_its_way_out_is_not_given_away() -> None:
    """Routers may still listen there for the endpoint that is gone."""
    taken = ports.allocate(["a"], [])["a"]
    assert ports.allocate(["a"], [service("gone", taken)])["a"] != taken


def test_a_service_that_records_no_port_of_ours_gets_one() -> None:
    """A hand-edited targetPort is mended."""
    edited = service("a", 8080)
    named = service("b", 0) | {"spec": {"ports": [{"port": 80, "targetPort": "http"}]}}
    allocated = ports.allocate(["a", "b"], [edited, named])
    assert all(ports.FIRST <= port <= ports.LAST for port in allocated.values())


def test_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes when all ports are taken has none; who has one keeps it."""
    monkeypatch.setattr(ports, "LAST", ports.FIRST + 1)
    allocated = ports.allocate(["c", "d", "e"], [service("e", 20001)])
    assert allocated["e"] == 20001
    assert len(allocated) == 2


# --- traffic ---------------------------------------------------------------------------------------------


def test_an_endpoint_alone() -> None:
    """Its backend has all the weight."""
    plan = traffic.plan([endpoint("e")], [], {"a": True})
    assert plan.endpoints["e"].backends == (Weight(name="a", weight=1),)
    assert plan.endpoints["e"].route == "/e"
    assert plan.used_by == {"a": ("ModelEndpoint/e",)}


def test_a_split_overrides() -> None:
    """The split's weights hold and it uses the backends; the endpoint's own is what it falls back to."""
    plan = traffic.plan([endpoint("e")], [split("s", "e", b=9, c=1)], {"a": True, "b": True, "c": False})
    assert plan.endpoints["e"].backends == (Weight(name="b", weight=9), Weight(name="c", weight=1))
    assert plan.endpoints["e"].split == "s"
    assert plan.splits["s"].accepted
    assert plan.used_by == {
        "a": ("ModelEndpoint/e",),
        "b": ("TrafficSplit/s",),
        "c": ("TrafficSplit/s",),
    }


def test_the_oldest_split_stands() -> None:
    """The status of the younger one names the winner."""
    plan = traffic.plan([endpoint("e")], [split("new", "e", 2, b=1), split("old", "e", 1, a=1)], {"a": True})
    assert plan.endpoints["e"].split == "old"
    assert plan.splits["old"].accepted
    assert (plan.splits["new"].accepted, plan.splits["new"].conflict_with) == (False, "old")


def test_of_two_splits_of_one_second_the_first_by_name_stands() -> None:
    """Timestamps are whole seconds: their names decide, which people see and choose, and not their uids."""
    first, second = split("first", "e", a=1, uid="2"), split("second", "e", b=1, uid="1")
    plan = traffic.plan([endpoint("e")], [second, first], {"a": True})
    assert plan.endpoints["e"].split == "first"
    assert plan.splits["second"].conflict_with == "first"


def test_a_split_of_no_endpoint() -> None:
    """It is not accepted, and uses nothing."""
    plan = traffic.plan([], [split("s", "e", a=1)], {"a": True})
    assert plan.splits["s"].endpoint_missing
    assert not plan.splits["s"].accepted
    assert plan.used_by == {}


@pytest.mark.parametrize(
    ("there", "weights"),
    [
        ({"a", "b"}, {"a": 9, "b": 1}),
        ({"a"}, {"a": 9}),
        ({"b"}, {"b": 1}),
        (set(), {"a": 9, "b": 1}),
    ],
)
def test_missing_backends_share_their_weight(there: set[str], weights: dict[str, int]) -> None:
    """The router gets those that exist; all, to hold their requests, if none exists."""
    plan = traffic.plan([endpoint("e")], [split("s", "e", a=9, b=1)], dict.fromkeys(there, True))
    assert {share.name: share.weight for share in plan.endpoints["e"].backends} == weights
    assert set(plan.endpoints["e"].missing) == {"a", "b"} - there
    assert set(plan.splits["s"].missing) == {"a", "b"} - there


def test_only_one_of_weight_0_is_left() -> None:
    """Weight 0 gets nothing, not even when it alone exists."""
    plan = traffic.plan([endpoint("e")], [split("s", "e", a=1, b=0)], {"b": True})
    assert {share.name: share.weight for share in plan.endpoints["e"].backends} == {"a": 1, "b": 0}


@pytest.mark.parametrize(
    ("backends", "weights"),
    [
        ({"a": False, "x": True, "y": True}, {"x": 9, "y": 1}),
        ({"a": True, "x": True, "y": True}, {"a": 1}),
        ({"a": False, "y": True}, {"y": 1}),
        ({"a": False, "x": False, "y": False}, {"a": 1}),
        ({"x": True}, {"x": 9}),
        ({}, {"a": 1}),
    ],
)
def test_the_last_weights_stay_until_the_backend_is_ready(
    backends: dict[str, bool], weights: dict[str, int]
) -> None:
    """When a split is deleted, requests stay with who served them as long as `backend` cannot."""
    last = {"backends": [{"name": "x", "weight": 9, "ready": True}, {"name": "y", "weight": 1}]}
    plan = traffic.plan([endpoint("e", status=last)], [], backends)
    assert {share.name: share.weight for share in plan.endpoints["e"].backends} == weights


@pytest.mark.parametrize(
    ("backends", "untried", "weights", "left_out"),
    [
        ({"a": True, "b": False}, {"b"}, {"a": 9}, ("b",)),
        ({"a": True, "b": False}, set(), {"a": 9, "b": 1}, ()),
        ({"a": False, "b": False}, {"b"}, {"a": 9, "b": 1}, ()),
        ({"a": False, "b": False}, {"a", "b"}, {"a": 9, "b": 1}, ()),
        ({"a": False, "b": True}, {"a"}, {"b": 1}, ("a",)),
        ({"b": False}, {"b"}, {"b": 1}, ()),
    ],
)
def test_a_backend_that_was_never_ready_has_no_share_while_another_is_ready(
    backends: dict[str, bool], untried: set[str], weights: dict[str, int], left_out: tuple[str, ...]
) -> None:
    """One that was ready once keeps its share, as all do while none is ready: requests are then held."""
    plan = traffic.plan([endpoint("e")], [split("s", "e", a=9, b=1)], backends, untried)
    assert {share.name: share.weight for share in plan.endpoints["e"].backends} == weights
    assert set(plan.endpoints["e"].untried) == untried
    assert (set(plan.splits["s"].untried), plan.splits["s"].left_out) == (untried, left_out)
    assert "TrafficSplit/s" in plan.used_by["b"]


def test_weight_0_neither_waits_nor_takes_over() -> None:
    """A ready backend of weight 0 gets nothing, and one that was never ready holds no request up."""
    backends = {"a": False, "b": True, "c": False}
    plan = traffic.plan([endpoint("e")], [split("s", "e", a=1, b=0, c=0)], backends, {"a", "c"})
    assert {share.name: share.weight for share in plan.endpoints["e"].backends} == {"a": 1, "b": 0, "c": 0}
    assert (plan.splits["s"].untried, plan.splits["s"].left_out) == (("a",), ())


@pytest.mark.parametrize(
    ("backends", "untried", "shares", "left_out"),
    [
        ({"a": True, "b": True}, set(), {"a": 1, "b": 0, "c": 9}, ()),
        ({"a": True, "b": False}, {"b"}, {"a": 1, "b": 0, "c": 9}, ()),
        ({"a": True, "b": True, "c": False}, {"c"}, {"a": 1, "b": 0}, ("c",)),
    ],
)
def test_who_is_asked_for_by_a_rule_stays_and_with_fail_the_missing_too(
    backends: dict[str, bool], untried: set[str], shares: dict[str, int], left_out: tuple[str, ...]
) -> None:
    """A backend with rules that was never ready has no weight, but the requests that ask for it."""
    rule = {"header": "X-Group", "value": "beta"}
    asked = split("s", "e", a=1, b=0, c=9)
    ruled = asked.spec.backends[1].model_copy(update={"match": (Match.model_validate(rule),)})
    spec = asked.spec.model_copy(
        update={"on_missing": "Fail", "backends": (asked.spec.backends[0], ruled, asked.spec.backends[2])}
    )
    plan = traffic.plan([endpoint("e")], [asked.model_copy(update={"spec": spec})], backends, untried)
    (sent,) = traffic.router_endpoints([endpoint("e")], plan, {"e": 20000}, {})
    assert {share.name: share.weight for share in sent.backends} == shares
    assert [share.match for share in sent.backends if share.match] == [
        (traffic_rules.Match(header="X-Group", value="beta"),)
    ]
    assert sent.on_missing == "Fail"
    assert set(plan.endpoints["e"].untried) == untried
    assert plan.splits["s"].left_out == left_out


def test_an_untried_backend_with_weight_and_rules_loses_its_weight_alone() -> None:
    asked = split("s", "e", a=9, b=1)
    ruled = asked.spec.backends[1].model_copy(update={"match": (Match(cookie="g", prefix=""),)})
    spec = asked.spec.model_copy(update={"backends": (asked.spec.backends[0], ruled)})
    plan = traffic.plan(
        [endpoint("e")], [asked.model_copy(update={"spec": spec})], {"a": True, "b": False}, {"b"}
    )
    assert {share.name: share.weight for share in plan.endpoints["e"].backends} == {"a": 9, "b": 0}
    assert plan.splits["s"].left_out == ("b",)


def test_the_oldest_endpoint_has_the_route() -> None:
    """The other keeps its own Service and says so; an endpoint that is being deleted loses its claim."""
    plan = traffic.plan([endpoint("new", 2, route="/r"), endpoint("old", 1, route="/r/")], [], {"a": True})
    assert (plan.endpoints["old"].route, plan.endpoints["new"].route) == ("/r", "")
    assert plan.endpoints["new"].route_taken_by == "old"
    plan = traffic.plan(
        [endpoint("new", 2, route="/r"), endpoint("old", 1, deleted=True, route="/r")], [], {"a": True}
    )
    assert list(plan.endpoints) == ["new"]
    assert plan.endpoints["new"].route == "/r"


def test_no_route_conflicts_with_no_route() -> None:
    """Any number of endpoints may stay away from the front door."""
    plan = traffic.plan([endpoint("a", route=""), endpoint("b", route="")], [], {})
    assert [plan.endpoints[name].route_taken_by for name in "ab"] == [None, None]


def test_the_router_is_told_of_endpoints_with_a_port() -> None:
    """One that found no port fails alone."""
    both = [endpoint("b"), endpoint("a", timeout="1m")]
    endpoints = traffic.router_endpoints(both, traffic.plan(both, [], {"a": True}), {"a": 20000}, {})
    assert [(item.name, item.port, item.timeout_ms) for item in endpoints] == [("a", 20000, 60000)]


def test_the_router_closes_the_paths_that_are_an_endpoints_models_own() -> None:
    """Those of the backends that serve it, each once."""
    plan = traffic.plan([endpoint("e")], [split("s", "e", a=1, b=1, c=1)], dict.fromkeys("abcd", True))
    closed = {"a": ["/x"], "b": ["/c", "/x"], "c": ["/x"], "d": ["/d"]}
    (served,) = traffic.router_endpoints([endpoint("e")], plan, {"e": 20000}, closed)
    assert served.closed == ("/c", "/x")


# --- routers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "replicas"), [(CONFIG, 2), (dataclasses.replace(CONFIG, router_replicas=1), 1)]
)
def test_a_drain_leaves_a_router_where_there_are_two_as_by_default(
    config: RenderConfig, replicas: int
) -> None:
    """Two stand apart where they can and go one at a time; the budget of one would end no drain."""
    budgets = {
        obj["kind"]: obj for obj in router.router_objects("n", [endpoint("a")], config=config, document=b"")
    }
    spec = budgets["Deployment"]["spec"]
    assert spec["replicas"] == replicas
    (apart,) = spec["template"]["spec"]["topologySpreadConstraints"]
    assert (apart["topologyKey"], apart["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    budget = budgets.get("PodDisruptionBudget")
    assert (budget is not None) == (replicas > 1)
    if budget is not None:
        assert budget["spec"]["maxUnavailable"] == 1
        assert budget["spec"]["selector"] == spec["selector"]
