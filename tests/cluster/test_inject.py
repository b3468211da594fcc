"""The sidecar in pods of somebody else, by one label: what the pods become, and how they serve."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from penstock_operator.api import ModelBackend
from penstock_operator.desired import sidecar
from penstock_operator.desired.config import RenderConfig
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.injected_app import GUIDE, POD_SECURITY, RESTRICTED, living, plain, workloads
from tests.support.cluster.k8s import Load, Namespace, assert_nothing_lost
from tests.support.pages.page import Page, Shell

SHAPES = Path(__file__).parent / "inject_shapes.yaml"


def face(pod: dict[str, Any]) -> dict[str, Any] | str:
    """What injection decides of a pod: the sidecar's arguments and identity, names of ports, probes, ends."""
    spec = pod["spec"]
    first = (spec.get("initContainers") or [{}])[0]
    if first.get("name") != "penstock-sidecar" or "args" not in first:
        return "plain"
    words = dict(zip(first["args"][::2], first["args"][1::2], strict=True))
    env = {each["name"]: each.get("value", "by field") for each in first["env"]}
    found: dict[str, Any] = {
        "model": words["--model"].rpartition(":")[2],
        "protocol": words["--protocol"],
        "readyPath": words["--ready-path"] if words["--ready-status"] == "399" else "any answer",
        "port": first["ports"][0]["name"],
        "workload": env["PENSTOCK_BACKEND"],
        "init": [each["name"] for each in spec["initContainers"][1:]],
        "volumes": [each["name"].partition("-access-")[0] for each in spec["volumes"]],
        "grace": spec["terminationGracePeriodSeconds"],
    }
    if "resources" in spec:
        found["resources"] = first["resources"]
    if (first.get("lifecycle") or {}).get("preStop"):
        found["drainsItself"] = True
    for container in spec["containers"]:
        steps = container.get("lifecycle") or {}
        stop = steps.get("preStop") or {}
        found[f"container {container['name']}"] = {
            "ports": [[port.get("name"), port["containerPort"]] for port in container.get("ports") or ()],
            "probes": {
                name: asked[how]["port"]
                for name, asked in (container | steps).items()
                for how in ("httpGet", "tcpSocket")
                if (name in steps or name.endswith("Probe")) and how in asked and asked[how]["port"] != 8013
            },
            "drains": (stop.get("httpGet") or {}).get("port") == 8013,
        }
    return found


def whole(shape: dict[str, Any]) -> dict[str, Any]:
    """A pod of the golden file, with what every pod needs under Pod Security `restricted`."""
    spec = dict(shape["pod"])
    containers = spec.get("containers", [{"name": "app", "ports": [{"name": "http", "containerPort": 8080}]}])
    for kind, each in (("containers", containers), ("initContainers", spec.get("initContainers", []))):
        if each:
            spec[kind] = [{"image": "app", "securityContext": RESTRICTED, **container} for container in each]
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "fast-7d4b9c", "controller": True}
    owned = {"ownerReferences": [owner | {"uid": "0b1f5b0e-0000-4000-8000-000000000000"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": shape["shape"],
            "labels": {"app": "fast", "pod-template-hash": "7d4b9c", "penstock.dev/inject": "small"}
            | shape.get("labels", {}),
            "annotations": {"shape": shape["shape"]} | shape.get("annotations", {}),
            **owned,
            **shape.get("metadata", {}),
        },
        "spec": {"securityContext": POD_SECURITY, "automountServiceAccountToken": False} | spec,
    }


def test_what_pods_become(namespace: Namespace) -> None:
    """Every shape of pod, in and out, as the API server stores it; a second creation changes nothing.

    Under Pod Security `restricted`, but for the shapes that it refuses without a sidecar as well.
    """
    shapes = yaml.safe_load(SHAPES.read_text())
    namespace.kubectl("create", "serviceaccount", "fast")

    def created(pods: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        dry = ("create", "--dry-run=server", "-o", "json", "-f", "-")
        return documents(namespace.kubectl(*dry, input=yaml.safe_dump_all(pods)))

    pods = created(whole(shape) for shape in shapes if "unrestricted" not in shape)
    enforced = "pod-security.kubernetes.io/enforce=privileged"
    namespace.cluster.kubectl("label", "namespace", namespace.name, enforced, "--overwrite")
    pods += created(whole(shape) for shape in shapes if "unrestricted" in shape)
    stored = {pod["metadata"]["annotations"]["shape"]: pod for pod in pods}
    first = shapes[0]["out"]
    assert {shape["shape"]: face(stored[shape["shape"]]) for shape in shapes} == {
        shape["shape"]: shape["out"] if isinstance(shape["out"], str) else first | shape["out"]
        for shape in shapes
    }
    injected, ours = stored["one-named-port"]["spec"]["initContainers"][0], of_a_backend()
    for shape in shapes:
        given, pod = whole(shape)["metadata"], stored[shape["shape"]]
        labels = {name: value or "" for name, value in given["labels"].items()}
        assert (pod["metadata"]["labels"], pod["metadata"]["annotations"]) == (labels, given["annotations"])
        if face(pod) != "plain":
            assert pod["spec"]["initContainers"][0]["securityContext"] == ours["securityContext"]
    alike = ("restartPolicy", "resources", "terminationMessagePolicy")
    assert {name: injected[name] for name in alike} == {name: ours[name] for name in alike}
    assert {name for each in (injected, ours) for name in each if "Probe" in name} == {
        "livenessProbe", "readinessProbe",
    }  # fmt: skip
    for probe in ("livenessProbe", "readinessProbe"):
        asked = injected[probe] | {"httpGet": injected[probe]["httpGet"] | {"scheme": "HTTP"}}
        assert asked | ours[probe] | {"httpGet": ours[probe]["httpGet"] | {"scheme": "HTTP"}} == asked
    assert [pod["spec"] for pod in created(map(clean, pods))] == [pod["spec"] for pod in pods]


def of_a_backend() -> dict[str, Any]:
    """The sidecar that the operator renders for a ModelBackend."""
    model = {"container": {"image": "app"}}
    backend = ModelBackend.parse(
        {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": "ModelBackend",
            "metadata": {"name": "b", "namespace": "n", "uid": "u"},
            "spec": {"model": model},
        }
    )
    config = RenderConfig(sidecar_image="sidecar", router_image="router")
    return sidecar.container(backend, config=config, drain_secret="secret")


def documents(said: str) -> list[dict[str, Any]]:
    """The objects that kubectl printed, one after another."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(said.rstrip()):
        document, at = decoder.raw_decode(said, at + len(said[at:]) - len(said[at:].lstrip()))
        found += document.get("items", [document])
    return found


def clean(pod: dict[str, Any]) -> dict[str, Any]:
    """A stored pod as somebody would create it again."""
    drop = ("uid", "creationTimestamp", "generation", "resourceVersion", "managedFields")
    metadata = {name: value for name, value in pod["metadata"].items() if name not in drop}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]}


def said_of(
    namespace: Namespace, pod: dict[str, Any], kind: str = "Deployment", policy: str = "small"
) -> str:
    """What our policies say of a workload of such pods; empty where it is taken without a word."""
    labels = {"labels": {"app": "a", "penstock.dev/inject": policy}}
    spec: dict[str, Any] = {"template": {"metadata": labels, "spec": pod}}
    if kind == "CronJob":
        spec = {"schedule": "@daily", "jobTemplate": {"spec": spec}}
    elif kind == "Pod":
        spec = pod
    elif kind != "Job":
        spec["selector"] = {"matchLabels": {"app": "a"}}
    version = {"Pod": "v1", "Job": "batch/v1", "CronJob": "batch/v1"}.get(kind, "apps/v1")
    metadata = {"name": "a"} | (labels if kind == "Pod" else {})
    document = {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}
    return said(namespace, "create", "--dry-run=server", "-f", "-", input=json.dumps(document))


def said(namespace: Namespace, *command: str, input: str = "") -> str:
    """What our policies say when kubectl writes something."""
    done = namespace.cluster.kubectl("-n", namespace.name, *command, input=input, check=False)
    return "\n".join(line for line in done.stderr.splitlines() if "penstock.dev/inject: " in line)


def test_a_workload_that_cannot_be_injected_is_refused_with_the_reason(namespace: Namespace) -> None:
    """Whatever makes the pods; what can be injected is taken, and what does not ask is not looked at."""
    app = {"name": "app", "image": "app", "ports": [{"containerPort": 8080}]}
    assert said_of(namespace, {"containers": [app]}) == ""
    assert "must be the name of a" in said_of(namespace, {"containers": [app]}, policy="Small")
    node = {"hostNetwork": True, "containers": [app]}
    assert "hostNetwork: the sidecar would need" in said_of(namespace, node, "StatefulSet")
    assert "has not one port" in said_of(namespace, {"containers": [app | {"ports": []}]}, "DaemonSet")
    ours = {"containers": [app | {"ports": [{"containerPort": 8013}]}], "restartPolicy": "Never"}
    assert "port 8012 or 8013" in said_of(namespace, ours, "Job")


def test_a_service_that_leads_past_the_sidecar_is_said_when_the_workload_is_written(
    namespace: Namespace,
) -> None:
    """One that selects these pods, by the number of the very port that moves; the warning has the name."""
    numbers = [{"name": "a", "port": 80, "targetPort": 8080}, {"name": "b", "port": 81, "targetPort": 9}]
    for name, app, ports in (
        ("past", "a", numbers),
        ("others", "b", numbers),
        ("named", "a", [{"port": 80, "targetPort": "web"}]),
        ("elsewhere", "a", numbers[1:]),
    ):
        spec = {"selector": {"app": app}, "ports": ports}
        namespace.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
    app = {"name": "app", "image": "app", "ports": [{"name": "web", "containerPort": 8080}]}
    warning = "Service past leads past the sidecar: its targetPort is the number 8080; write the name web"
    pod: dict[str, Any] = {"containers": [app]}
    wait_for("the Services to be seen", lambda: said_of(namespace, pod))
    for kind in ("Deployment", "StatefulSet", "DaemonSet"):
        (line,) = said_of(namespace, pod, kind).splitlines()
        assert line.partition("penstock.dev/inject: ")[2] == warning
    assert said_of(namespace, {"containers": [app | {"ports": [{"containerPort": 9090}]}]}) == ""


def test_a_policy_that_is_not_there_is_said_with_those_that_are(namespace: Namespace) -> None:
    """Once, when a workload begins to name it, whatever makes the pods; `default` needs none."""
    app = {"name": "app", "image": "app", "ports": [{"containerPort": 80}], "securityContext": RESTRICTED}
    pod: dict[str, Any] = {"securityContext": POD_SECURITY, "containers": [app]}
    never = pod | {"restartPolicy": "Never"}
    assert said_of(namespace, pod, policy="none-is-there") == ""
    for name in ("big", "small"):
        document = {"apiVersion": "penstock.dev/v1alpha1", "kind": "BatchPolicy", "metadata": {"name": name}}
        namespace.apply(document | {"spec": {}})
    warning = "there is no BatchPolicy smal (there are: big, small)"
    wait_for("the policies to name each other", lambda: warning in said_of(namespace, pod, policy="smal"))
    for kind in ("Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob", "Pod"):
        (line,) = said_of(namespace, never if "Job" in kind else pod, kind, policy="smal").splitlines()
        assert line.partition("penstock.dev/inject: ")[2] == warning
    assert {said_of(namespace, pod, policy=known) for known in ("big", "small", "default")} == {""}
    template = {"metadata": {"labels": {"app": "a", "penstock.dev/inject": "smal"}}, "spec": pod}
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": "a"}}, "template": template}
    namespace.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": spec})
    assert said(namespace, "set", "image", "deployment/a", "app=other") == ""
    other = {"spec": {"template": {"metadata": {"labels": {"penstock.dev/inject": "other"}}}}}
    assert "no BatchPolicy other" in said(namespace, "patch", "deployment", "a", "-p", json.dumps(other))


def test_a_plain_deployment_gets_batches_by_one_label_and_back(
    namespace: Namespace, load: Load, tmp_path: Path
) -> None:
    """The guide's commands: batches after one rollout, hot settings, nothing lost, and pods as before."""
    namespace.apply(*plain(load))
    kubectl = shlex.join(namespace.cluster.kubectl_command("-n", namespace.name))
    commands = [each for each in Page.of(GUIDE).commands() if "kubectl" in each.line]
    with Shell(tmp_path, {"kubectl ": f"{kubectl} "}) as shell:
        namespace.kubectl("rollout", "status", "deployment", "fast")
        before = bare(namespace)
        for command in commands[:2]:
            shell.run(command)
        # NB: a plain pod ends at once, and nodes send to its address for a moment longer.
        wait_for("the plain pods to be gone", lambda: len(namespace.list("pods", "app=fast")) == 2)
        url = namespace.url("fast")
        rounds = itertools.count()

        def full_batch() -> bool:
            items = [{"id": f"early-{next(rounds)}-{number}"} for number in range(64)]
            largest = max(answer["predictions"][0]["batch"] for _, _, answer in namespace.ask(url, items))
            assert largest <= 8
            return bool(largest == 8)

        wait_for("a full batch", full_batch)  # how many come together is chance
        wait_for(
            "the policy's workloads", lambda: workloads(namespace) == [{"name": "Deployment/fast", "pods": 2}]
        )
        shell.run(commands[2])
        load.start(url, rate=20)
        addresses = [pod["status"]["podIP"] for pod in living(namespace)]
        policy = {"apiVersion": "penstock.dev/v1alpha1", "kind": "BatchPolicy", "metadata": {"name": "small"}}
        namespace.apply(policy | {"spec": {"maxBatchSize": 17}})

        def in_effect() -> bool:
            settings = [namespace.curl(f"http://{ip}:8013/settings")[2] for ip in addresses]
            return all('"maxBatchSize":17' in text for text in settings)

        # NB: by the answers to their reports: from the first one on, a sidecar reads its ConfigMap no more.
        wait_for("both sidecars to obey the new policy", in_effect, seconds=30)
        for command in commands[3:]:
            shell.run(command)
        wait_for("the injected pods to be gone", lambda: len(namespace.list("pods", "app=fast")) == 2)
    assert_nothing_lost(load.stop())
    assert bare(namespace) == before
    wait_for("the policy to be unused", lambda: workloads(namespace) == [])


def bare(namespace: Namespace) -> list[dict[str, Any]]:
    """What the living pods consist of, without what each has of its own."""
    return [
        {
            "init": pod["spec"].get("initContainers"),
            "grace": pod["spec"]["terminationGracePeriodSeconds"],
            "ports": pod["spec"]["containers"][0]["ports"],
            "probe": pod["spec"]["containers"][0]["readinessProbe"],
            "lifecycle": pod["spec"]["containers"][0].get("lifecycle"),
            "volumes": [volume["name"].partition("-access-")[0] for volume in pod["spec"]["volumes"]],
        }
        for pod in living(namespace)
    ]
