"""Where routers run is checked when the operator starts: what the apiserver takes passes, a slip is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from penstock_operator import config as configuration
from penstock_operator import scheduling
from penstock_operator.errors import ConfigError
from tests.support.worlds.pod_specs import SCHEDULING

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@given(SCHEDULING)
def test_what_the_apiserver_takes_passes_as_it_is(members: dict[str, Any]) -> None:
    """Of the same random members a cluster test renders pods (tests/cluster/test_apply_property.py)."""
    assert scheduling.read(json.dumps(members)) == members


def test_the_rest_of_what_there_is_passes_too() -> None:
    """Members that the random ones lack; null is nothing; a number may be spelled as helm does."""
    term = {
        "topologyKey": "zone",
        "namespaceSelector": None,
        "matchLabelKeys": ["a"],
        "mismatchLabelKeys": ["b"],
        "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
    }
    nodes = {
        "matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["4"]}],
        "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n"]}],
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "minDomains": 2,
        "nodeAffinityPolicy": "Honor",
        "nodeTaintsPolicy": "Ignore",
        "matchLabelKeys": ["a"],
    }
    members = {
        "tolerations": [
            {"key": "", "operator": "Exists", "effect": "", "value": ""},
            {"key": "a.b/c", "operator": "Lt", "value": "3", "effect": "PreferNoSchedule"},
        ],
        "affinity": {
            "nodeAffinity": {PREFERRED: [{"weight": 1, "preference": nodes}]},
            "podAffinity": {PREFERRED: [{"weight": 100, "podAffinityTerm": term}]},
            "podAntiAffinity": None,
        },
        "topologySpreadConstraints": [spread, spread | {"topologyKey": "host"}],
    }
    text = json.dumps(members | {"nodeSelector": None, "priorityClassName": ""})
    assert scheduling.read(text) == members
    read = scheduling.read(
        '{"tolerations": [{"key": "a", "effect": "NoExecute", "tolerationSeconds": 1e+06}]}'
    )
    assert str(read["tolerations"][0]["tolerationSeconds"]) == "1000000"


def pods(**term: Any) -> dict[str, Any]:
    return {"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": "zone"} | term]}}}


def nodes(**requirement: Any) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": "disk", "operator": "Exists"} | requirement]}]
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}


def spread(**constraint: Any) -> dict[str, Any]:
    least = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    return {"topologySpreadConstraints": [least | constraint]}


@pytest.mark.parametrize(
    ("members", "path", "message"),
    [
        ({"nodeselector": {}}, "$", "unknown member nodeselector: the nearest is nodeSelector"),
        ({"tolerations": {}}, "$.tolerations", "expected a list, found {}"),
        ({"tolerations": [{"ke": "a"}]}, "$.tolerations[0]", "unknown member ke: the nearest is key"),
        ({"tolerations": [{"key": "a b"}]}, "$.tolerations[0].key", "expected a taint's key"),
        ({"tolerations": [{"key": "a", "effect": "No"}]}, "$.tolerations[0].effect", "NoSchedule"),
        ({"tolerations": [{"value": "a"}]}, "$.tolerations[0]", "expected a key, or operator Exists"),
        ({"tolerations": [{"operator": "Exists", "value": "a"}]}, "$.tolerations[0]", "expected no value"),
        ({"tolerations": [{"key": "a", "tolerationSeconds": 1}]}, "$.tolerations[0]", "effect NoExecute"),
        ({"nodeSelector": {"disk type": "a"}}, "$.nodeSelector", "expected a label's name"),
        ({"nodeSelector": {"a..b/x": "a"}}, "$.nodeSelector", "expected a label's name"),
        ({"nodeSelector": {"a.-b/x": "a"}}, "$.nodeSelector", "expected a label's name"),
        ({"nodeSelector": {f"{'a' * 254}/x": "a"}}, "$.nodeSelector", "expected a label's name"),
        ({"nodeSelector": {"disk": True}}, "$.nodeSelector", "Expected `str`, got `bool`"),
        ({"nodeSelector": {"disk": "a b"}}, "$.nodeSelector", "expected a label's value"),
        ({"priorityClassName": "High"}, "$.priorityClassName", "expected an object's name"),
        ({"priorityClassName": "a..b"}, "$.priorityClassName", "expected an object's name"),
        ({"priorityClassName": "a" * 254}, "$.priorityClassName", "expected an object's name"),
        ({"affinity": {"nodeAfinity": {}}}, "$.affinity", "the nearest is nodeAffinity"),
        (pods(labelSelector={"matchLabel": {}}), ".labelSelector", "the nearest is matchLabels"),
        (
            pods(labelSelector={"matchExpressions": [{"key": "a", "operator": "In", "values": ["a b"]}]}),
            ".labelSelector.matchExpressions[0].values[0]",
            "expected a label's value",
        ),
        (pods(topologyKey=""), f"{REQUIRED}[0].topologyKey", "expected a label's name"),
        (pods(namespaces="a"), f"{REQUIRED}[0].namespaces", "expected a list, found 'a'"),
        (nodes(operator="in"), ".matchExpressions[0].operator", "expected In or NotIn or Exists"),
        (nodes(operator="In"), ".matchExpressions[0]", "expected values with operator In"),
        (nodes(values=["a"]), ".matchExpressions[0]", "expected no values with operator Exists"),
        (nodes(operator="Gt"), ".matchExpressions[0]", "expected one value with operator Gt, found 0"),
        (nodes(key=None), ".matchExpressions[0].key", "expected text, found None"),
        ({"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}}, "Terms", "length >= 1"),
        ({"affinity": {"nodeAffinity": {REQUIRED: {}}}}, REQUIRED, "expected the member nodeSelectorTerms"),
        (spread(maxSkew=0), "$.topologySpreadConstraints[0].maxSkew", "`int` >= 1"),
        (spread(maxSkew="1"), "$.topologySpreadConstraints[0].maxSkew", "expected a whole number, found '1'"),
        (spread(minDomains=1), "$.topologySpreadConstraints[0]", "whenUnsatisfiable: DoNotSchedule"),
        (spread(nodeTaintsPolicy="No"), "[0].nodeTaintsPolicy", "expected Honor or Ignore, found 'No'"),
        ({"topologySpreadConstraints": [{"maxSkew": 1}]}, "[0]", "expected the member topologyKey"),
        (
            {"topologySpreadConstraints": spread()["topologySpreadConstraints"] * 2},
            "topologySpreadConstraints",
            "expected zone and ScheduleAnyway once, found twice",
        ),
    ],
)
def test_a_slip_is_named_with_its_place(members: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        configuration.parse(["--router-scheduling", json.dumps(members)])
    text = str(error.value)
    assert text.startswith("--router-scheduling: ")
    assert path in text
    assert message in text


@pytest.mark.parametrize(
    "text",
    [
        '{"nodeSelector": {"a": "b"}, "nodeSelector": {}}',
        '{"affinity": {"nodeSelector": 1, "nodeSelector": 1}}',
    ],
)
def test_a_member_that_is_there_twice_is_refused(text: str) -> None:
    """Of two JSON keeps the last, in silence."""
    with pytest.raises(ValueError, match="expected each member once, found 'nodeSelector' twice"):
        scheduling.read(text)


def test_long_names_pass() -> None:
    """A prefix has 253 characters at most, in parts of any length."""
    members = {"nodeSelector": {f"{'a' * 251}.b/x": "y"}, "priorityClassName": f"{'a-' * 100}b.c"}
    assert scheduling.read(json.dumps(members)) == members
