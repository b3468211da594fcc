"""Every stage of a resource's life as a live object, made by the operator on a Kubernetes in memory.

Beside each stage stands what it means to generic tools: the state by kstatus, and by Argo CD.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from penstock_operator.desired import labels, ports
from penstock_operator.errors import Conflict, Rejected, Unavailable
from penstock_operator.kinds import BACKEND, CONFIG_MAP, DEPLOYMENT, ENDPOINT, POD, POLICY, SPLIT, Kind
from penstock_wire.control.report import Fit, Reconfigure
from tests.support.worlds.observed import CONFIG, CRASH, HOMELESS, PULL, container
from tests.support.worlds.operator_harness import Harness, backend, endpoint, policy, split
from tests.support.worlds.release_world import World
from tests.support.worlds.release_world import split as releasing_split

Obj = dict[str, Any]
WELL, UNDER_WAY, FAILED = ("Current", "Healthy"), ("InProgress", "Progressing"), ("Failed", "Degraded")
GOING = ("Terminating", "Progressing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage.

    Args:
        obj: the object as the apiserver would give it.
        reason: that of its condition Ready; empty if it does not have the condition.
    """

    name: str
    obj: Obj
    reason: str
    wanted: tuple[str, str]


def _version(harness: Harness, name: str) -> int:
    document = json.loads(harness.cluster.find(CONFIG_MAP, "n", name)["data"]["settings.json"])
    return int(document["version"])


async def _started(**spec: Any) -> Harness:
    return await Harness().applied(backend(**spec))


async def _silent() -> Harness:
    """A backend with a policy behind an endpoint with a split; all is there, but no router says so."""
    harness = Harness()
    for obj in (policy(maxBatchSize=8), backend(batchPolicyRef="p"), endpoint(), split(m=1)):
        harness.apply(obj)
    await harness.run()
    for pod in harness.pods_ready("m-backend", 1):
        harness.report("m", pod, version=_version(harness, "m-backend-settings"))
    harness.pods_ready("penstock-router", 1)
    await harness.run()
    return harness


async def _routed(*listening: str) -> Harness:
    """The same, with a router that has its settings and listens for these."""
    harness = await _silent()
    version = _version(harness, "penstock-router-settings")
    harness.router_report("penstock-router-0", list(listening), version=version)
    await harness.run()
    return harness


async def _serving() -> Harness:
    """The same, and all is well."""
    return await _routed("e")


async def _impatient() -> Harness:
    """The same, and the endpoint is given more time than its backend gives a request."""
    harness = await _serving()
    await harness.applied(endpoint(timeout="2m"))
    return await _changed(harness, _router_reports)


async def _pod(harness: Harness, **status: Any) -> Harness:
    """One pod that kubelet says this of."""
    (name,) = harness.pods_ready("m-backend", 1)
    conditions = [{"type": "Ready", "status": "False"}, *status.pop("conditions", ())]
    pod_status = {"phase": "Pending", "conditions": conditions, **status}
    harness.cluster.edit(POD, "n", name, lambda live: live.update(status=pod_status))
    harness.cluster.edit(DEPLOYMENT, "n", "m-backend", lambda live: live["status"].update(readyReplicas=0))
    await harness.run()
    return harness


async def _evicted(harness: Harness) -> Harness:
    """A pod that the kubelet evicted, and the one that took its place."""
    old, new = harness.pods_ready("m-backend", 2)
    at = harness.cluster.find(POD, "n", new)["metadata"]["creationTimestamp"]
    conditions = [{"type": "DisruptionTarget", "status": "True", "lastTransitionTime": at}]
    gone = {"phase": "Failed", "reason": "Evicted", "message": "disk", "conditions": conditions}
    harness.cluster.edit(POD, "n", old, lambda live: live.update(status=gone))
    waits = {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}]}
    harness.cluster.edit(POD, "n", new, lambda live: live.update(status=waits))
    harness.cluster.edit(DEPLOYMENT, "n", "m-backend", lambda live: live["status"].update(readyReplicas=0))
    await harness.run()
    return harness


async def _deaf() -> Harness:
    """A model that runs for as long as a rollout may take, and whose readyPath is not there."""
    harness = await _pod(await _started(), phase="Running", containerStatuses=[container(running={})])
    harness.report("m", "m-backend-0", message="GET /: expected status 200 to 399, found 404")
    _overdue(harness)
    await harness.run()
    return harness


async def _slow() -> Harness:
    harness = await _started(batching={"latencyObjective": "200ms"})
    (pod,) = harness.pods_ready("m-backend", 1)
    version = _version(harness, "m-backend-settings")
    harness.report("m", pod, version=version, fit={"/": Fit(a_ms=300, b_ms=1, n=50)})
    await harness.turn(2)
    return harness


def _refusing(error: Exception, kind: str) -> Callable[..., None]:
    def fail(verb: str, a_kind: str, *_: str) -> None:
        if (verb, a_kind) == ("apply", kind):
            raise error

    return fail


async def _refused(error: Exception, kind: str = "Deployment", *, obj: Obj | None = None) -> Harness:
    harness = Harness()
    harness.cluster.fail = _refusing(error, kind)
    for obstacle in (backend(), *([obj] if obj else ())):
        harness.apply(obstacle)
    for _ in range(60):
        await harness.turn(0.1)
    return harness


async def _releasing(reason: str, action: str = "", **strategy: Any) -> Harness:
    """A split whose release has come to a reason, once somebody has asked for an action."""
    world = await World.of(releasing_split(**strategy))
    if action:
        await world.reason("Analyzing")
        world.annotate(action)
    await world.reason(reason)
    await world.second()
    await world.second()
    return world.harness


async def _changed(harness: Harness, change: Callable[[Harness], Any]) -> Harness:
    change(harness)
    await harness.run()
    return harness


async def _unseen() -> Harness:
    harness = await _serving()
    harness.cluster.edit(BACKEND, "n", "m", lambda live: live["spec"].update(replicas=2))
    return harness


def _deleting(kind: Kind, name: str) -> Callable[[], Awaitable[Harness]]:
    async def make() -> Harness:
        harness = await _serving()
        live = harness.cluster.objects[(kind.kind, "n", name)]
        live["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        return harness

    return make


async def _no_port_left() -> Harness:
    harness = Harness()
    for port in range(ports.FIRST, ports.LAST + 1):
        metadata = {"namespace": "n", "name": f"s{port}", "uid": f"s{port}", "resourceVersion": "1",
                    "labels": {labels.ENDPOINT: f"s{port}"}}  # fmt: skip
        service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata,
                   "spec": {"ports": [{"port": 80, "targetPort": port}]}}  # fmt: skip
        harness.ctx.store.put(service)
    for obj in (backend(), endpoint()):
        harness.apply(obj)
    await harness.run()
    return harness


def _with_bad_rule() -> dict[str, Any]:
    """A split with an expression that does not compile."""
    made = split(m=1)
    made["spec"]["backends"][0]["match"] = [{"header": "x", "regex": "("}]
    return made


async def _new_backend_in_split() -> Harness:
    harness = await _serving()
    for obj in (backend("new"), split(m=9, new=1)):
        harness.apply(obj)
    await harness.run()
    return harness


def _router_reports(harness: Harness) -> None:
    version = _version(harness, "penstock-router-settings")
    harness.router_report("penstock-router-0", ["e"], version=version)


async def _stranger(kind: str, name: str, *objs: Obj) -> Harness:
    harness = Harness()
    harness.apply({"apiVersion": "v1", "kind": kind, "metadata": {"namespace": "n", "name": name},
                   "spec": {"ports": [{"port": 1}]}})  # fmt: skip
    for obj in objs:
        harness.apply(obj)
    await harness.run()
    return harness


async def _of(*objs: Obj) -> Harness:
    harness = Harness()
    for obj in objs:
        harness.apply(obj)
    await harness.run()
    return harness


async def _new(obj: Obj) -> Harness:
    harness = Harness()
    harness.apply(obj)
    live = harness.cluster.objects[(obj["kind"], "n", obj["metadata"]["name"])]
    live["status"] = {"observedGeneration": -1}  # the default that the CRDs give
    return harness


_QUOTA, _DOWN = Rejected(403, "exceeded quota: q"), Unavailable(500, 'failed calling webhook "w"')
_DENIED = Rejected(400, 'admission webhook "w" denied the request: no')
_POLICY = Rejected(422, "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no")
_FORBIDDEN = Rejected(403, 'deployments.apps is forbidden: User "u" cannot patch resource "deployments"')
_INVALID = Rejected(422, "spec.template: Invalid value")
_TUNED = {
    "userConfig": {},
    "model": {"container": {"image": "model:1"}, "reconfigurePath": "/c"},
}
_TOO_FEW = {"maxBatchSize": 8, "maxQueuedItems": 4}
_OLD_ROUTE = endpoint("old", route="/x")
_OVERDUE = [
    {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "late"}
]

_STAGES: list[tuple[str, Callable[[], Awaitable[Harness]], Kind, str, str, tuple[str, str]]] = [
    # what happened, how, whose status, its name, reason of Ready, what it means
    ("just applied", lambda: _new(backend()), BACKEND, "m", "", UNDER_WAY),
    ("its pods start", lambda: _started(), BACKEND, "m", "RollingOut", UNDER_WAY),
    ("all is well", _serving, BACKEND, "m", "Serving", WELL),
    ("a change is not seen yet", _unseen, BACKEND, "m", "Serving", UNDER_WAY),
    ("its pods have yet to take a change up", lambda: _then(_serving, lambda h: _changed(h, _hotter)),
     BACKEND, "m", "Waiting", UNDER_WAY),
    ("it is being deleted", _deleting(BACKEND, "m"), BACKEND, "m", "Serving", GOING),
    ("its image cannot be pulled", lambda: _then(_started, lambda h: _pod(h, containerStatuses=[PULL])),
     BACKEND, "m", "ImagePullFailed", FAILED),
    ("its model crashes", lambda: _then(_started, lambda h: _pod(h, containerStatuses=[CRASH])),
     BACKEND, "m", "ContainerCrashed", FAILED),
    ("a Secret of its container is not there",
     lambda: _then(_started, lambda h: _pod(h, containerStatuses=[CONFIG])), BACKEND, "m",
     "ContainerNotCreated", FAILED),
    ("its pod was evicted", lambda: _then(_started, _evicted), BACKEND, "m", "PodEvicted", UNDER_WAY),
    ("its pods cannot be made", lambda: _then(_started, lambda h: _changed(h, _no_pods)), BACKEND, "m",
     "PodsRefused", FAILED),
    ("its batches cannot be full", lambda: _then(lambda: _started(batching=_TOO_FEW), _backend_ready),
     BACKEND, "m", "BatchUnreachable", WELL),
    ("no node takes its pod", lambda: _then(_started, lambda h: _pod(h, conditions=HOMELESS)),
     BACKEND, "m", "Unschedulable", UNDER_WAY),
    ("its model refuses its userConfig from the start",
     lambda: _then(lambda: _started(**_TUNED), lambda h: _changed(h, _config_refused)), BACKEND, "m",
     "ReconfigureFailed", FAILED),
    ("its rollout stands still", lambda: _then(_started, lambda h: _changed(h, _overdue)), BACKEND, "m",
     "ProgressDeadlineExceeded", FAILED),
    ("its model answers elsewhere", _deaf, BACKEND, "m", "ModelNotAnswering", FAILED),
    ("its model is too slow for the objective", _slow, BACKEND, "m", "ObjectiveUnreachable", WELL),
    ("a quota refuses a child", lambda: _refused(_QUOTA), BACKEND, "m", "QuotaExceeded", FAILED),
    ("a webhook does not answer", lambda: _refused(_DOWN), BACKEND, "m", "WebhookFailed", UNDER_WAY),
    ("the apiserver fails", lambda: _refused(Unavailable(503, "no")), BACKEND, "m", "WriteFailed", UNDER_WAY),
    ("another client writes a child", lambda: _refused(Conflict(409, "changed")), BACKEND, "m",
     "WriteConflict", UNDER_WAY),
    ("a webhook refuses a child", lambda: _refused(_DENIED), BACKEND, "m", "WebhookDenied", FAILED),
    ("a policy refuses a child", lambda: _refused(_POLICY), BACKEND, "m", "PolicyDenied", FAILED),
    ("the operator may not write a child", lambda: _refused(_FORBIDDEN), BACKEND, "m", "Forbidden", FAILED),
    ("a child is not valid", lambda: _refused(_INVALID), BACKEND, "m", "WriteRejected", FAILED),
    ("a stranger has a name of its", lambda: _stranger("Service", "m-backend", backend()), BACKEND, "m",
     "NameTaken", FAILED),
    ("its policy is not there", lambda: _started(batchPolicyRef="p"), BACKEND, "m", "BatchPolicyMissing",
     FAILED),
    ("it has no replicas", lambda: _then(lambda: _started(replicas=0), _none_wanted), BACKEND, "m",
     "ScaledToZero", WELL),
    ("it is suspended from the start", lambda: _started(suspend=True), BACKEND, "m", "Suspended",
     ("InProgress", "Suspended")),
    ("it is suspended while well", lambda: _then(_serving, lambda h: _changed(h, _suspend)), BACKEND, "m",
     "Serving", ("Current", "Suspended")),
    ("a change waits while it is suspended", lambda: _then(_serving, lambda h: _changed(h, _hold)), BACKEND,
     "m", "Suspended", ("InProgress", "Suspended")),
    ("it cannot be read", lambda: _of({**backend(), "spec": {"model": {"port": "many"}}}), BACKEND, "m",
     "Unreadable", FAILED),
    ("just applied", lambda: _new(endpoint()), ENDPOINT, "e", "", UNDER_WAY),
    ("its backend is not there", lambda: _of(endpoint()), ENDPOINT, "e", "BackendMissing", FAILED),
    ("its backend starts", lambda: _of(backend(), endpoint()), ENDPOINT, "e", "BackendNotReady", UNDER_WAY),
    ("its router starts", lambda: _then(lambda: _of(backend(), endpoint()), _backend_ready), ENDPOINT, "e",
     "RouterStarting", UNDER_WAY),
    ("its router is silent", _silent, ENDPOINT, "e", "NoReports", UNDER_WAY),
    ("its router has yet to take a change up", lambda: _then(_serving, lambda h: _changed(h, _sooner)),
     ENDPOINT, "e", "Waiting", UNDER_WAY),
    ("its router cannot listen for it", _routed, ENDPOINT, "e", "PortFailed", FAILED),
    ("no port is left", _no_port_left, ENDPOINT, "e", "NoPort", FAILED),
    ("all is well", _serving, ENDPOINT, "e", "Serving", WELL),
    ("its backend ends requests before its own time", _impatient, ENDPOINT, "e", "TimeoutUnreachable", WELL),
    ("it is being deleted", _deleting(ENDPOINT, "e"), ENDPOINT, "e", "Serving", GOING),
    ("another has its route", lambda: _of(backend(), _OLD_ROUTE, endpoint(route="/x")), ENDPOINT, "e",
     "RouteConflict", FAILED),
    ("a stranger has its name", lambda: _stranger("Service", "e", endpoint()), ENDPOINT, "e", "NameTaken",
     FAILED),
    ("a quota refuses its Service", lambda: _refused(_QUOTA, "Service", obj=endpoint()), ENDPOINT, "e",
     "QuotaExceeded", FAILED),
    ("a webhook does not answer", lambda: _refused(_DOWN, "Service", obj=endpoint()), ENDPOINT, "e",
     "WebhookFailed", UNDER_WAY),
    ("just applied", lambda: _new(split(m=1)), SPLIT, "s", "", UNDER_WAY),
    ("its router is silent", _silent, SPLIT, "s", "NoReports", UNDER_WAY),
    ("its router has yet to take it up", lambda: _then(_serving, lambda h: _changed(h, _heavier)), SPLIT,
     "s", "Waiting", UNDER_WAY),
    ("all is well", _serving, SPLIT, "s", "Applied", WELL),
    ("it is being deleted", _deleting(SPLIT, "s"), SPLIT, "s", "Applied", GOING),
    ("its endpoint is not there", lambda: _of(split(m=1)), SPLIT, "s", "EndpointMissing", FAILED),
    ("a backend is not there", lambda: _of(endpoint(), split(m=1)), SPLIT, "s", "BackendMissing", FAILED),
    ("a rule of it cannot be used", lambda: _of(backend(), endpoint(), _with_bad_rule()), SPLIT, "s",
     "InvalidMatch", FAILED),
    ("its router starts", lambda: _of(backend(), endpoint(), split(m=1)), SPLIT, "s", "RouterStarting",
     UNDER_WAY),
    ("a backend of it was never ready",
     lambda: _then(_new_backend_in_split, lambda h: _changed(h, _router_reports)), SPLIT, "s",
     "WaitingForBackend", UNDER_WAY),
    ("a stranger has the Service of its backend",
     lambda: _then(lambda: _stranger("Service", "m-backend", backend(), endpoint()), _backend_ready),
     ENDPOINT, "e", "NoService", UNDER_WAY),
    ("an older one splits the endpoint", lambda: _of(backend(), endpoint(), split("a", m=1), split(m=1)),
     SPLIT, "s", "Conflict", FAILED),
    ("a step of its release is under way", lambda: _releasing("Analyzing"), SPLIT, "s", "Applied", UNDER_WAY),
    ("its release waits for somebody", lambda: _releasing("Paused", "pause"), SPLIT, "s", "Applied",
     UNDER_WAY),
    ("its release is over", lambda: _releasing("Promoted", "promote-full"), SPLIT, "s", "Applied", WELL),
    ("its release was taken back", lambda: _releasing("RolledBack", "abort"), SPLIT, "s", "Applied", FAILED),
    ("its strategy cannot be followed",
     lambda: _releasing("InvalidStrategy", steps=[{"setWeight": 10}, {"mirror": 10}]), SPLIT, "s",
     "InvalidStrategy", FAILED),
    ("just applied", lambda: _new(policy()), POLICY, "p", "", UNDER_WAY),
    ("no backend names it", lambda: _of(policy()), POLICY, "p", "Unused", WELL),
    ("all is well", _serving, POLICY, "p", "Applied", WELL),
    ("it is being deleted", _deleting(POLICY, "p"), POLICY, "p", "Applied", GOING),
    ("its batches cannot be full", lambda: _of(policy(**_TOO_FEW)), POLICY, "p", "BatchUnreachable", WELL),
    ("pods have yet to take it up", lambda: _then(_serving, lambda h: _changed(h, _smaller)), POLICY, "p",
     "Applying", UNDER_WAY),
]  # fmt: skip


async def _then(
    first: Callable[[], Awaitable[Harness]], then: Callable[[Harness], Awaitable[Harness]]
) -> Harness:
    return await then(await first())


def _config_refused(harness: Harness) -> None:
    (name,) = harness.pods_ready("m-backend", 1)
    unready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}
    harness.cluster.edit(POD, "n", name, lambda live: live.update(status=unready))
    harness.cluster.edit(DEPLOYMENT, "n", "m-backend", lambda live: live["status"].update(readyReplicas=0))
    refused = Reconfigure(version=1, ok=False, message="threshold is missing")
    harness.report("m", name, version=1, reconfigure=refused)


def _overdue(harness: Harness) -> None:
    _says(harness, _OVERDUE)


def _says(harness: Harness, conditions: list[dict[str, str]]) -> None:
    """Give its Deployment these conditions, as of its last change."""
    generation = harness.cluster.find(DEPLOYMENT, "n", "m-backend")["metadata"]["generation"]
    status = {"observedGeneration": generation, "conditions": conditions}
    harness.cluster.edit(DEPLOYMENT, "n", "m-backend", lambda live: live.update(status=status))


def _suspend(harness: Harness) -> None:
    harness.cluster.edit(BACKEND, "n", "m", lambda live: live["spec"].update(suspend=True))


def _hold(harness: Harness) -> None:
    harness.apply(backend(batching={"maxBatchSize": 2}, suspend=True))


def _hotter(harness: Harness) -> None:
    harness.apply(backend(batching={"maxBatchSize": 2}))


def _sooner(harness: Harness) -> None:
    harness.apply(endpoint(timeout="9s"))


def _heavier(harness: Harness) -> None:
    harness.apply(split(m=7))


def _no_pods(harness: Harness) -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "no"}
    _says(harness, [failure])


def _smaller(harness: Harness) -> None:
    harness.apply(policy(maxBatchSize=4))


async def _none_wanted(harness: Harness) -> Harness:
    harness.pods_ready("m-backend", 0)
    await harness.run()
    return harness


async def _backend_ready(harness: Harness) -> Harness:
    harness.pods_ready("m-backend", 1)
    await harness.run()
    return harness


async def stages() -> AsyncIterator[Stage]:
    """Every stage, one after the other."""
    for happened, make, kind, name, reason, wanted in _STAGES:
        harness = await make()
        obj = copy.deepcopy(harness.cluster.find(kind, "n", name))
        yield Stage(name=f"{kind.kind}: {happened}", obj=obj, reason=reason, wanted=wanted)
