"""The world around an operator in memory: kubelet, pods that report, peace; and what a cluster comes to."""

from __future__ import annotations

import json
import re
from typing import Any

from penstock_operator.kinds import BACKEND, CONFIG_MAP, DEPLOYMENT, POD
from penstock_wire.control.report import Reconfigure
from tests.support.worlds.memory_cluster import MemoryCluster
from tests.support.worlds.operator_harness import Harness

Obj = dict[str, Any]
REFUSED = {"threshold": 2}
"""The userConfig that no model takes."""


def _documents(cluster: MemoryCluster) -> dict[str, Obj]:
    """The document of every settings ConfigMap, by name."""
    return {
        name: json.loads(cluster.find(CONFIG_MAP, "n", name)["data"]["settings.json"])
        for name in cluster.names(CONFIG_MAP, "n")
    }


def _reconfigured(cluster: MemoryCluster, backend: str, document: Obj) -> Reconfigure | None:
    """The result of a model's userConfig, if it has one and a reconfigure path."""
    stored = cluster.objects.get((BACKEND.kind, "n", backend))
    if stored is None or not stored["spec"]["model"].get("reconfigurePath") or not document.get("userConfig"):
        return None
    taken = document["userConfig"] != REFUSED
    return Reconfigure(version=document["version"], ok=taken, message="" if taken else "no such threshold")


async def kubelet(harness: Harness, load: int = 0) -> None:
    """Every Deployment gets the pods that it asks for; every pod reports the settings that there are.

    Args:
        load: items that wait in each pod of a backend.
    """
    cluster = harness.cluster
    deployments = cluster.names(DEPLOYMENT, "n")
    for name in cluster.names(POD, "n"):
        if not any(name.startswith(f"{deployment}-") for deployment in deployments):
            cluster.remove(POD, "n", name)
    pods = {
        name: harness.pods_ready(name, cluster.find(DEPLOYMENT, "n", name)["spec"]["replicas"])
        for name in deployments
        if (DEPLOYMENT.kind, "n", name) in cluster.objects  # removing a pod collects objects without an owner
    }
    await harness.run()
    documents = _documents(cluster)
    for name, own in pods.items():
        for pod in own:
            if name == "penstock-router" and "penstock-router-settings" in documents:
                document = documents["penstock-router-settings"]
                names = [endpoint["name"] for endpoint in document["endpoints"]]
                harness.router_report(pod, names, version=document["version"])
            elif f"{name}-settings" in documents:
                backend, document = name.removesuffix("-backend"), documents[f"{name}-settings"]
                harness.report(
                    backend, pod, version=document["version"], load=load,
                    reconfigure=_reconfigured(cluster, backend, document),
                )  # fmt: skip
    await harness.run()


async def peace(harness: Harness) -> None:
    """Nothing fails any more: a list of what was missed, time, and pods that report, without a load.

    Nobody is asked to look again who is not concerned by what was missed. Who is scaled gets the time in
    which the number falls to the least.
    """
    harness.cluster.fail = lambda *_: None
    harness.cluster.collect_garbage()
    await harness.manager.relist()
    for _ in range(8):
        await harness.turn(5)
    backends = [live for key, live in harness.cluster.objects.items() if key[0] == BACKEND.kind]
    scaled = any("autoscaling" in live["spec"] for live in backends)
    for _ in range(12 if scaled else 4):
        await kubelet(harness)
        await harness.turn(2 if scaled else 1)


def shape(cluster: MemoryCluster) -> dict[str, Any]:
    """The content of the cluster, without its history: versions, times, uids, drawn secrets, ports."""
    shapes: dict[str, Any] = {}
    for key, live in sorted(cluster.objects.items()):
        if key[0] in ("Event", "Pod"):
            continue
        body = {field: live[field] for field in ("spec", "data", "status", "roleRef") if field in live}
        if "conditions" in body.get("status", {}):  # the apiserver keeps a keyed list in the order of arrival
            ordered = sorted(live["status"]["conditions"], key=lambda condition: str(condition["type"]))
            body["status"] = {**live["status"], "conditions": ordered}
        if key[0] == BACKEND.kind:  # how often it was scaled, and why, is its history; the number is compared
            body["status"] = {field: value for field, value in body["status"].items() if field != "scaling"}
        body["labels"] = live["metadata"].get("labels")
        body["owners"] = sorted(ref["name"] for ref in live["metadata"].get("ownerReferences") or ())
        text = json.dumps(body, sort_keys=True)
        for pattern, word in (
            (r'\\?"version\\?": ?\d+', '"version"'),
            (r"version \d+", "version"),
            (r'"settingsVersion": \d+', '"settingsVersion"'),
            (r'"observedGeneration": \d+', '"observedGeneration"'),
            (r'"applied(Generation)?": \d+, ', ""),  # what was last taken up is remembered, by design
            (r'"(lastTransitionTime|firstReadyTime|since)": "[^"]+"', r'"\1"'),
            (r'\\?"port\\?": ?2\d{4}', '"port"'),
            (r'"targetPort": 2\d{4}', '"targetPort"'),
            (r"[0-9a-f]{32,64}", "drawn"),
        ):
            text = re.sub(pattern, word, text)
        shapes["/".join(key)] = text
    return shapes
