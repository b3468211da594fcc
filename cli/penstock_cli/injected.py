"""Workloads of others whose pods ask for a sidecar by a label, and what keeps batches from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from penstock_cli.cluster import Resource

LABEL = "penstock.dev/inject"
SIDECAR = "penstock-sidecar"
_MANAGED_BY = "app.kubernetes.io/managed-by"
_HASH = "pod-template-hash"


def workload(pod: Resource) -> str:
    """The workload of a pod, as ``Deployment/name``, as the operator names it in a policy's status.

    Args:
        pod: of the core API.
    """
    metadata = pod["metadata"]
    owner = next((each for each in metadata.get("ownerReferences") or () if each.get("controller")), None)
    if owner is None:
        return f"Pod/{metadata['name']}"
    ending = "-" + metadata["labels"].get(_HASH, "-")
    if owner["kind"] == "ReplicaSet" and owner["name"].endswith(ending):
        return f"Deployment/{owner['name'].removesuffix(ending)}"
    return f"{owner['kind']}/{owner['name']}"


def by_workload(pods: Sequence[Resource]) -> dict[tuple[str, str], list[Resource]]:
    """The living pods with the label that are not Penstock's own, by namespace and workload.

    Args:
        pods: of the core API.
    """
    found: dict[tuple[str, str], list[Resource]] = defaultdict(list)
    for pod in pods:
        metadata, phase = pod["metadata"], (pod.get("status") or {}).get("phase")
        own = metadata.get("labels") or {}
        living = "deletionTimestamp" not in metadata and phase not in ("Succeeded", "Failed")
        if LABEL in own and own.get(_MANAGED_BY) != "penstock" and living:
            found[metadata["namespace"], workload(pod)].append(pod)
    return dict(sorted(found.items()))


def row(name: str, pods: Sequence[Resource]) -> tuple[str, str, str, str]:
    """A line of the overview: the workload, whether its pods are ready, why, and details.

    Args:
        name: the workload, as it is shown.
        pods: all of it.
    """
    ready, injected = sum(map(_is_ready, pods)), [pod for pod in pods if has_sidecar(pod)]
    state = "True" if ready == len(pods) else "False"
    reason = "Injected" if len(injected) == len(pods) else "NotInjected"
    policy = pods[0]["metadata"]["labels"][LABEL]
    return name, state, reason, f"{ready} of {len(pods)} ready, policy {policy}"


def notes(pods: Sequence[Resource], services: Sequence[Resource], policies: set[str]) -> Iterator[str]:
    """Yield what keeps batches from a workload, a sentence each.

    Args:
        pods: all of it.
        services: of its namespace.
        policies: names of the BatchPolicies of its namespace.
    """
    policy = pods[0]["metadata"]["labels"][LABEL]
    if policy != "default" and policy not in policies:
        there = ", ".join(sorted(policies)) or "none"
        yield f"there is no BatchPolicy {policy} (there are: {there}): its pods have the defaults"
    if plain := [pod["metadata"]["name"] for pod in pods if not has_sidecar(pod)]:
        yield (
            f"{len(plain)} of its pods have no sidecar, such as {plain[0]}: they are older than the label, "
            "or cannot have one (a warning at their creation says why)"
        )
    injected = [pod for pod in pods if has_sidecar(pod)]
    for service in services if injected else ():
        selector, own = service["spec"].get("selector") or {}, injected[0]["metadata"]["labels"]
        if not selector or any(own.get(name) != value for name, value in selector.items()):
            continue
        for port in service["spec"].get("ports") or ():
            target = port.get("targetPort", port["port"])
            if isinstance(target, int) and target == _model_port(injected[0]):
                yield (
                    f"Service {service['metadata']['name']} leads past the sidecar: its targetPort is the "
                    f"number {target}; write the name {_port_name(injected[0])}"
                )


def has_sidecar(pod: Resource) -> bool:
    """Whether the sidecar is in a pod.

    Args:
        pod: of the core API.
    """
    return any(each["name"] == SIDECAR for each in pod["spec"].get("initContainers") or ())


def _sidecar(pod: Resource) -> Resource:
    containers = pod["spec"].get("initContainers") or ()
    found: Resource = next((each for each in containers if each["name"] == SIDECAR), {})
    return found


def _port_name(pod: Resource) -> str:
    ports = _sidecar(pod).get("ports") or [{}]
    return str(ports[0].get("name", ""))


def _model_port(pod: Resource) -> int:
    words = _sidecar(pod).get("args") or []
    model = words[words.index("--model") + 1] if "--model" in words[:-1] else ""
    number = model.rpartition(":")[2]
    return int(number) if number.isdecimal() else 0


def _is_ready(pod: Resource) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
