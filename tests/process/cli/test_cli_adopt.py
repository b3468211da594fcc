"""`kubectl penstock adopt`: a Deployment in, a ModelBackend and a ModelEndpoint out."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from penstock_cli.cluster import CommandError
from penstock_cli.commands.adopt import page
from penstock_operator.api import ModelBackend, ModelEndpoint
from tests.support.pages.page import DOCS, Page


def deployment(**pod: Any) -> dict[str, Any]:
    """The guide's Deployment, with more in its pods, as the API server has it."""
    text = Page.of(DOCS / "how-to/inject.md").recipe("inject")
    found: dict[str, Any] = next(yaml.safe_load_all(text))
    found["metadata"]["namespace"] = "n"
    template = found["spec"]["template"]
    template["metadata"]["labels"] |= {"penstock.dev/inject": "small", "app.kubernetes.io/name": "fast"}
    template["spec"] |= {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst"} | pod
    template["spec"]["containers"][0] |= {"terminationMessagePath": "/dev/termination-log"}
    return found


def documents(lines: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two resources, which the operator reads."""
    backend, endpoint = yaml.safe_load_all("\n".join(lines))
    ModelBackend.parse({**backend, "metadata": backend["metadata"] | {"uid": "u"}})
    ModelEndpoint.parse({**endpoint, "metadata": endpoint["metadata"] | {"uid": "u"}})
    return backend, endpoint


def test_what_takes_a_deployments_place() -> None:
    """Its container, port by number, ready path, policy and labels; a Service of its name is in the way."""
    lines = page(deployment(), ["fast", "other"])
    backend, endpoint = documents(lines)
    assert backend["metadata"] == endpoint["metadata"] == {"name": "fast", "namespace": "n"}
    assert endpoint["spec"] == {"backend": "fast"}
    spec = backend["spec"]
    container = spec["model"].pop("container")
    assert spec["model"] == {"port": 8080, "protocol": "instances", "readyPath": "/healthz"}
    assert container["readinessProbe"] == {"httpGet": {"path": "/healthz", "port": 8080}}
    assert "terminationMessagePath" not in container
    assert (spec["replicas"], spec["batchPolicyRef"]) == (2, "small")
    assert spec["podTemplate"]["labels"] == {"app": "fast"}
    comments = [line for line in lines if line.startswith("#")]
    assert comments[0] == "# In place of Deployment/fast; apply, move the callers, delete it."
    assert any("There is a Service fast" in line for line in comments)
    assert not any("Not carried over" in line for line in comments)


def test_what_is_not_carried_over_is_said() -> None:
    """Fields of the pod and of the container that a ModelBackend has not, and a strategy with a gap."""
    given = deployment(hostNetwork=True, terminationGracePeriodSeconds=600)
    given["spec"]["strategy"] = {"type": "Recreate"}
    pod = given["spec"]["template"]["spec"]
    pod["containers"][0]["lifecycle"] = {"preStop": {"sleep": {"seconds": 5}}}
    pod["containers"].append({"name": "log", "image": "log"})
    pod["initContainers"] = [{"name": "penstock-sidecar", "image": "x"}, {"name": "fetch", "image": "f"}]
    lines = page(given)
    assert "# Not carried over from the pod: hostNetwork, terminationGracePeriodSeconds." in lines
    assert "# Not carried over from the container app: lifecycle." in lines
    assert any("strategy Recreate" in line for line in lines)
    template = documents(lines)[0]["spec"]["podTemplate"]
    assert [each["name"] for each in template["containers"]] == ["log"]
    assert [each["name"] for each in template["initContainers"]] == ["fetch"]


@pytest.mark.parametrize(
    ("annotations", "path"),
    [({}, "/ok"), ({"protocol": "v2"}, "/v2/health/ready"), ({"protocol": "v2", "ready-path": "up"}, "/up")],
    ids=str,
)
def test_the_ready_path_is_that_of_injection(annotations: dict[str, str], path: str) -> None:
    """By the annotation, the protocol, or the probe, whose path may lack its slash."""
    given = deployment()
    template = given["spec"]["template"]
    template["spec"]["containers"][0]["readinessProbe"] = {"httpGet": {"path": "ok", "port": 8080}}
    template["metadata"]["annotations"] = {f"penstock.dev/{name}": to for name, to in annotations.items()}
    assert documents(page(given))[0]["spec"]["model"]["readyPath"] == path


@pytest.mark.parametrize(
    ("ports", "wanted", "port"),
    [
        ([{"containerPort": 1}, {"name": "http", "containerPort": 2}], "", 2),
        ([{"name": "a", "containerPort": 1}, {"name": "b", "containerPort": 2}], "b", 2),
        ([{"name": "a", "containerPort": 1}, {"name": "b", "containerPort": 2}], "1", 1),
        ([{"name": "a", "containerPort": 1}, {"containerPort": 2, "protocol": "UDP"}], "", 1),
        ([], "5000", 5000),
        ([], "", None),
        ([{"containerPort": 1}, {"containerPort": 2}], "", None),
        ([{"name": "a", "containerPort": 1}], "b", None),
    ],
    ids=str,
)
def test_the_port_is_that_of_injection(ports: list[dict[str, Any]], wanted: str, port: int | None) -> None:
    """By the annotation, else the only one or the one named http; else it is asked for."""
    given = deployment()
    given["spec"]["template"]["spec"]["containers"][0]["ports"] = ports
    given["spec"]["template"]["metadata"]["annotations"] = {"penstock.dev/port": wanted} if wanted else {}
    if port is None:
        with pytest.raises(CommandError, match="the model's port is not clear"):
            page(given)
    else:
        assert documents(page(given))[0]["spec"]["model"]["port"] == port
