"""The chart on a real apiserver: what it refuses, what it grants, and its life from install to uninstall.

The release is the one that all tests share; each test leaves it installed as it was.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.cluster import Cluster
from penstock_operator import config as configuration
from penstock_operator.api import KINDS
from penstock_operator.desired.config import RenderConfig, RouterAutoscaling
from penstock_operator.kinds import CHILDREN
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.injected_app import LABEL, living, plain, rolled_out
from tests.support.cluster.k8s import (
    CHART,
    INSTALLED_IN,
    RELEASE,
    ROOT,
    VALUES,
    Load,
    Namespace,
    assert_nothing_lost,
    condition_of,
    endpoint,
    ledger_backend,
    ledger_code,
)
from tests.support.cluster.release import OPERATOR_PODS, upgrade, wait_in_force
from tests.support.pages.chart import helm, rendered

OPERATOR = f"system:serviceaccount:{INSTALLED_IN}:penstock-operator"
CRDS = sorted(f"{kind.plural}.penstock.dev" for kind in KINDS.values())

MANY = (
    *("--set", "operator.replicas=3", "--set", "operator.logLevel=debug"),
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
    *("--set", "protection.backendsInUse=true"),
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
    *("--set", "operator.prometheus.url=https://p:9090", "--set", "operator.prometheus.secret=s"),
    *("--set-json", 'operator.prometheus.egress=[{"ports":[{"port":9090}]}]'),
    *("--set", "router.priorityClassName=system-cluster-critical", "--set", "router.nodeSelector.pool=edge"),
    *(
        "--set-json",
        'router.tolerations=[{"key":"edge","operator":"Exists","effect":"NoExecute","tolerationSeconds":1000000}]',
    ),
    *("--set-json", 'router.affinity={"podAffinity":{}}', "--set", "router.resources.requests.cpu=2"),
    *("--set", "router.resources.limits.cpu=3", "--set", "sidecar.resources.limits.memory=2Gi"),
    *("--set", "router.autoscaling.enabled=true", "--set", "router.autoscaling.maxReplicas=5"),
    *(
        "--set-json",
        'router.topologySpreadConstraints=[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule"}]',
    ),
)


STAYS = {
    "clusterrole/penstock-router",
    f"clusterrolebinding/penstock-router-shared.{INSTALLED_IN}",
    "secret/penstock-operator-tls",
    "lease/penstock-installation",
    "endpointslice/penstock-operator",
    *(f"crd/{name}" for name in CRDS),
}
"""The objects that `helm uninstall` leaves, beside resources and what was rendered for them."""


def crd(cluster: Cluster, name: str) -> dict[str, Any]:
    """A CustomResourceDefinition as it is in the cluster."""
    definition: dict[str, Any] = json.loads(cluster.kubectl("get", "crd", name, "-o", "json").stdout)
    return definition


def test_lint_is_strict_and_silent(cluster: Cluster) -> None:
    assert "0 chart(s) failed" in cluster.helm("lint", "--strict", CHART).stdout


@pytest.mark.parametrize("arguments", [(), MANY], ids=["defaults", "everything-set"])
def test_what_it_renders_is_taken_by_the_apiserver(penstock: Cluster, arguments: tuple[str, ...]) -> None:
    """No unknown field, no value that the apiserver refuses; with the defaults and with every value set."""
    rendered = penstock.helm(
        *("template", RELEASE, CHART, "-n", INSTALLED_IN, *VALUES, *arguments, "--dry-run=server")
    ).stdout
    penstock.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", input=rendered)
    names = [document["kind"] for document in yaml.safe_load_all(rendered) if document]
    assert names.count("CustomResourceDefinition") == len(CRDS)
    assert ("PodDisruptionBudget" in names) == bool(arguments)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("images.tags=x", "additional properties 'tags' not allowed"),
        ("images.sidecar=r.example/sidecar:1", "images.prefix: expected the registry and path"),
        ("router.resources.request.cpu=1", "additional properties 'request' not allowed"),
        ("operator.replicas=0", "minimum: got 0, want 1"),
        ("operator.logLevel=loud", "value must be one of 'debug', 'info', 'warning', 'error'"),
        ("operator.watchNamespace=No_Name", "does not match pattern"),
        ("tracing.endpoint=collector:4317", "does not match pattern"),
        ("tracing.environment.PATH=/", "additional properties 'PATH' not allowed"),
        ("crds.keep=false", "additional properties 'keep' not allowed"),
        ("router.mode=Shared,operator.watchNamespace=a,images.prefix=r", "found Shared"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_with_its_name(setting: str, message: str) -> None:
    done = helm("template", "--set", setting)
    assert done.returncode != 0
    assert message in done.stderr
    assert setting.split("=")[0].split(".")[0] in done.stderr


def test_images_have_names_of_the_users_own() -> None:
    """By a prefix, or each by itself; without either nothing is rendered."""
    whole = [f"images.{name}=r.example/{name}@sha256:00" for name in ("operator", "router", "sidecar")]
    for arguments in (["images.prefix=r.example/p"], whole):
        done = helm("template", *(word for argument in arguments for word in ("--set", argument)))
        assert done.returncode == 0, done.stderr
    done = helm("template")
    assert (done.returncode, done.stdout) == (1, "")
    assert "--set images.prefix=registry.example/penstock" in done.stderr


@pytest.mark.parametrize("arguments", [(), MANY], ids=["defaults", "everything-set"])
def test_the_operator_reads_what_the_chart_says_of_routers(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers included, which helm is free to spell as 1e+06; the defaults of both are the same."""
    (operator,) = [document for document in rendered(*arguments) if document["kind"] == "Deployment"]
    for variable in operator["spec"]["template"]["spec"]["containers"][0]["env"]:
        if "value" in variable:
            monkeypatch.setenv(variable["name"], variable["value"])
    render = configuration.parse([]).render
    default = RenderConfig(sidecar_image="", router_image="")
    if not arguments:
        assert (render.router_resources, render.router_scheduling) == (default.router_resources, {})
        assert render.sidecar_resources == default.sidecar_resources
        assert render.router_autoscaling is None
        return
    assert render.router_autoscaling == RouterAutoscaling(min_replicas=2, max_replicas=5, target=70)
    assert render.router_resources == {
        "requests": {"cpu": 2, "memory": "128Mi"},
        "limits": {"cpu": 3, "memory": "1Gi"},
    }
    assert render.sidecar_resources["limits"] == {"cpu": "1", "memory": "2Gi"}
    assert render.router_scheduling == {
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"pool": "edge"},
        "tolerations": [
            {"key": "edge", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1_000_000}
        ],
        "affinity": {"podAffinity": {}},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
        ],
    }


def test_helm_test_passes_under_restricted_pod_security_and_leaves_no_pod(penstock: Cluster) -> None:
    """The operator answers through its Service; enforcing `restricted` finds nothing to warn about."""
    label = "pod-security.kubernetes.io/enforce=restricted"
    done = penstock.kubectl("label", "--overwrite", "namespace", INSTALLED_IN, label)
    assert "Warning" not in done.stderr
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


def allowed(cluster: Cluster, account: str, *question: str) -> bool:
    """Whether an account may do something."""
    done = cluster.kubectl("auth", "can-i", *question, f"--as={account}", check=False)
    return done.stdout.strip().splitlines()[-1] == "yes"


def test_the_operator_may_do_what_it_needs_and_no_more(penstock: Cluster, namespace: Namespace) -> None:
    """It reads its own Secret alone, and of rights gives routers theirs, by RoleBindings of one name.

    Outside of its own namespace it has the one Lease by which one operator acts.
    """
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
    assert [right for right in may if not allowed(penstock, OPERATOR, *right, "-n", namespace.name)] == []
    assert [right for right in may_not if allowed(penstock, OPERATOR, *right, "-n", namespace.name)] == []
    own, keys = ("-n", "penstock-system"), "secrets/penstock-operator-tls"
    verbs = [
        ("get", keys),
        ("patch", keys),
        ("get", "secrets/another"),
        ("list", "secrets"),
        ("delete", keys),
    ]
    assert [allowed(penstock, OPERATOR, *verb, *own) for verb in verbs] == [True, True, False, False, False]
    shared = "leases/penstock-installation"
    verbs = [(verb, shared) for verb in ("get", "create", "patch", "delete")]
    verbs += [("patch", "leases/another"), ("create", "leases")]
    rights = [allowed(penstock, OPERATOR, *verb, "-n", "kube-system") for verb in verbs]
    assert rights == [True, True, True, False, False, True]
    outcome = {}
    for name, role in (("penstock-router", "penstock-router"), ("x", "penstock-router"),
                       ("penstock-router", "view"), ("penstock-router", "cluster-admin")):  # fmt: skip
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        }
        done = penstock.kubectl(
            *("-n", namespace.name, "apply", "--server-side", "--dry-run=server", f"--as={OPERATOR}"),
            *("--validate=false", "-f", "-"),
            input=yaml.safe_dump(binding),
            check=False,
        )
        assert done.returncode == 0 or "forbidden" in done.stderr, done.stderr
        outcome[name, role] = done.returncode == 0
    assert [key for key, done in outcome.items() if done] == [("penstock-router", "penstock-router")]
    assert not allowed(penstock, OPERATOR, "delete", "rolebindings/x", "-n", namespace.name)


def test_the_operators_calls_have_flows_of_their_own(penstock: Cluster) -> None:
    """Its Lease does not wait for any, and a namespace's calls not for another's."""

    def dispatched(flow: str) -> float:
        metrics = penstock.kubectl("get", "--raw", "/metrics").stdout
        name = f"penstock-operator.{INSTALLED_IN}.{flow}"
        counts = re.findall(rf'dispatched_requests_total{{flow_schema="{name}".*}} (\S+)', metrics)
        return sum(map(float, counts))

    for flow in ("lease", "objects"):
        wait_for(f"calls by {flow}", lambda flow=flow: dispatched(flow))  # type: ignore[misc]


def test_editors_and_viewers_of_a_namespace_get_their_part(penstock: Cluster, namespace: Namespace) -> None:
    """The cluster's own roles include ours; only the operator may write a status."""
    for role in ("view", "edit"):
        namespace.kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}er")
    resources = [f"{kind.plural}.penstock.dev" for kind in KINDS.values()]

    def may(user: str, verb: str, *more: str) -> set[bool]:
        return {
            allowed(penstock, user, verb, resource, *more, "-n", namespace.name) for resource in resources
        }

    # Each role is aggregated by itself, and each binding taken up by itself.
    for user, verb in (("editer", "create"), ("editer", "delete"), ("editer", "list"), ("viewer", "list")):
        wait_for(f"{user} to be allowed to {verb}", lambda who=user, what=verb: may(who, what) == {True})
    assert may("viewer", "create") == may("viewer", "delete") == {False}
    assert may("editer", "patch", "--subresource=status") == {False}


@contextlib.contextmanager
def another_installation(cluster: Cluster, namespace: Namespace) -> Iterator[None]:
    """The operator once more, in another namespace, with its rights; it would render routers otherwise.

    Helm refuses a second release: as where another tool applies the chart, without what is the same in both.
    """
    rendered = cluster.helm(
        *("template", "other", CHART, "-n", namespace.name, *VALUES),
        *("--set", "router.replicas=3", "--set", "router.mode=Shared"),
    )
    own = [
        document
        for document in yaml.safe_load_all(rendered.stdout)
        if document and namespace.name in str(document["metadata"])
        if "helm.sh/hook" not in document["metadata"].get("annotations", {})
    ]
    text = yaml.safe_dump_all(own)
    cluster.kubectl("apply", "-f", "-", input=text)
    try:
        yield
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", input=text)


def test_standbys_are_ready_and_the_service_leads_to_the_leader(
    penstock: Cluster, namespace: Namespace
) -> None:
    """With two replicas one leads; when it goes the other takes over the Service.

    Not the operator of another installation: that one writes nothing, is not ready, and says who leads.
    """
    system = Namespace(penstock, INSTALLED_IN)
    namespace.apply(endpoint("e", "b"))

    def router() -> dict[str, Any]:
        # NB: its owners, and with an annotation its generation, follow the endpoints.
        deployment: dict[str, Any] = wait_for(
            "a router", lambda: namespace.get("deployment", "penstock-router")
        )
        return dict(deployment["spec"])

    def refused() -> dict[str, str] | None:
        (pod,) = namespace.list("pods", OPERATOR_PODS) or [None]
        lines = namespace.log(pod["metadata"]["name"], "operator") if pod and started(pod) else []
        return next((line for line in lines if line["message"] == "another installation leads"), None)

    def started(pod: dict[str, Any]) -> bool:
        states = (pod.get("status") or {}).get("containerStatuses") or [{}]
        return "running" in states[0].get("state", {})

    def addresses() -> list[str]:
        endpointslice = system.get("endpointslice", "penstock-operator") or {}
        return [
            address for endpoint in endpointslice.get("endpoints") or [] for address in endpoint["addresses"]
        ]

    def pods() -> dict[str, str]:
        pods = system.list("pods", "app.kubernetes.io/name=penstock-operator")
        return {
            pod["status"].get("podIP", ""): pod["metadata"]["name"]
            for pod in pods
            if "deletionTimestamp" not in pod["metadata"]
        }

    upgrade(penstock, "--set", "operator.replicas=2")
    before = router()
    try:
        wait_for("two pods", lambda: len(pods()) == 2)
        (leader,) = wait_for("a leader", lambda: [address for address in addresses() if address in pods()])
        system.kubectl("delete", "pod", pods()[leader], "--wait=false")
        wait_for("the other to lead", lambda: addresses() and addresses()[0] in set(pods()) - {leader})
        with another_installation(penstock, namespace):
            said = wait_for("the other installation to stand by", refused)
            assert said["holder"] == f"{INSTALLED_IN}/penstock-operator/{pods()[addresses()[0]]}"
            namespace.apply(endpoint("later", "b"))
            wait_for("the first to act", lambda: namespace.get("service", "later"))
            (pod,) = namespace.list("pods", OPERATOR_PODS)
            assert condition_of(pod, "Ready")["status"] == "False"
            assert router() == before
            assert namespace.get("deployment", "penstock-shared-router") is None
            assert namespace.get("endpointslice", "later-shared-router") is None
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


def test_notes_and_docs_name_what_stays_after_uninstalling() -> None:
    """Each in a command that takes it away; the namespaces' own by their kinds."""
    _, _, notes = helm("install", *VALUES, "--dry-run=client").stdout.partition("\nNOTES:\n")
    _, _, docs = (ROOT / "docs/operations/upgrade.md").read_text().partition("\n## Uninstalling\n")
    named = re.compile(r" ((?:crd|clusterrole(?:binding)?|secret|lease|endpointslice)/\S+)")
    for text in (notes, docs.partition("\n## ")[0]):
        assert set(named.findall(text)) == STAYS
        kinds = [kind.plural for kind in (*KINDS.values(), *CHILDREN)]
        assert [kind for kind in kinds if kind not in text.lower()] == []


def left(cluster: Cluster) -> set[str]:
    """The objects of the release and of its operator, in its namespace and in the cluster."""
    kinds_of_ours = (
        "secrets,leases,endpointslices,configmaps,services,serviceaccounts,deployments,roles,rolebindings"
    )
    shared = (
        "crd,clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,"
        "mutatingadmissionpolicies,mutatingadmissionpolicybindings,flowschemas"
    )
    names = [
        *Namespace(cluster, INSTALLED_IN).kubectl("get", kinds_of_ours, "-o", "name").split(),
        *Namespace(cluster, "kube-system").kubectl("get", "leases", "-o", "name").split(),
        *cluster.kubectl(
            "get", shared, "-l", "app.kubernetes.io/part-of=penstock", "-o", "name"
        ).stdout.split(),
    ]
    pairs = [(kind.partition(".")[0], name) for kind, _, name in (name.partition("/") for name in names)]
    short = {"customresourcedefinition": "crd"}
    return {f"{short.get(kind, kind)}/{name}" for kind, name in pairs if "penstock" in name}


def test_uninstalling_keeps_every_resource_and_requests_flow(
    penstock: Cluster, namespace: Namespace, load: Load
) -> None:
    """Without the operator a pod is replaced and nothing lost; installed again, it takes all of it over.

    An injected pod stays as it is, and serves; a new one is plain until it is installed again.
    """
    namespace.apply(
        ledger_code(), ledger_backend("kept", collector=load.port, replicas=2), endpoint("kept", "kept")
    )
    _, deployment, *_ = plain(load)
    template = deployment["spec"]["template"]
    template["metadata"]["labels"] |= LABEL
    deployment["spec"]["replicas"] = 1
    namespace.apply(deployment)
    rolled_out(namespace)
    (injected,) = living(namespace)
    metadata = template["metadata"] | {"name": "new"}
    new = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})

    def new_pod() -> list[str]:
        said = namespace.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", input=new)
        return [each["name"] for each in json.loads(said)["spec"].get("initContainers") or ()]

    namespace.wait_ready("modelbackend", "kept")
    namespace.wait_ready("modelendpoint", "kept")
    kept = {kind: namespace.list(kind)[0]["metadata"]["uid"] for kind in ("modelbackend", "modelendpoint")}
    url = namespace.url("kept")
    load.start(url, rate=50)
    penstock.helm("uninstall", RELEASE, "-n", INSTALLED_IN, "--wait", "--timeout", "240s")
    try:
        wait_for("what is said to stay, and nothing else", lambda: left(penstock) == STAYS)
        first = namespace.pods("kept")[0]["metadata"]["name"]
        namespace.kubectl("delete", "pod", first)

        def two_ready() -> bool:
            existing = namespace.pods("kept")
            ready = [
                pod["metadata"]["name"]
                for pod in existing
                for condition in pod["status"].get("conditions", [])
                if condition["type"] == "Ready" and condition["status"] == "True"
            ]
            return len(ready) == 2 and first not in ready

        wait_for("another pod in its place", two_ready)
        assert new_pod() == []
        assert [pod["metadata"]["uid"] for pod in living(namespace)] == [injected["metadata"]["uid"]]
        answer = namespace.curl(
            f"http://{injected['status']['podIP']}:8012/predict", body='{"instances": []}'
        )
        assert answer[0] == 200
    finally:
        upgrade(penstock)
    namespace.wait_ready("modelbackend", "kept")
    assert_nothing_lost(load.stop())
    assert {kind: namespace.list(kind)[0]["metadata"]["uid"] for kind in kept} == kept
    namespace.patch("modelbackend", "kept", {"spec": {"replicas": 1}})
    wait_for("a new pod to be injected again", lambda: new_pod() == ["penstock-sidecar"])
    wait_for("the operator to act again", lambda: len(namespace.pods("kept")) == 1)
