"""The real apiserver takes every good resource, and says of every bad one what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

import penstock
from devcluster.cluster import Cluster
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import Namespace

TABLE: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "crd_cases.yaml").read_text())
CASES: list[dict[str, Any]] = TABLE["cases"]
ROOT = Path(__file__).parents[2]
PLURALS = {
    definition["spec"]["names"]["kind"]: definition["spec"]["names"]["plural"]
    for definition in (yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml"))
}


def merged(below: Any, above: Any) -> Any:
    """An RFC 7386 merge: null takes a member away."""
    if not isinstance(above, dict):
        return above
    result = dict(below) if isinstance(below, dict) else {}
    for key, value in above.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def holds(part: Any, whole: Any) -> bool:
    """Whether every member of `part` is in `whole`; lists of one length, element by element."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and holds(part[key], whole[key]) for key in part)
    if isinstance(part, list):
        return isinstance(whole, list) and len(part) == len(whole) and all(map(holds, part, whole))
    return bool(part == whole)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case: dict[str, Any], penstock: Cluster) -> None:
    """A good resource is taken, with its defaults; a bad one is refused with the message of the table."""
    sent = merged(TABLE["bases"][case["kind"]], case.get("with", {}))
    path = f"/apis/{sent['apiVersion']}/namespaces/default/{PLURALS[case['kind']]}"
    dry_run = "?dryRun=All&fieldValidation=Strict&fieldManager=kubectl"
    status, answer = penstock.api().request("POST", path + dry_run, sent)
    if "says" in case:
        assert status >= 400
        assert [text for text in case["says"] if text not in answer["message"]] == [], answer
    else:
        assert status == 201, answer
        assert holds(case.get("becomes", {}), answer), answer


def test_crds_are_established(penstock: Cluster) -> None:
    """The apiserver took every CRD whole: within its cost budget, structural, with its names."""
    names = [yaml.safe_load(path.read_text())["metadata"]["name"] for path in (ROOT / "crds").glob("*.yaml")]
    assert len(names) == 4
    for name in names:
        raw = penstock.kubectl("get", "crd", name, "-o", "json").stdout
        conditions = {item["type"]: item["status"] for item in json.loads(raw)["status"]["conditions"]}
        assert conditions["Established"] == "True"
        assert conditions["NamesAccepted"] == "True"
        assert conditions.get("NonStructuralSchema", "False") == "False"


OLDER = "older.penstock.dev"
OLDER_NAMES = {
    "plural": "oldersplits", "singular": "oldersplit", "kind": "OlderSplit", "listKind": "OlderSplitList",
}  # fmt: skip
"""Other than ours: kubectl looks for a kind in all groups, also for the tests beside."""


def without_rules(node: Any) -> Any:
    """A schema that lets through what only rules refuse."""
    if isinstance(node, list):
        return [without_rules(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {key: without_rules(value) for key, value in node.items() if key != "x-kubernetes-validations"}


@pytest.fixture
def of_older_schema(penstock: Cluster) -> Iterator[tuple[Namespace, dict[str, Any]]]:
    """A split that a schema without rules let through, in a group of its own, where the rules hold now."""
    default = Namespace(penstock, "default")
    definition = yaml.safe_load((ROOT / "crds/trafficsplits.yaml").read_text())
    definition["metadata"]["name"] = f"oldersplits.{OLDER}"
    definition["spec"] |= {"group": OLDER, "names": OLDER_NAMES}
    steps = [{"setWeight": 5}, {"mirror": 20}, {"pause": "9000h"}]
    stored = merged(
        TABLE["bases"]["TrafficSplit"],
        {
            "apiVersion": f"{OLDER}/v1alpha1",
            "kind": OLDER_NAMES["kind"],
            "spec": {"strategy": {"stable": "one", "candidate": "two", "steps": steps}},
        },
    )
    again = merged(stored, {"metadata": {"name": "again"}})
    default.apply(without_rules(definition))
    try:
        default.kubectl("wait", "--for=condition=Established", f"crd/oldersplits.{OLDER}")
        create = ("create", "-f", "-")
        wait_for(
            "the older schema to take it",
            lambda: "created" in default.kubectl(*create, input=json.dumps(stored), check=False),
        )
        default.apply(definition)
        wait_for(
            "the rules",
            lambda: (
                "found 9000h"
                in default.kubectl(*create, "--dry-run=server", input=json.dumps(again), check=False)
            ),
        )
        yield default, stored
    finally:
        default.kubectl("delete", "crd", f"oldersplits.{OLDER}")


def test_what_an_older_schema_stored_may_stay(of_older_schema: tuple[Namespace, dict[str, Any]]) -> None:
    """Its status, its annotations, its weights and the rest of its strategy may be written; its steps not."""
    default, stored = of_older_schema
    kind = f"oldersplits.{OLDER}"
    status = {"status": {"observedGeneration": 1, "step": 1}}
    default.kubectl("patch", kind, "good", "--type=merge", "--subresource=status", "-p", json.dumps(status))
    default.kubectl("annotate", kind, "good", "penstock.dev/release=abort")
    default.patch(
        kind, "good", {"spec": {"backends": [{"name": "one", "weight": 1}, {"name": "two", "weight": 1}]}}
    )
    default.patch(kind, "good", {"spec": {"strategy": {"onFailure": "Pause"}}})
    edited = {"spec": {"strategy": {"steps": stored["spec"]["strategy"]["steps"][:2]}}}
    said = default.kubectl("patch", kind, "good", "--type=merge", "-p", json.dumps(edited), check=False)
    assert "expected mirror above 0 only while the candidate has weight 0" in said
    assert "found it in steps[1]" in said
    default.patch(kind, "good", {"spec": {"strategy": {"steps": [{"setWeight": 5}, {"pause": "Manual"}]}}})


def test_explain_tells_a_derived_default(penstock: Cluster) -> None:
    """`kubectl explain` says of a field what it is, and what holds when it is absent."""
    default = Namespace(penstock, "default")

    def text() -> str:
        said = " ".join(default.kubectl("explain", "bpol.spec.maxQueuedItems", check=False).split())
        return said if "Items that may wait in one pod" in said else ""

    # NB: the apiserver publishes a changed definition's schema a moment after it took it.
    assert "at least 8 full batches for each slot" in wait_for("the field's explanation", text)


def test_short_names_and_category(penstock: Cluster) -> None:
    """All four kinds answer to their short names and to `kubectl get penstock`."""
    for short in ("mbe", "mep", "tsp", "bpol", "penstock"):
        assert penstock.kubectl("get", short, "-n", "default", check=False).returncode == 0


def test_a_script_writes_resources_by_verbs(namespace: Namespace) -> None:
    """`penstock.Client` applies, changes, waits and deletes, and says what is refused."""
    client = penstock.Client(namespace.name, kubeconfig=namespace.cluster.host_kubeconfig)
    bases = TABLE["bases"]
    policy = merged(bases["BatchPolicy"], {"spec": {"maxBatchSize": 16}})
    assert client.apply(policy, wait=120)[0]["spec"]["maxBatchSize"] == 16
    assert client.wait("BatchPolicy", "good")["status"]["observedGeneration"] == 1
    with pytest.raises(
        TimeoutError, match="BatchPolicy good: expected the condition Odd within 0 s, found no such condition"
    ):
        client.wait("BatchPolicy", "good", condition="Odd", timeout=0)
    # What is no longer given goes, as with kubectl.
    assert client.apply(bases["BatchPolicy"])[0]["spec"]["maxBatchSize"] == 32
    with pytest.raises(penstock.ControlError, match=r"BatchPolicy good: .*maxBatchSize") as refused:
        client.apply(merged(policy, {"spec": {"maxBatchSize": 0}}))
    assert refused.value.status == 422
    with pytest.raises(penstock.ControlError, match=r"unknown field|field not declared"):
        client.apply(merged(policy, {"spec": {"maxBatchSizes": 1}}))

    client.apply(yaml.safe_dump(merged(bases["ModelBackend"], {"spec": {"replicas": 0}})))
    client.scale("good", 2)
    assert client.get("ModelBackend", "good")["spec"]["replicas"] == 2
    client.scale("good", 0)
    client.update_config("good", {"a": 1, "b": 2})
    assert client.update_config("good", {"a": 3})["spec"]["userConfig"] == {"a": 3}

    assert client.set_traffic("digits", {"one": 9, "two": 1})["metadata"]["name"] == "digits"
    changed = client.set_traffic("digits", {"two": 1, "three": 0})["spec"]["backends"]
    assert changed == [{"name": "two", "weight": 1}, {"name": "three", "weight": 0}]
    with pytest.raises(penstock.ControlError, match="expected at least one backend with a weight above 0"):
        client.set_traffic("digits", {"one": 0})
    with ThreadPoolExecutor() as threads:  # of several at once, none fails, and the last one stands whole
        shares = [{"two": weight, "three": 100 - weight} for weight in range(3)]
        list(threads.map(lambda share: client.set_traffic("digits", share), shares))
    weights = {each["name"]: each["weight"] for each in client.list("TrafficSplit")[0]["spec"]["backends"]}
    assert weights in shares
    assert [each["metadata"]["name"] for each in client.list("TrafficSplit")] == ["digits"]

    mirrors = client.shadow_traffic("digits", {"shadow": 20})["spec"]["mirrors"]
    assert [(each["name"], each["percent"]) for each in mirrors] == [("shadow", 20)]
    with pytest.raises(penstock.ControlError, match="expected mirrors that are not among backends"):
        client.shadow_traffic("digits", {"two": 20})
    assert not client.shadow_traffic("digits", {})["spec"].get("mirrors")

    endpoint = merged(bases["ModelEndpoint"], {"metadata": {"name": "shown"}, "spec": {"backend": "one"}})
    client.apply(endpoint)
    made = client.shadow_traffic("shown", {"two": 5})["spec"]
    assert [(each["name"], each["weight"]) for each in made["backends"]] == [("one", 1)]
    client.delete("TrafficSplit", "shown")
    client.delete("ModelEndpoint", "shown")
    client.delete("TrafficSplit", "digits")
    client.delete("ModelBackend", "good")
    client.delete("BatchPolicy", "good")
    client.delete("BatchPolicy", "none", missing_ok=True)
    with pytest.raises(penstock.ControlError, match=r"ModelBackend none: .*not found") as missing:
        client.delete("ModelBackend", "none")
    assert missing.value.status == 404
    wait_for("the resources to be gone", lambda: not client.list("ModelBackend"))
