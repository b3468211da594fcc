"""The chart on a real apiserver: what it refuses, what it grants, and its life from install to uninstall.

The release is the one that all tests share; each test leaves it installed as it was.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.cluster import Cluster
from penstock_operator.api import KINDS
from tests.support.cluster_waits import wait_for
from tests.support.k8s import (
    CHART,
    INSTALLED_IN,
    RELEASE,
    VALUES,
    Load,
    Namespace,
    assert_nothing_lost,
    endpoint,
    ledger_backend,
    ledger_code,
)
from tests.support.release import upgrade, wait_in_force

OPERATOR = f"system:serviceaccount:{INSTALLED_IN}:penstock-operator"
CRDS = sorted(f"{kind.plural}.penstock.dev" for kind in KINDS.values())

MANY = (
    *("--set", "operator.replicas=3", "--set", "operator.logLevel=debug", "--set", "operator.workers=2"),
    *("--set", "operator.watchNamespace=default", "--set", "operator.extraArgs={--log-level,info}"),
    *("--set-json", 'operator.extraEnv=[{"name":"A","value":"1"}]', "--set", "operator.podLabels.a=b"),
    *("--set", "operator.podAnnotations.a=b", "--set", "operator.nodeSelector.disk=ssd"),
    *("--set-json", 'operator.tolerations=[{"operator":"Exists"}]', "--set", "router.replicas=2"),
    *(
        "--set-json",
        'operator.affinity={"nodeAffinity":{}}',
        "--set",
        "operator.priorityClassName=system-node-critical",
    ),
    *("--set-json", 'images.pullSecrets=[{"name":"s"}]', "--set", "images.router=r.example/router@sha256:00"),
    *("--set", "operator.serviceAccountAnnotations.a=b", "--set", "protection.backendsInUse=true"),
    *(
        "--set",
        "tracing.endpoint=http://c:4318",
        "--set",
        "tracing.environment.OTEL_TRACES_SAMPLER=always_on",
    ),
    *("--set-json", 'metrics.from=[{"namespaceSelector":{"matchLabels":{"a":"b"}}}]'),
    *("--set-json", 'networkPolicies.routers.from=[{"ipBlock":{"cidr":"10.0.0.0/8"}}]'),
    *("--set-json", "networkPolicies.backends.from=[]", "--set", "reports.checkPeerAddress=false"),
    *(
        "--set-json",
        'networkPolicies.egress=[{"to":[{"ipBlock":{"cidr":"10.0.0.1/32"}}],"ports":[{"port":443}]}]',
    ),
    *(
        "--set-json",
        'operator.topologySpreadConstraints=[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule"}]',
    ),
)


def crd(cluster: Cluster, name: str) -> dict[str, Any]:
    """A CustomResourceDefinition as it is in the cluster."""
    found: dict[str, Any] = json.loads(cluster.kubectl("get", "crd", name, "-o", "json").stdout)
    return found


def test_lint_is_strict_and_silent(cluster: Cluster) -> None:
    assert "0 chart(s) failed" in cluster.helm("lint", "--strict", CHART).stdout


@pytest.mark.parametrize("arguments", [(), MANY], ids=["defaults", "everything-set"])
def test_what_it_renders_is_taken_by_the_apiserver(penstock: Cluster, arguments: tuple[str, ...]) -> None:
    """No unknown field, no value that the apiserver refuses; with the defaults and with every value set."""
    rendered = penstock.helm(
        *("template", RELEASE, CHART, "-n", INSTALLED_IN, *VALUES, *arguments, "--dry-run=server")
    ).stdout
    penstock.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", input=rendered)
    names = [one["kind"] for one in yaml.safe_load_all(rendered) if one]
    assert names.count("CustomResourceDefinition") == len(CRDS)
    assert ("PodDisruptionBudget" in names) == bool(arguments)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("images.tags=x", "additional properties 'tags' not allowed"),
        ("operator.replicas=0", "minimum: got 0, want 1"),
        ("operator.logLevel=loud", "value must be one of 'debug', 'info', 'warning', 'error'"),
        ("operator.watchNamespace=No_Name", "does not match pattern"),
        ("tracing.endpoint=collector:4317", "does not match pattern"),
        ("tracing.environment.PATH=/", "additional properties 'PATH' not allowed"),
        ("crds.keep=false", "additional properties 'keep' not allowed"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_with_its_name(
    cluster: Cluster, setting: str, message: str
) -> None:
    done = cluster.helm("template", RELEASE, CHART, "--set", setting, check=False)
    assert done.returncode != 0
    assert message in done.stderr
    assert setting.split("=")[0].split(".")[0] in done.stderr


def test_helm_test_passes_and_leaves_no_pod(penstock: Cluster) -> None:
    """The operator answers through its Service."""
    helm_test(penstock)
    system = Namespace(penstock, INSTALLED_IN)
    # NB: helm deletes its pod, and need not wait for its end.
    wait_for(
        "no pod of the test",
        lambda: "penstock-test" not in system.kubectl("get", "pods", "-o", "name"),
    )


def helm_test(cluster: Cluster) -> None:
    """Have the chart's own test run, and pass."""
    assert "Succeeded" in cluster.helm("test", RELEASE, "-n", INSTALLED_IN, "--timeout", "180s").stdout


def test_the_operator_runs_under_restricted_pod_security(penstock: Cluster) -> None:
    """Enforcing `restricted` on the namespace finds nothing to warn about; so does the pod of `helm test`."""
    label = "pod-security.kubernetes.io/enforce=restricted"
    done = penstock.kubectl("label", "--overwrite", "namespace", INSTALLED_IN, label)
    assert "Warning" not in done.stderr
    helm_test(penstock)


def allowed(cluster: Cluster, account: str, *question: str) -> bool:
    """Whether an account may do something."""
    done = cluster.kubectl("auth", "can-i", *question, f"--as={account}", check=False)
    return done.stdout.strip().splitlines()[-1] == "yes"


def test_the_operator_may_do_what_it_needs_and_no_more(penstock: Cluster, namespace: Namespace) -> None:
    """It reads its own Secret alone, changes no right, and binds routers to the one ClusterRole for them."""
    may = [
        ("patch", "deployments"),
        ("create", "tokenreviews"),
        ("patch", "modelbackends", "--subresource=scale"),
    ]
    may_not = [
        ("get", "secrets"),
        ("create", "clusterroles"),
        ("create", "clusterrolebindings"),
        ("create", "pods"),
        ("create", "pods", "--subresource=exec"),
        ("patch", "modelbackends"),
        ("impersonate", "users"),
    ]
    assert [one for one in may if not allowed(penstock, OPERATOR, *one, "-n", namespace.name)] == []
    assert [one for one in may_not if allowed(penstock, OPERATOR, *one, "-n", namespace.name)] == []
    own, keys = ("-n", "penstock-system"), "secrets/penstock-operator-tls"
    verbs = [
        ("get", keys),
        ("patch", keys),
        ("get", "secrets/another"),
        ("list", "secrets"),
        ("delete", keys),
    ]
    assert [allowed(penstock, OPERATOR, *one, *own) for one in verbs] == [True, True, False, False, False]
    outcome = {}
    for role in ("penstock-router", "view", "cluster-admin"):
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "x"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        }
        done = penstock.kubectl(
            *("-n", namespace.name, "create", "--dry-run=server", f"--as={OPERATOR}", "-f", "-"),
            input=yaml.safe_dump(binding),
            check=False,
        )
        outcome[role] = done.returncode == 0 or "forbidden" not in done.stderr
    assert outcome == {"penstock-router": True, "view": False, "cluster-admin": False}


def test_editors_and_viewers_of_a_namespace_get_their_part(penstock: Cluster, namespace: Namespace) -> None:
    """The cluster's own roles take ours in; a status is nobody's but the operator's."""
    for role in ("view", "edit"):
        namespace.kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}er")
    resources = [f"{kind.plural}.penstock.dev" for kind in KINDS.values()]

    def may(user: str, verb: str, *more: str) -> set[bool]:
        return {allowed(penstock, user, verb, one, *more, "-n", namespace.name) for one in resources}

    # Each role is aggregated by itself, and each binding taken up by itself.
    for user, verb in (("editer", "create"), ("editer", "delete"), ("editer", "list"), ("viewer", "list")):
        wait_for(f"{user} to be allowed to {verb}", lambda who=user, what=verb: may(who, what) == {True})
    assert may("viewer", "create") == may("viewer", "delete") == {False}
    assert may("editer", "patch", "--subresource=status") == {False}


def test_standbys_are_ready_and_the_service_leads_to_the_leader(penstock: Cluster) -> None:
    """With two replicas one leads; when it goes the other takes over the Service."""
    system = Namespace(penstock, INSTALLED_IN)

    def addresses() -> list[str]:
        found = system.get("endpointslice", "penstock-operator") or {}
        return [address for one in found.get("endpoints") or [] for address in one["addresses"]]

    def pods() -> dict[str, str]:
        found = system.list("pods", "app.kubernetes.io/name=penstock-operator")
        return {
            pod["status"].get("podIP", ""): pod["metadata"]["name"]
            for pod in found
            if "deletionTimestamp" not in pod["metadata"]
        }

    upgrade(penstock, "--set", "operator.replicas=2")
    try:
        wait_for("two pods", lambda: len(pods()) == 2)
        (leader,) = wait_for("a leader", lambda: [one for one in addresses() if one in pods()])
        system.kubectl("delete", "pod", pods()[leader], "--wait=false")
        wait_for("the other to lead", lambda: addresses() and addresses()[0] in set(pods()) - {leader})
        assert system.get("poddisruptionbudget", "penstock-operator")
    finally:
        upgrade(penstock)
    assert system.get("poddisruptionbudget", "penstock-operator") is None
    wait_for("the release as it was", lambda: len(pods()) == 1 and addresses() == list(pods()))


def test_upgrades_and_rollbacks_bring_the_crds_along(penstock: Cluster, tmp_path: Path) -> None:
    """A definition that a newer chart changed is changed in the cluster, and back again."""
    name = CRDS[0]
    newer = shutil.copytree(CHART, tmp_path / "penstock")
    file = newer / "files/crds" / f"{name.split('.')[0]}.yaml"
    before = crd(penstock, name)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"]
    file.write_text(file.read_text().replace(before, "From a newer chart.", 1))

    def description() -> str:
        return str(crd(penstock, name)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"])

    upgrade(penstock, chart=str(newer))
    assert description() == "From a newer chart."
    penstock.helm("rollback", RELEASE, "-n", INSTALLED_IN, "--wait", "--timeout", "240s")
    assert description() == before
    wait_in_force(penstock)
    helm_test(penstock)


def test_uninstalling_keeps_every_resource_and_requests_flow(
    penstock: Cluster, namespace: Namespace, load: Load
) -> None:
    """Without the operator a pod is replaced and nothing lost; installed again, it takes all of it over."""
    namespace.apply(
        ledger_code(), ledger_backend("kept", collector=load.port, replicas=2), endpoint("kept", "kept")
    )
    namespace.wait_ready("modelbackend", "kept")
    namespace.wait_ready("modelendpoint", "kept")
    kept = {kind: namespace.list(kind)[0]["metadata"]["uid"] for kind in ("modelbackend", "modelendpoint")}
    url = namespace.url("kept")
    load.start(url, rate=50)
    penstock.helm("uninstall", RELEASE, "-n", INSTALLED_IN, "--wait", "--timeout", "240s")
    try:
        assert [crd(penstock, name)["metadata"]["name"] for name in CRDS] == CRDS
        first = namespace.pods("kept")[0]["metadata"]["name"]
        namespace.kubectl("delete", "pod", first)

        def two_ready() -> bool:
            found = namespace.pods("kept")
            ready = [
                one["metadata"]["name"]
                for one in found
                for condition in one["status"].get("conditions", [])
                if condition["type"] == "Ready" and condition["status"] == "True"
            ]
            return len(ready) == 2 and first not in ready

        wait_for("another pod in its place", two_ready)
    finally:
        upgrade(penstock)
    namespace.wait_ready("modelbackend", "kept")
    assert_nothing_lost(load.stop())
    assert {kind: namespace.list(kind)[0]["metadata"]["uid"] for kind in kept} == kept
    namespace.patch("modelbackend", "kept", {"spec": {"replicas": 1}})
    wait_for("the operator to act again", lambda: len(namespace.pods("kept")) == 1)
