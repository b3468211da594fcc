"""An upgrade of the operator restarts no model; what it renders otherwise comes when a user asks for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from devcluster import images
from devcluster.cluster import Cluster
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.injected_app import LABEL, living, plain, rolled_out
from tests.support.cluster.k8s import (
    ROOT,
    Load,
    Namespace,
    assert_nothing_lost,
    endpoint,
    ledger_backend,
    ledger_code,
)
from tests.support.cluster.release import upgrade

SIDECAR, OTHER = "localhost/penstock/sidecar:dev", "localhost/penstock/sidecar:other"
OPERATOR, LATER = "localhost/penstock/operator:dev", "localhost/penstock/operator:later"


@pytest.fixture
def later(penstock: Cluster) -> Iterator[tuple[str, ...]]:
    """The values of a later release: its operator renders another sidecar block. Then all is as before."""
    for folder, tag, base in (("other_image", OTHER, SIDECAR), ("later_operator", LATER, OPERATOR)):
        dockerfile = ROOT / "tests/support/cluster" / folder / "Dockerfile"
        images.build(dockerfile=dockerfile, tag=tag, build_args={"BASE": base})
    penstock.load(OTHER, LATER)
    images_of_it = (f"images.sidecar={OTHER}", f"images.operator={LATER}", "images.pullPolicy=IfNotPresent")
    values = (*images_of_it, "injection.unknownPolicy=Deny")
    yield tuple(word for value in values for word in ("--set", value))
    upgrade(penstock)


def pod_uids(namespace: Namespace) -> list[str]:
    """The uids of the backend's pods, those that end included."""
    return sorted(pod["metadata"]["uid"] for pod in namespace.list("pods", "penstock.dev/backend=b"))


def sidecars(namespace: Namespace) -> set[str]:
    """The sidecars' images in the pods, those that end included."""
    return {
        pod["spec"]["initContainers"][0]["image"] for pod in namespace.list("pods", "penstock.dev/backend=b")
    }


def block(namespace: Namespace) -> dict[str, Any]:
    """The sidecar as the Deployment has it, but for its image."""
    template = (namespace.get("deployment", "b-backend") or {})["spec"]["template"]["spec"]
    sidecar: dict[str, Any] = template["initContainers"][0]
    return {name: value for name, value in sidecar.items() if not name.startswith("image")}


def upgrade_status(namespace: Namespace) -> dict[str, object]:
    """The sidecar's part of the backend's status."""
    status: dict[str, object] = (namespace.get("modelbackend", "b") or {})["status"].get("sidecar", {})
    return status


@pytest.mark.xdist_group("fight")
def test_an_upgrade_of_the_operator_restarts_no_model(
    namespace: Namespace, load: Load, later: tuple[str, ...]
) -> None:
    """Pods, uids and sidecars stay under load while operator and routers are replaced; the status says so.

    The next change that rolls takes the new sidecar.
    """
    namespace.apply(ledger_code(), ledger_backend("b", collector=load.port, replicas=2), endpoint("b", "b"))
    namespace.wait_ready("modelbackend", "b")
    namespace.wait_ready("modelendpoint", "b")
    before, generation = pod_uids(namespace), deployment_generation(namespace)
    sidecar = block(namespace)
    load.start(namespace.url("b"), rate=50)
    upgrade(namespace.cluster, *later)
    waits = {"image": SIDECAR, "upgradePending": True}
    wait_for("the status to report that an upgrade waits", lambda: upgrade_status(namespace) == waits)
    namespace.patch("modelbackend", "b", {"spec": {"batching": {"maxBatchSize": 3}}})
    namespace.wait_ready("modelbackend", "b")
    assert pod_uids(namespace) == before
    assert deployment_generation(namespace) == generation
    assert sidecars(namespace) == {SIDECAR}
    assert block(namespace) == sidecar

    namespace.patch("modelbackend", "b", {"spec": {"drain": {"propagationDelay": "6s"}}})
    wait_for("the new sidecar in all pods", lambda: sidecars(namespace) == {OTHER}, seconds=300)
    wait_for("the status to say so", lambda: upgrade_status(namespace) == {"image": OTHER})
    rendered = block(namespace)
    assert rendered["livenessProbe"]["failureThreshold"] == 7
    assert rendered["args"][:2] == ["--log-level", "debug"]
    namespace.wait_ready("modelbackend", "b")
    assert_nothing_lost(load.stop())


def injected_sidecars(namespace: Namespace) -> set[str]:
    """The sidecars' images in the injected pods that stay; empty where one of them is plain."""
    containers = [pod["spec"].get("initContainers") for pod in living(namespace)]
    return {each[0]["image"] for each in containers} if all(containers) else set()


@pytest.mark.xdist_group("fight")
def test_injection_a_policy_an_upgrade_and_the_way_back_lose_nothing(
    namespace: Namespace, load: Load, later: tuple[str, ...]
) -> None:
    """Under load, of an application with a last step of its own; pods of before the upgrade live on.

    The later release refuses a policy that is not there.
    """
    code, deployment, *others = plain(load)
    app = deployment["spec"]["template"]["spec"]["containers"][0]
    app["lifecycle"] = {"preStop": {"sleep": {"seconds": 12}}}
    namespace.apply(code, deployment, *others)
    rolled_out(namespace)

    def labelled(value: str | None) -> dict[str, Any]:
        return {"spec": {"template": {"metadata": {"labels": dict.fromkeys(LABEL, value)}}}}

    def label(value: str | None) -> None:
        namespace.patch("deployment", "fast", labelled(value))
        rolled_out(namespace)

    load.start(namespace.url("fast"), rate=30, fresh=True)
    label("small")
    assert injected_sidecars(namespace) == {SIDECAR}
    pods = {pod["metadata"]["uid"] for pod in living(namespace)}
    namespace.patch("batchpolicy", "small", {"spec": {"maxBatchSize": 3}})
    upgrade(namespace.cluster, *later)
    namespace.patch("batchpolicy", "small", {"spec": {"maxBatchSize": 4}})
    namespace.wait_ready("batchpolicy", "small")
    assert {pod["metadata"]["uid"] for pod in living(namespace)} == pods
    unknown = ("patch", "deployment", "fast", "--dry-run=server", "-p", json.dumps(labelled("smal")))
    wait_for(
        "a policy that is not there to be refused",
        lambda: "no BatchPolicy smal (there are: small)" in namespace.kubectl(*unknown, check=False),
    )
    namespace.kubectl("rollout", "restart", "deployment", "fast")
    rolled_out(namespace)
    assert injected_sidecars(namespace) == {OTHER}
    label(None)
    assert injected_sidecars(namespace) == set()
    assert_nothing_lost(load.stop())


@pytest.mark.xdist_group("fight")
def test_upgrade_now_brings_the_sidecar_and_an_edit_does_not(
    namespace: Namespace, load: Load, later: tuple[str, ...]
) -> None:
    """An edit of the Deployment goes back to what was kept; `sidecar.upgrade: Now` takes the new sidecar."""
    namespace.apply(ledger_code(), ledger_backend("b", collector=load.port))
    namespace.wait_ready("modelbackend", "b")
    upgrade(namespace.cluster, *later)
    wait_for(
        "the status to report that an upgrade waits", lambda: upgrade_status(namespace).get("upgradePending")
    )

    edit = [{"op": "add", "path": "/spec/template/spec/initContainers/0/args/-", "value": "--nonsense"}]
    namespace.json_patch("deployment", "b-backend", edit)

    def arguments() -> list[str]:
        template = (namespace.get("deployment", "b-backend") or {})["spec"]["template"]["spec"]
        assert template["initContainers"][0]["image"] == SIDECAR
        arguments: list[str] = template["initContainers"][0]["args"]
        return arguments

    wait_for("the edit to be taken back", lambda: "--nonsense" not in arguments())
    namespace.wait_ready("modelbackend", "b")
    assert upgrade_status(namespace) == {"image": SIDECAR, "upgradePending": True}

    namespace.patch("modelbackend", "b", {"spec": {"sidecar": {"upgrade": "Now"}}})
    wait_for("the new sidecar", lambda: sidecars(namespace) == {OTHER}, seconds=300)
    namespace.wait_ready("modelbackend", "b")
    assert upgrade_status(namespace) == {"image": OTHER}


def deployment_generation(namespace: Namespace) -> int:
    """Counts the changes of the Deployment's spec."""
    return int((namespace.get("deployment", "b-backend") or {})["metadata"]["generation"])
