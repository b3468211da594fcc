"""Print the ModelBackend and ModelEndpoint that could take a Deployment's place; nothing is applied.

What they do not carry over stands above them as comments, so the output can be read, edited and applied:
`kubectl penstock adopt deployment/fast | kubectl apply --dry-run=server -f -`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from penstock_cli.cluster import GROUP, VERSION, Cluster, CommandError, Resource
from penstock_cli.injected import LABEL, SIDECAR
from penstock_cli.text import Screen

_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
_START = ("image", "imagePullPolicy", "command", "args", "env", "envFrom", "resources", "volumeMounts")
_MODEL = frozenset((*_START, *_PROBES, "securityContext"))
_PLACE = ("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "priorityClassName")
_PARTS = ("volumes", "initContainers", "containers", "serviceAccountName", "imagePullSecrets")
_POD = frozenset((*_PLACE, *_PARTS, "runtimeClassName", "securityContext"))
_OWN = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "restartPolicy": "Always",
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "serviceAccount": None,
    "terminationGracePeriodSeconds": 30,
    "ports": None,
    "name": None,
}
"""What the API server adds, or a ModelBackend has anyway; None: whatever its value."""

_NAMES_OF_OURS = ("app.kubernetes.io/name", "app.kubernetes.io/managed-by")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("workload", metavar="deployment/NAME", help="the Deployment")


def run(cluster: Cluster, arguments: argparse.Namespace, screen: Screen) -> int:
    """Print the resources."""
    kind, slash, name = arguments.workload.partition("/")
    if (
        not slash
        or not name
        or kind.lower() not in ("deployment", "deployments", "deployment.apps", "deploy")
    ):
        raise CommandError(f"expected deployment/NAME, found {arguments.workload!r}")
    services = [service["metadata"]["name"] for service in cluster.list_core("service")]
    screen.show(page(cluster.deployment(name), services))
    return 0


def page(deployment: Resource, services: Iterable[str] = ()) -> list[str]:
    """Make the lines of the output: comments, then the resources as YAML.

    Args:
        deployment: of the apps API.
        services: names of the Services of its namespace.

    Raises:
        CommandError: the port of the model is not clear.
    """
    backend, endpoint, left = adopted(deployment)
    comments = [
        f"# In place of Deployment/{backend['metadata']['name']}; apply, move the callers, delete it.",
        *left,
    ]
    if endpoint["metadata"]["name"] in services:
        name = endpoint["metadata"]["name"]
        comments.append(f"# There is a Service {name}: delete it first, or name the endpoint otherwise.")
    text = yaml.safe_dump_all([backend, endpoint], sort_keys=False, width=110)
    return [*comments, *text.rstrip().splitlines()]


def adopted(deployment: Resource) -> tuple[Resource, Resource, list[str]]:
    """Make a ModelBackend, a ModelEndpoint, and comments on what they do not carry over.

    Args:
        deployment: of the apps API.

    Raises:
        CommandError: the port of the model is not clear.
    """
    metadata, template = deployment["metadata"], deployment["spec"]["template"]
    annotations = template["metadata"].get("annotations") or {}
    own = template["metadata"].get("labels") or {}
    pod = template["spec"]
    container, port = _model(pod["containers"], annotations.get("penstock.dev/port", ""))
    model = {name: value for name, value in container.items() if name in _MODEL and value}
    numbers = {each["name"]: each["containerPort"] for each in container.get("ports") or () if "name" in each}
    for probe in _PROBES:
        if probe in model:
            model[probe] = _by_number(model[probe], numbers)
    ready = (model.get("readinessProbe") or {}).get("httpGet") or {}
    protocol = annotations.get("penstock.dev/protocol", "instances")
    path = ready.get("path", "/") if ready.get("port") == port else "/"
    path = annotations.get("penstock.dev/ready-path", "/v2/health/ready" if protocol == "v2" else path)
    spec: Resource = {
        "model": {
            "container": model,
            "port": port,
            "protocol": protocol,
            "readyPath": path if path.startswith("/") else f"/{path}",
        },
        "replicas": deployment["spec"].get("replicas", 1),
    }
    if own.get(LABEL, "default") != "default":
        spec["batchPolicyRef"] = own[LABEL]
    others = {name: value for name, value in pod.items() if name in _POD and value}
    others["containers"] = [each for each in pod["containers"] if each is not container]
    others["initContainers"] = [each for each in pod.get("initContainers") or () if each["name"] != SIDECAR]
    others["labels"] = {
        name: value for name, value in own.items() if not _is_ours(name) and name not in _NAMES_OF_OURS
    }
    others["annotations"] = {name: value for name, value in annotations.items() if not _is_ours(name)}
    spec["podTemplate"] = {name: value for name, value in others.items() if value}
    place = {"namespace": metadata["namespace"]} if metadata.get("namespace") else {}
    named = {"name": metadata["name"], **place}
    api = {"apiVersion": f"{GROUP}/{VERSION}"}
    backend = {**api, "kind": "ModelBackend", "metadata": named, "spec": spec}
    endpoint = {
        **api, "kind": "ModelEndpoint", "metadata": dict(named), "spec": {"backend": metadata["name"]}
    }  # fmt: skip
    return backend, endpoint, list(_left(deployment, container))


def _left(deployment: Resource, container: Resource) -> Iterator[str]:
    """Yield what the resources do not carry over, a comment each."""
    pod = deployment["spec"]["template"]["spec"]
    for what, found, kept in (("pod", pod, _POD), (f"container {container['name']}", container, _MODEL)):
        lost = sorted(
            name
            for name, value in found.items()
            if name not in kept and value and (name not in _OWN or _OWN[name] not in (None, value))
        )
        if lost:
            yield f"# Not carried over from the {what}: {', '.join(lost)}."
    strategy = deployment["spec"].get("strategy") or {}
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        yield f"# It rolled by strategy {strategy['type']}; a ModelBackend rolls without a gap."
    yield "# Containers get no token of their ServiceAccount, and by default are non-root, read-only."


def _model(containers: list[Resource], wanted: str) -> tuple[Resource, int]:
    """Return the container of the model and its port, by the rule of injection."""
    for container in containers if wanted else containers[:1]:
        tcp = [each for each in container.get("ports") or [] if each.get("protocol", "TCP") == "TCP"]
        named = [
            each
            for each in tcp
            if (wanted in (each.get("name"), str(each["containerPort"])) if wanted else len(tcp) == 1)
        ] or [each for each in tcp if not wanted and each.get("name") == "http"]
        if len(named) == 1:
            return container, int(named[0]["containerPort"])
    if wanted.isdecimal():
        return containers[0], int(wanted)
    raise CommandError(
        "the model's port is not clear: expected one port in the first container, one named http, or the "
        f"annotation penstock.dev/port of the pod template{f', found {wanted!r}' if wanted else ''}"
    )


def _by_number(probe: Any, numbers: dict[str, int]) -> Any:
    return {
        how: asked | {"port": numbers.get(asked["port"], asked["port"])}
        if isinstance(asked, dict) and "port" in asked
        else asked
        for how, asked in probe.items()
    }


def _is_ours(name: str) -> bool:
    return name.startswith("penstock.dev/") or name == "kubectl.kubernetes.io/restartedAt"
