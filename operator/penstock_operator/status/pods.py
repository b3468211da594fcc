"""Reduces the states that kubelet, the scheduler and the Deployment give to one word and one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from penstock_operator.desired import labels, names
from penstock_operator.desired.objects import Object

_PULL = {
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
}
_CREATE = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PostStartHookError"}
_KEPT = 2048 - 4
"""Bytes of a log that kubelet keeps as last words, without what `strip` and a cut character take."""
_NEVER_RAN = {"StartError", "ContainerCannotRun"}
"""Reasons of an ended container that could not be started, for example because its command is missing."""

_BACK_OFF = re.compile(r'^Back-off pulling image "[^"]*": \w+: ')
"""Kubelet's prefix of a pull's error while it waits to try again (since Kubernetes 1.32)."""

_REPLICA_SET = re.compile(r'"\S*-(\S+)"')
"""In the message of a Deployment's progress, the hash of the template that it rolls out."""

_REPLACED = timedelta(minutes=1)

_ABOUT_RESOURCES = re.compile(r"\b(cpu|memory|ephemeral-storage)\b|\b(limits|requests)\.")
"""In the refusal of a pod, by a ResourceQuota or a LimitRange, for the resources of its containers."""
_LACKING = re.compile(r"\bfor: ([^;\s]+)")
"""Containers that lack what a ResourceQuota demands, as in "limits.cpu for: a,b; limits.memory for: a"."""
_RESOURCES = {
    names.MODEL_CONTAINER: "resources in spec.model.container, python or format",
    names.SIDECAR_CONTAINER: "spec.sidecar.resources, or the chart's sidecar.resources",
    names.ROUTER_CONTAINER: "the chart's router.resources",
}
_DEDICATED = {names.ROUTER_CONTAINER: "spec.router.resources of the ModelEndpoint"}
"""The field of each container's resources."""

_EPHEMERAL_PORT = re.compile(r"(?<=\d|\]):\d+(?=->)")
"""Our end of a connection in an error of Go's `net` package ("read udp 10.0.0.5:40902->10.0.0.10:53")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """The reason why a pod does not run.

    Args:
        reason: one CamelCase word, for a condition.
    """

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """The end of a model's container in a pod that stays."""

    pod: str
    time: str
    message: str


def living(pods: Iterable[Object]) -> list[Object]:
    """The pods that are neither being deleted nor finished."""
    return [
        pod
        for pod in pods
        if not pod["metadata"].get("deletionTimestamp")
        and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
    ]


def ready(pods: Iterable[Object]) -> list[Object]:
    """The living pods whose condition Ready is True."""
    return [pod for pod in living(pods) if _is_true(pod, "Ready")]


def is_ready(pod: Object) -> bool:
    """Whether a pod takes requests (see `ready`)."""
    return bool(ready([pod]))


def runs(pod: Object, container: str) -> bool:
    """Whether a container of a pod runs now."""
    return any(
        status.get("name") == container and "running" in (status.get("state") or {})
        for status in _containers(pod)
    )


def name(pod: Object) -> str:
    """A pod's name."""
    return str(pod["metadata"]["name"])


def unseen(deployment: Object) -> bool:
    """Whether its controller has not taken up a Deployment's last change: its status is of the one before."""
    seen = deployment.get("status", {}).get("observedGeneration") or 0
    return bool(seen < deployment.get("metadata", {}).get("generation", 0))


def of_rollout(pods: Sequence[Object], deployment: Object | None) -> Sequence[Object]:
    """The pods of the template that a Deployment rolls out.

    It names their ReplicaSet where it reports progress; otherwise they are those whose first is the youngest.
    """
    if deployment is None:
        return pods
    if unseen(deployment) or not deployment.get("status", {}).get("updatedReplicas"):
        return ()
    since: dict[object, str] = {}
    for pod in living(pods):
        since[_template(pod)] = min(_created(pod), since.get(_template(pod), _created(pod)))
    says = next((raw for raw in _conditions(deployment) if raw.get("type") == "Progressing"), {})
    named = _REPLICA_SET.search(str(says.get("message") or ""))
    newest = max(since, key=lambda template: since[template], default=None)
    # NB: a pod of the template before is younger if its node was drained meanwhile.
    rolled = named[1] if named and named[1] in since else newest
    return [pod for pod in pods if _template(pod) == rolled]


def _template(pod: Object) -> object:
    return pod["metadata"].get("labels", {}).get("pod-template-hash")


def trouble(pods: Sequence[Object]) -> Trouble | None:
    """The trouble of the youngest living pod that is not ready and has any, or of an evicted one before."""
    waiting = [pod for pod in living(pods) if not _is_true(pod, "Ready")]
    waiting.sort(key=lambda pod: (_created(pod), name(pod)), reverse=True)
    found = next((failure for pod in waiting if (failure := _of_pod(pod)) is not None), None)
    if found is not None or not waiting:
        return found
    evicted = [(time, pod) for pod in pods if (time := _evicted(pod)) and time <= _created(waiting[0])]
    time, last = max(evicted, key=lambda each: each[0], default=("", waiting[0]))
    # A pod is replaced as soon as it is evicted; one that comes later comes for another reason.
    if not time or datetime.fromisoformat(_created(waiting[0])) - datetime.fromisoformat(time) > _REPLACED:
        return None
    text = " ".join(str(last["status"].get("message") or "").split())
    return Trouble(reason="PodEvicted", message=f"pod {name(last)} was evicted: {text}")


def _created(pod: Object) -> str:
    return str(pod["metadata"].get("creationTimestamp") or "")


def _evicted(pod: Object) -> str:
    """The time at which its node's kubelet evicted a pod; empty if it did not."""
    if pod.get("status", {}).get("reason") != "Evicted":
        return ""
    times = (
        raw.get("lastTransitionTime") for raw in _conditions(pod) if raw.get("type") == "DisruptionTarget"
    )
    return str(next(times, None) or "")


def crashes(pods: Iterable[Object]) -> tuple[int, Crash | None]:
    """The restarts of the model's containers in all living pods, and the last of their ends."""
    restarts, last = 0, None
    for pod in living(pods):
        for status in pod.get("status", {}).get("containerStatuses") or ():
            if status.get("name") != names.MODEL_CONTAINER:
                continue
            restarts += status.get("restartCount") or 0
            ended = status.get("state", {}).get("terminated") or status.get("lastState", {}).get("terminated")
            time = (ended or {}).get("finishedAt") or ""
            if ended and time and (last is None or time > last.time):
                last = Crash(pod=name(pod), time=time, message=_ended_words(ended))
    return restarts, last


def refused(deployment: Object | None) -> Trouble | None:
    """The reason why a Deployment cannot create pods: a quota, Pod Security, a missing ServiceAccount."""
    for raw in _of_last_change(deployment):
        if raw.get("type") == "ReplicaFailure" and raw.get("status") == "True":
            message = str(raw.get("message") or raw.get("reason") or "")
            return Trouble(reason="PodsRefused", message=message + _remedy(deployment or {}, message))
    return None


def _remedy(deployment: Object, message: str) -> str:
    """Return the fields of the resources that a quota or a LimitRange is about; empty if it is about none."""
    if _ABOUT_RESOURCES.search(message) is None:
        return ""
    template = deployment.get("spec", {}).get("template", {})
    spec = template.get("spec", {})
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    named = {who for found in _LACKING.findall(message) for who in found.split(",")}
    app = template.get("metadata", {}).get("labels", {}).get(labels.APP_NAME)
    fields = {**_RESOURCES, **(_DEDICATED if app == labels.APP_DEDICATED_ROUTER else {})}
    places = [
        f"{who}: {fields.get(who, 'resources in spec.podTemplate')}"
        for container in containers
        if (who := container["name"]) in named or not named
    ]
    return f" (to change the resources of {'; '.join(places)})" if places else ""


def overdue(deployment: Object | None) -> Trouble | None:
    """The trouble of a rollout without progress for the Deployment's progressDeadlineSeconds, if any."""
    for raw in _of_last_change(deployment):
        if raw.get("type") == "Progressing" and raw.get("reason") == "ProgressDeadlineExceeded":
            return Trouble(reason="ProgressDeadlineExceeded", message=str(raw.get("message") or ""))
    return None


def _of_last_change(deployment: Object | None) -> Sequence[Mapping[str, Any]]:
    return () if deployment is None or unseen(deployment) else _conditions(deployment)


def _conditions(status: Object | None) -> Sequence[Mapping[str, Any]]:
    return (status or {}).get("status", {}).get("conditions") or ()


def _is_true(pod: Object, kind: str) -> bool:
    return any(raw.get("type") == kind and raw.get("status") == "True" for raw in _conditions(pod))


def _of_pod(pod: Object) -> Trouble | None:
    for status in _containers(pod):
        failure = _of_container(status, unready_since=_unready_since(pod))
        if failure is not None:
            return Trouble(reason=failure.reason, message=f"pod {name(pod)}: {failure.message}")
    for raw in _conditions(pod):
        if raw.get("type") == "PodScheduled" and raw.get("status") == "False":
            return Trouble(reason="Unschedulable", message=f"pod {name(pod)}: {raw.get('message') or ''}")
    return None


def _pull_error(text: str) -> str:
    """Return a failed pull's cause in words that stay the same from try to try.

    Kubelet alternates between the error and the error with a prefix until the pod ends; a status that
    repeated both would be written, and wake its watchers, at each change.
    """
    return _EPHEMERAL_PORT.sub("", _BACK_OFF.sub("", text))


def _containers(pod: Object) -> Iterator[Mapping[str, Any]]:
    status = pod.get("status", {})
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _unready_since(pod: Object) -> str:
    """The time since which a pod is not ready, as the API spells times; empty if it is unknown."""
    return next(
        (raw.get("lastTransitionTime") or "" for raw in _conditions(pod) if raw.get("type") == "Ready"), ""
    )


def _crashes(status: Mapping[str, Any], unready_since: str) -> bool:
    """Whether a container that has ended before has not recovered yet.

    A container without a readiness probe is ready as soon as it runs again. It has not recovered until its
    pod has been ready since: otherwise the status would change at every restart.
    """
    if not status.get("ready"):
        return True
    started = status.get("state", {}).get("running", {}).get("startedAt") or ""
    return bool(unready_since and started) and unready_since <= started


def _last_first(text: str) -> str:
    """Put a message's last line before the others: in a traceback, it is the error.

    Kubelet keeps the last bytes of a long text, which seldom begin with a line.
    """
    if len(text.encode()) >= _KEPT and "\n" in text:
        text = "…\n" + text.partition("\n")[2]
    before, _, last = text.rpartition("\n")
    return f"{last}\n{before}" if before else last


def _of_container(status: Mapping[str, Any], *, unready_since: str) -> Trouble | None:
    who = f"container {status.get('name')}"
    waiting = status.get("state", {}).get("waiting") or {}
    word, text = waiting.get("reason") or "", waiting.get("message") or ""
    if word in _PULL:
        return Trouble(
            reason="ImagePullFailed",
            message=f"{who}: image {status.get('image')}: {_pull_error(text) or word}",
        )
    ended = status.get("state", {}).get("terminated") or status.get("lastState", {}).get("terminated")
    if ended and ended.get("reason") in _NEVER_RAN and not status.get("state", {}).get("running"):
        # NB: kubelet alternates between RunContainerError and CrashLoopBackOff for one trouble.
        cause = ended.get("message") or text
        return Trouble(reason="ContainerNotCreated", message=f"{who}: it cannot be started: {cause}")
    if word in _CREATE:
        return Trouble(reason="ContainerNotCreated", message=f"{who}: {word}: {text}")
    if ended and _crashes(status, unready_since):
        restarts = f", restarts: {status.get('restartCount', 0)}"
        return Trouble(reason="ContainerCrashed", message=f"{who} {_ended_words(ended, restarts)}")
    return None


def _ended_words(ended: Mapping[str, Any], more: str = "") -> str:
    """How a container ended, in words: its exit code and cause, what is known `more`, and its last words."""
    last = (ended.get("message") or "").strip()
    words = f"; its last words: {_last_first(last)}" if last else ""
    return f"exited with code {ended.get('exitCode')} ({ended.get('reason') or 'Error'}){more}{words}"
