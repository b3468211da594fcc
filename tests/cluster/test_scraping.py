"""Under which labels Prometheus has our metrics, where the Prometheus Operator reads the chart's PodMonitors.

No cluster is needed, but the programs that the cluster's builder makes: helm, and promtool, which has
Prometheus' own relabelling and rules.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from devcluster import programs
from penstock_operator.api import ModelBackend, ModelEndpoint
from penstock_operator.desired import deployment, router
from penstock_operator.desired.config import RenderConfig
from penstock_router.metrics import Metrics as RouterMetrics
from penstock_sidecar.metrics import Metrics as SidecarMetrics
from penstock_wire.errors import Reason
from tests.support.pages.chart import rendered
from tests.support.pages.monitoring import RULES, dashboard_queries

pytestmark = pytest.mark.xdist_group("scraping")

CONFIG = RenderConfig(sidecar_image="s", router_image="r")
NAMESPACE = "demo"
BY_TARGET = {"container", "instance", "job", "namespace", "pod"}
"""The labels of every target, beside `endpoint`, the name of its port."""


def scrape_config(monitor: dict[str, Any], targets: list[dict[str, str]]) -> dict[str, Any]:
    """The scrape configuration that the Prometheus Operator makes of a PodMonitor, without shards.

    Source: `generatePodMonitorConfig` and `generateRelabelConfig` in pkg/prometheus/promcfg.go of
    github.com/prometheus-operator/prometheus-operator; a monitor's own relabelings come last.

    Args:
        monitor: the PodMonitor; with one endpoint, a port's name and a selector of labels.
    """
    name, spec = monitor["metadata"]["name"], monitor["spec"]
    (scraped,) = spec["podMetricsEndpoints"]
    pod = "__meta_kubernetes_pod_"
    relabel: list[dict[str, Any]] = [
        {"action": "drop", "source_labels": [f"{pod}phase"], "regex": "(Failed|Succeeded)"},
        *(
            {
                "action": "keep",
                "source_labels": [f"{pod}label_{sanitized(label)}", f"{pod}labelpresent_{sanitized(label)}"],
                "regex": f"({value});true",
            }
            for label, value in sorted(spec["selector"]["matchLabels"].items())
        ),
        {"action": "keep", "source_labels": [f"{pod}container_port_name"], "regex": scraped["port"]},
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": [f"{pod}container_name"], "target_label": "container"},
        {"source_labels": [f"{pod}name"], "target_label": "pod"},
        {"target_label": "job", "replacement": f"{monitor['metadata']['namespace']}/{name}"},
        {
            "source_labels": [f"{pod}label_{sanitized(spec['jobLabel'])}"],
            "target_label": "job",
            "regex": "(.+)",
            "replacement": "${1}",
        },
        {"target_label": "endpoint", "replacement": scraped["port"]},
        *(
            {snake(key): value for key, value in relabeling.items()}
            for relabeling in scraped.get("relabelings", ())
        ),
    ]
    groups = [{"targets": [target["__address__"]], "labels": target} for target in targets]
    return {"job_name": name, "relabel_configs": relabel, "static_configs": groups}


def sanitized(label: str) -> str:
    """A label of Kubernetes as a part of a label of Prometheus."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", label)


def snake(name: str) -> str:
    """Of `sourceLabels`, `source_labels`."""
    return re.sub(r"[A-Z]", lambda match: f"_{match[0].lower()}", name)


def discovered(template: dict[str, Any], name: str) -> list[dict[str, str]]:
    """Prometheus' targets in a running pod: each port of each of its containers, by `role: pod`."""
    pod = "__meta_kubernetes_pod_"
    shared = {"__meta_kubernetes_namespace": NAMESPACE, f"{pod}name": name, f"{pod}phase": "Running"}
    for label, value in template["metadata"]["labels"].items():
        shared |= {f"{pod}label_{sanitized(label)}": value, f"{pod}labelpresent_{sanitized(label)}": "true"}
    spec = template["spec"]
    return [
        shared
        | {
            "__address__": f"10.0.0.1:{port['containerPort']}",
            f"{pod}container_name": container["name"],
            f"{pod}container_port_name": port["name"],
        }
        for container in [*spec.get("initContainers", ()), *spec["containers"]]
        for port in container["ports"]
    ]


def pods(chart: list[dict[str, Any]]) -> dict[str, list[dict[str, str]]]:
    """Targets of a pod of each program, by the name of the PodMonitor that is for it."""
    (operator,) = [document for document in chart if document["kind"] == "Deployment"]
    endpoint = ModelEndpoint.parse({"metadata": {"name": "e", "uid": "e"}, "spec": {"backend": "b"}})
    objects = router.router_objects(NAMESPACE, [endpoint], config=CONFIG, document=b"{}")
    (routers,) = [document for document in objects if document["kind"] == "Deployment"]
    own = router.dedicated_objects(endpoint, 20000, config=CONFIG, document=b"{}")
    (dedicated,) = [document for document in own if document["kind"] == "Deployment"]
    all_share = router.shared_objects(NAMESPACE, config=CONFIG, document=b"{}")
    (shared,) = [document for document in all_share if document["kind"] == "Deployment"]
    backend = {"metadata": {"name": "b", "uid": "b"}, "spec": {"model": {"container": {"image": "i"}}}}
    model = deployment.pod_template(ModelBackend.parse(backend), config=CONFIG, drain_secret="s")
    templates = {
        "penstock-operator": operator["spec"]["template"],
        "penstock-router": routers["spec"]["template"],
        "penstock-dedicated-router": dedicated["spec"]["template"],
        "penstock-shared-router": shared["spec"]["template"],
        "penstock-sidecar": model,
    }
    return {name: discovered(template, name) for name, template in templates.items()}


@pytest.fixture(scope="module")
def promtool() -> Path:
    """The program, built when it is not there."""
    programs.ensure("prometheus")
    return programs.program("prometheus", "promtool")


@pytest.fixture(scope="module")
def monitors() -> dict[str, dict[str, Any]]:
    """The chart's PodMonitors by name."""
    chart = rendered("--set", "monitoring.podMonitors.enabled=true")
    return {monitor["metadata"]["name"]: monitor for monitor in chart if monitor["kind"] == "PodMonitor"}


@pytest.fixture(scope="module")
def targets(
    promtool: Path, monitors: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, str]]]:
    """Labels of what Prometheus scrapes by each PodMonitor, of a pod of each program."""
    every = [target for group in pods(rendered()).values() for target in group]
    path = tmp_path_factory.mktemp("scraping") / "prometheus.yml"
    configs = [scrape_config(monitor, every) for monitor in monitors.values()]
    path.write_text(yaml.safe_dump({"scrape_configs": configs}))
    # It looks for as long as it may, also where it has found everything.
    runs = {
        name: subprocess.Popen(
            [promtool, "check", "service-discovery", "--timeout=2s", path, name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in monitors
    }
    kept = {}
    for name, run in runs.items():
        out, said = run.communicate(timeout=120)
        assert run.returncode == 0, said
        results = json.loads(out)
        assert len(results) == len(every), out
        kept[name] = [
            {label: value for label, value in result["labels"].items() if not label.startswith("__")}
            for result in results
            if result["labels"]
        ]
    return kept


def scraped(exposed: dict[str, str], target: dict[str, str], *, honor: bool) -> dict[str, str]:
    """Labels of a sample, by what Prometheus' documentation says of `honor_labels`.

    Args:
        honor: whether the sample's win; else those which the target has, too, are renamed.
    """
    if honor:
        return target | exposed
    return {f"exported_{name}" if name in target else name: value for name, value in exposed.items()} | target


def test_each_monitor_finds_the_metrics_of_its_program_and_of_no_other(
    targets: dict[str, list[dict[str, str]]],
) -> None:
    """By labels and port names that are really rendered; and a router's target has no label `endpoint`."""
    metrics = {
        name: [(sample["job"], sample["instance"], set(sample)) for sample in kept]
        for name, kept in targets.items()
    }
    assert metrics == {
        "penstock-operator": [("penstock-operator", "10.0.0.1:8015", BY_TARGET | {"endpoint"})],
        "penstock-router": [("penstock-router", "10.0.0.1:8001", BY_TARGET)],
        "penstock-dedicated-router": [("penstock-dedicated-router", "10.0.0.1:8001", BY_TARGET)],
        "penstock-shared-router": [("penstock-shared-router", "10.0.0.1:8001", BY_TARGET)],
        "penstock-sidecar": [("penstock-backend", "10.0.0.1:8013", BY_TARGET | {"endpoint", "backend"})],
    }


def test_alert_and_panels_of_endpoints_name_the_model_endpoint(
    promtool: Path,
    monitors: dict[str, dict[str, Any]],
    targets: dict[str, list[dict[str, str]]],
    tmp_path: Path,
) -> None:
    """A failing endpoint appears, once scraped, in the critical alert and in each panel."""
    metrics = RouterMetrics(dict)
    for _ in range(6):
        metrics.series("digits", "forest").answered(503, "deadline", 0.01)
    (target,) = targets["penstock-router"]
    honor = monitors["penstock-router"]["spec"]["podMetricsEndpoints"][0]["honorLabels"]
    series = [
        {"series": sample.name + notation(scraped(sample.labels, target, honor=honor)), "values": values}
        for family in text_string_to_metric_families(generate_latest(metrics).decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
        for values in [f"0+{sample.value:g}x20"]
    ]
    panels = [query for _, query in dashboard_queries() if re.search(r"by \(namespace, endpoint\b", query)]
    assert len(panels) == 4
    named = {"namespace": NAMESPACE, "endpoint": "digits"}
    case = {
        "interval": "1m",
        "input_series": series,
        "alert_rule_test": [
            {
                "eval_time": "15m",
                "alertname": "PenstockEndpointErrors",
                "exp_alerts": [
                    {
                        "exp_labels": named | {"severity": "critical"},
                        "exp_annotations": {
                            "summary": f"Endpoint {NAMESPACE}/digits answers with errors.",
                            "description": "100% of its answers are 5xx.",
                        },
                    }
                ],
            }
        ],
        "promql_expr_test": [
            {
                "expr": f"count by (namespace, endpoint) ({query})",
                "eval_time": "15m",
                "exp_samples": [{"labels": notation(named), "value": 1}],
            }
            for query in panels
        ],
    }
    path = tmp_path / "scraped.yaml"
    path.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [case]})
    )
    done = subprocess.run(
        [promtool, "test", "rules", path], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_labels_that_are_a_targets_too_are_the_operators_alone_and_win(
    monitors: dict[str, dict[str, Any]], targets: dict[str, list[dict[str, str]]]
) -> None:
    """It and shared routers show resources of all namespaces; no other pod's labels win over its target's."""
    honored = {
        name: monitor["spec"]["podMetricsEndpoints"][0]["honorLabels"] for name, monitor in monitors.items()
    }
    assert honored == {
        "penstock-operator": True,
        "penstock-router": False,
        "penstock-dedicated-router": False,
        "penstock-shared-router": True,
        "penstock-sidecar": False,
    }
    sidecar = SidecarMetrics()
    sidecar.ran(1, 32, 0.01, (0.0,))
    sidecar.ended(503, Reason.QUEUE_FULL, 1)
    sidecar.cut(Reason.DEADLINE)
    shown = {label for family in sidecar.collect() for sample in family.samples for label in sample.labels}
    assert {"code", "reason", "le"} <= shown
    assert not shown & set(targets["penstock-sidecar"][0])


def notation(labels: dict[str, str]) -> str:
    """Labels as promtool writes them."""
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
