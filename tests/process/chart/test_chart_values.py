"""Values that make no sense are refused by helm, and by the same limits as the operator's."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock_operator import config as configuration
from penstock_operator.errors import ConfigError
from tests.support.cluster.k8s import CHART
from tests.support.pages.chart import helm, rendered

IMAGES = ("--set", "images.prefix=registry.example/penstock")


def refused_by_helm(values: dict[str, Any]) -> str:
    """What helm says to these values by their paths; nothing where it renders the chart."""
    sets = [word for path, value in values.items() for word in ("--set-json", f"{path}={json.dumps(value)}")]
    done = helm("template", *IMAGES, *sets)
    return done.stderr if done.returncode else ""


def refused_by_the_operator(*arguments: str) -> str:
    """What the operator says to these arguments; nothing where it takes them."""
    try:
        configuration.parse(arguments)
    except ConfigError as error:
        return str(error)
    return ""


def removed(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """The dotted paths of the values that are gone."""
    for name, child in schema.get("properties", {}).items():
        yield from [f"{path}{name}"] if child.get("deprecated") else removed(child, f"{path}{name}.")


def test_an_older_kubernetes_or_helm_is_refused_with_what_is_expected(tmp_path: Path) -> None:
    """Before anything is installed."""
    older = helm("template", *IMAGES, "--kube-version=1.32.0").stderr
    assert "requires kubeVersion: >=1.33.0-0 which is incompatible with Kubernetes v1.32.0" in older
    shutil.copytree(CHART, tmp_path / "chart")
    helpers = tmp_path / "chart/templates/_helpers.tpl"
    version = ".Capabilities.HelmVersion.Version"
    assert helpers.read_text().count(version) == 1
    helpers.write_text(helpers.read_text().replace(version, '"v3.16.4"'))
    older = helm("template", *IMAGES, chart=tmp_path / "chart").stderr
    assert "helm: expected 3.17 or newer, found v3.16.4; see https://helm.sh/docs/intro/install" in older


def test_a_value_that_is_gone_is_refused_with_what_to_use_instead() -> None:
    gone = list(removed(json.loads((Path(CHART) / "values.schema.json").read_text())))
    assert gone
    for path in gone:
        assert re.search(rf"{re.escape(path)}: removed; use [a-z]", refused_by_helm({path: "1h"})), path


def test_all_values_that_are_gone_are_named_at_once_and_whence_they_come() -> None:
    """`--reuse-values` brings the former chart's defaults, which the user has never set."""
    said = refused_by_helm({"operator.workers": 8, "monitoring.podMonitors.interval": "30s"})
    for words in ("operator.workers: removed", "podMonitors.interval: removed", "--reset-then-reuse-values"):
        assert words in said


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        *((value, True) for value in (1, 0, 0.5, 1e6, "1", "500m", ".5", "1.", "2Gi", "1e3", "1E", "100n")),
        *((value, False) for value in (-1, "", "much", "1 Gi", "-1", "1gi", "1e", "NaN", "1_0", True, None)),
    ],
)
def test_a_routers_resources_are_quantities_for_both(value: Any, fits: bool) -> None:
    """A typing error is refused before any router is rendered with it."""
    by_helm = refused_by_helm({"router.resources.requests.memory": value})
    text = json.dumps({"requests": {"memory": value}})
    by_operator = refused_by_the_operator("--router-resources", text)
    if value is None:
        assert by_helm == ""  # helm drops what is null
    else:
        assert (by_helm == "") == fits
    assert (by_operator == "") == fits


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("router.tolerations", [{"ke": "a"}], "'ke' not allowed"),
        ("router.tolerations", [{"key": "a", "tolerationSeconds": "1"}], "want null or integer"),
        ("router.affinity", {"nodeAfinity": {}}, "'nodeAfinity' not allowed"),
        ("router.affinity", {"nodeAffinity": []}, "got array, want null or object"),
        ("router.nodeSelector", {"disk": True}, "got boolean, want string"),
        ("router.topologySpreadConstraints", [{"maxSkew": 1, "topologyKey": "zone"}], "whenUnsatisfiable"),
    ],
)
def test_where_routers_run_has_the_apis_members(path: str, value: Any, message: str) -> None:
    """As far as the schema goes; the operator checks the rest when it starts."""
    by_helm = refused_by_helm({path: value})
    assert message in by_helm
    assert f"at '/{path.replace('.', '/')}" in by_helm
    name = path.removeprefix("router.")
    assert refused_by_the_operator("--router-scheduling", json.dumps({name: value}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, ""),
        ({"minReplicas": 10}, ""),
        ({"minReplicas": 11}, "maxReplicas: expected at least minReplicas (11), found 10"),
        ({"targetCPUUtilizationPercentage": 0}, "targetCPUUtilizationPercentage"),
        ({"maxReplicas": 101}, "maxReplicas"),
        ({"target": 70}, "target"),
    ],
)
def test_autoscaling_has_the_operators_limits(values: dict[str, Any], message: str) -> None:
    """Both name the member; where it is not enabled, the operator gets none of it."""
    whole = {"minReplicas": 2, "maxReplicas": 10, "targetCPUUtilizationPercentage": 70} | values
    by_helm = refused_by_helm({f"router.autoscaling.{name}": value for name, value in whole.items()} | ON)
    by_operator = refused_by_the_operator("--router-autoscaling", json.dumps(whole))
    assert (by_helm == "", by_operator == "") == (message == "", message == "")
    assert message in by_helm
    assert message in by_operator


ON = {"router.autoscaling.enabled": True}


def test_autoscaling_by_cpu_needs_a_request_of_it() -> None:
    """Else the autoscaler would have nothing to compare with, and scale nothing."""
    without = {"requests": {"memory": "1Gi"}}
    assert "requests.cpu: expected one" in refused_by_helm(ON | {"router.resources.requests.cpu": None})
    scaled = json.dumps({"minReplicas": 1, "maxReplicas": 2, "targetCPUUtilizationPercentage": 70})
    refusal = refused_by_the_operator(
        "--router-autoscaling", scaled, "--router-resources", json.dumps(without)
    )
    assert "--router-resources: expected requests.cpu" in refusal
    assert refused_by_the_operator("--router-resources", json.dumps(without)) == ""


@pytest.mark.parametrize(
    ("url", "secret", "message"),
    [
        ("http://prometheus.monitoring:9090/prefix", "", ""),
        ("https://prometheus", "s", ""),
        ("prometheus:9090", "", "pattern"),
        ("http://user:word@prometheus", "", "pattern"),
        ("http://prometheus", "s", "expected https"),
        ("", "s", "expected https"),
    ],
)
def test_where_queries_go_has_the_operators_limits(url: str, secret: str, message: str) -> None:
    """No password in a pod's spec, and no token in plain text."""
    by_helm = refused_by_helm({"operator.prometheus.url": url, "operator.prometheus.secret": secret})
    folder = ["--prometheus-credentials", "/c"] if secret else []
    by_operator = refused_by_the_operator("--prometheus-url", url, *folder)
    assert (by_helm == "", by_operator == "") == (message == "", message == "")
    assert message in by_helm
    assert message in by_operator


def test_the_operator_has_its_way_to_prometheus() -> None:
    """Where its connections are limited at all; the Secret is mounted where the operator looks for it."""
    url = ("--set", "operator.prometheus.url=https://p:9090/x", "--set", "operator.prometheus.secret=s")
    there, way = ({"to": [{"ipBlock": {"cidr": f"10.0.0.{n}/32"}}], "ports": [{"port": 9}]} for n in (1, 2))
    egress = ("--set-json", f"operator.prometheus.egress=[{json.dumps(there)}]")
    limited = ("--set-json", f"networkPolicies.egress=[{json.dumps(way)}]")
    for arguments, rules in (((), None), (limited, [way, there])):
        objects = {document["kind"]: document for document in rendered(*url, *egress, *arguments)}
        pod = objects["Deployment"]["spec"]["template"]["spec"]
        environment = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
        assert environment["PENSTOCK_PROMETHEUS_URL"] == "https://p:9090/x"
        mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
        assert environment["PENSTOCK_PROMETHEUS_CREDENTIALS"] == mounts["prometheus"]
        (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "prometheus"]
        assert volume["secret"]["secretName"] == "s"
        policy = objects["NetworkPolicy"]["spec"]
        assert policy.get("egress", [None])[1:] == (rules or [])
    assert "PROMETHEUS" not in json.dumps(rendered())


def test_only_a_cluster_that_serves_the_api_injects_and_never_by_the_operator() -> None:
    """The policies go by the API's presence; who writes them could change every pod: nobody of ours may."""
    api = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
    kinds = [
        {(each["kind"], each["metadata"]["name"]) for each in rendered(*arguments)}
        for arguments in ((), ("--api-versions", api))
    ]
    assert {name for _, name in kinds[1] - kinds[0]} == {
        *("penstock-inject", "penstock-injectable", "penstock-injectable-pods", "penstock-past-sidecar"),
        *("penstock-known-policy", "penstock-known-policy-pods"),
    }
    for values, actions in (((), ["Warn", "Audit"]), (("--set", "injection.unknownPolicy=Deny"), ["Deny"])):
        bindings = [
            each["spec"]["validationActions"]
            for each in rendered("--api-versions", api, *values)
            if each["kind"] == "ValidatingAdmissionPolicyBinding"
            and each["spec"]["policyName"] == "penstock-known-policy"
        ]
        assert bindings == [actions, actions]
    assert "unknownPolicy" in refused_by_helm({"injection.unknownPolicy": "Refuse"})
    one = rendered("--api-versions", api, "--set-string", "operator.watchNamespace=12")
    matched = [
        each["spec"]["matchConstraints"]
        for each in one
        if each["kind"].endswith("AdmissionPolicy") and "penstock.dev/inject" in str(each)
    ]
    selected = [each["namespaceSelector"] for each in matched]
    assert selected == 4 * [{"matchLabels": {"kubernetes.io/metadata.name": "12"}}]
    roles = [each for each in rendered("--api-versions", api) if each["kind"] in ("Role", "ClusterRole")]
    assert roles
    groups = {group for role in roles for rule in role["rules"] for group in rule.get("apiGroups", ())}
    assert "admissionregistration.k8s.io" not in groups
    assert "*" not in groups


def test_a_chart_in_a_second_namespace_takes_nothing_from_the_first() -> None:
    """Another tool applies what helm refuses: objects of the same name then say the same, or are not its own.

    But for the policy that injects: a pod gets one sidecar, which reports to one of both.
    """
    every = (
        *("--api-versions", "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"),
        *("--set", "protection.backendsInUse=true", "--set", "operator.replicas=2"),
        *(f"--set=monitoring.{kind}.enabled=true" for kind in ("podMonitors", "rules", "dashboard")),
    )
    first, second = (
        {
            (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]): each
            for each in rendered(*every, "--namespace", namespace)
        }
        for namespace in ("first", "second")
    )
    both = first.keys() & second.keys()
    assert len({kind for kind, *_ in both}) == 6
    differ = [(kind, name) for kind, namespace, name in both
              if first[kind, namespace, name] != second[kind, namespace, name]]  # fmt: skip
    assert differ == [("MutatingAdmissionPolicy", "penstock-inject")]
    bindings = [each for each in second.values() if each["kind"] == "ClusterRoleBinding"]
    assert [subject["namespace"] for each in bindings for subject in each["subjects"]] == ["second", "second"]
