"""A ModelBackend, its pods, Deployment and reports as a cluster shows them, for the tests of statuses."""

from __future__ import annotations

from typing import Any

from penstock_operator.api import ModelBackend
from penstock_operator.status import BackendObserved
from penstock_wire.control.report import SidecarReport, State

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"


def pod(
    name: str = "p1", ready: bool = True, phase: str = "Running", deleting: bool = False, **more: Any
) -> Any:
    metadata = {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
    if deleting:
        metadata["deletionTimestamp"] = NOW
    pod_conditions = [{"type": "Ready", "status": "True" if ready else "False"}, *more.pop("conditions", ())]
    return {"metadata": metadata, "status": {"phase": phase, "conditions": pod_conditions} | more}


def container(name: str = "model", **state: Any) -> dict[str, Any]:
    last = state.pop("last", None)
    restarts = state.pop("restarts", 0)
    image = "example/model:1"
    status = {"name": name, "image": image, "ready": False, "restartCount": restarts, "state": state}
    return status | ({"lastState": {"terminated": last}} if last else {})


def deployment(replicas: int = 1, ready: int = 1, updated: int | None = None, **more: Any) -> dict[str, Any]:
    counts = {
        "observedGeneration": more.pop("seen", 1),
        "replicas": replicas,
        "readyReplicas": ready,
        "updatedReplicas": replicas if updated is None else updated,
    }
    return {"metadata": {"name": "b-backend", "generation": 1}, "status": counts | more}


def by_type(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}


def message(status: dict[str, Any], kind: str) -> str:
    return next(item["message"] for item in status["conditions"] if item["type"] == kind)


PULL = container(waiting={"reason": "ImagePullBackOff", "message": "Back-off pulling image"})
CRASH = container(
    waiting={"reason": "CrashLoopBackOff"},
    last={"exitCode": 1, "reason": "Error", "message": "no such file\n"},
    restarts=3,
)
BETWEEN = container(running={}, last={"exitCode": 137, "reason": "OOMKilled"}, restarts=1)
ENDED = container(terminated={"exitCode": 0, "reason": "Completed"})
CONFIG = container(
    "penstock-sidecar", waiting={"reason": "CreateContainerConfigError", "message": "no secret"}
)
HOMELESS = [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}]


def backend(**spec: Any) -> ModelBackend:
    return ModelBackend.parse(
        {
            "metadata": {"name": "b", "namespace": "n", "generation": 4},
            "spec": {"model": {"container": {"image": "i"}}} | spec,
        }
    )


def report(name: str = "p1", version: int = 3, state: State = "ready", message: str = "") -> SidecarReport:
    return SidecarReport(pod=name, uid="u", seq=1, state=state, settings_version=version, message=message)


WELL = BackendObserved(
    deployment=deployment(),
    pods=[pod()],
    reports={"p1": report()},
    settings_version=3,
    used_by=["ModelEndpoint/e"],
)
