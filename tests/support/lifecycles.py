"""Every stage of a resource's life as a live object, made by the operator on a Kubernetes in memory.

Beside each stage stands what it means to tools that know nothing of Penstock: kstatus' word, and Argo CD's.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from penstock_operator.errors import Rejected, Unavailable
from penstock_operator.kinds import BACKEND, CONFIG_MAP, DEPLOYMENT, ENDPOINT, POD, POLICY, SPLIT, Kind
from tests.support.observed import CRASH, HOMELESS, PULL
from tests.support.operator_harness import Harness, backend, endpoint, policy, split

Obj = dict[str, Any]
WELL, UNDER_WAY, FAILED = ("Current", "Healthy"), ("InProgress", "Progressing"), ("Failed", "Degraded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage.

    Args:
        name: what has happened to the object.
        obj: the object as the apiserver would give it.
        reason: of its condition Ready; empty where there is none.
        wanted: kstatus' word and Argo CD's.
    """

    name: str
    obj: Obj
    reason: str
    wanted: tuple[str, str]


def _version(harness: Harness, name: str) -> int:
    document = json.loads(harness.cluster.find(CONFIG_MAP, "n", name)["data"]["settings.json"])
    return int(document["version"])


async def _started(**spec: Any) -> Harness:
    harness = Harness()
    harness.apply(backend(**spec))
    await harness.run()
    return harness


async def _serving() -> Harness:
    """A backend with a policy behind an endpoint with a split; all is well."""
    harness = Harness()
    for obj in (policy(maxBatchSize=8), backend(batchPolicyRef="p"), endpoint(), split(m=1)):
        harness.apply(obj)
    await harness.run()
    for pod in harness.pods_ready("m-backend", 1):
        harness.report("m", pod, version=_version(harness, "m-backend-settings"))
    routers = harness.pods_ready("penstock-router", 1)
    await harness.run()
    harness.router_report(routers[0], ["e"], version=_version(harness, "penstock-router-settings"))
    await harness.run()
    return harness


async def _pod(harness: Harness, **status: Any) -> Harness:
    """One pod that kubelet says this of."""
    (name,) = harness.pods_ready("m-backend", 1)
    conditions = [{"type": "Ready", "status": "False"}, *status.pop("conditions", ())]
    told = {"phase": "Pending", "conditions": conditions, **status}
    harness.cluster.edit(POD, "n", name, lambda live: live.update(status=told))
    harness.cluster.edit(DEPLOYMENT, "n", "m-backend", lambda live: live["status"].update(readyReplicas=0))
    await harness.run()
    return harness


def _refusing(error: Exception, kind: str) -> Callable[..., None]:
    def fail(verb: str, a_kind: str, *_: str) -> None:
        if (verb, a_kind) == ("apply", kind):
            raise error

    return fail


async def _refused(error: Exception, kind: str = "Deployment", *, obj: Obj | None = None) -> Harness:
    harness = Harness()
    harness.cluster.fail = _refusing(error, kind)
    for one in (backend(), *([obj] if obj else ())):
        harness.apply(one)
    for _ in range(60):
        await harness.turn(0.1)
    return harness


async def _changed(harness: Harness, change: Callable[[Harness], Any]) -> Harness:
    change(harness)
    await harness.run()
    return harness


async def _unseen() -> Harness:
    harness = await _serving()
    harness.cluster.edit(BACKEND, "n", "m", lambda live: live["spec"].update(replicas=2))
    return harness


async def _deleting(harness: Harness) -> Harness:
    live = harness.cluster.objects[(BACKEND.kind, "n", "m")]
    live["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return harness


async def _stranger(kind: str, name: str, obj: Obj) -> Harness:
    harness = Harness()
    harness.apply({"apiVersion": "v1", "kind": kind, "metadata": {"namespace": "n", "name": name},
                   "spec": {"ports": [{"port": 1}]}})  # fmt: skip
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
    ("it is being deleted", lambda: _then(_serving, _deleting), BACKEND, "m", "Serving",
     ("Terminating", "Progressing")),
    ("its image cannot be pulled", lambda: _then(_started, lambda h: _pod(h, containerStatuses=[PULL])),
     BACKEND, "m", "ImagePullFailed", FAILED),
    ("its model crashes", lambda: _then(_started, lambda h: _pod(h, containerStatuses=[CRASH])),
     BACKEND, "m", "ContainerCrashed", FAILED),
    ("no node takes its pod", lambda: _then(_started, lambda h: _pod(h, conditions=HOMELESS)),
     BACKEND, "m", "Unschedulable", UNDER_WAY),
    ("its rollout stands still", lambda: _then(_started, lambda h: _changed(h, _overdue)), BACKEND, "m",
     "ProgressDeadlineExceeded", FAILED),
    ("a quota refuses a child", lambda: _refused(_QUOTA), BACKEND, "m", "QuotaExceeded", FAILED),
    ("a webhook does not answer", lambda: _refused(_DOWN), BACKEND, "m", "WebhookFailed", UNDER_WAY),
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
    ("it cannot be read", lambda: _of({**backend(), "spec": {"model": {"port": "many"}}}), BACKEND, "m",
     "Unreadable", FAILED),
    ("just applied", lambda: _new(endpoint()), ENDPOINT, "e", "", UNDER_WAY),
    ("its backend is not there", lambda: _of(endpoint()), ENDPOINT, "e", "BackendMissing", FAILED),
    ("its backend starts", lambda: _of(backend(), endpoint()), ENDPOINT, "e", "BackendNotReady", UNDER_WAY),
    ("its router starts", lambda: _then(lambda: _of(backend(), endpoint()), _backend_ready), ENDPOINT, "e",
     "RouterStarting", UNDER_WAY),
    ("all is well", _serving, ENDPOINT, "e", "Serving", WELL),
    ("another has its route", lambda: _of(backend(), _OLD_ROUTE, endpoint(route="/x")), ENDPOINT, "e",
     "RouteConflict", FAILED),
    ("a stranger has its name", lambda: _stranger("Service", "e", endpoint()), ENDPOINT, "e", "NameTaken",
     FAILED),
    ("a quota refuses its Service", lambda: _refused(_QUOTA, "Service", obj=endpoint()), ENDPOINT, "e",
     "QuotaExceeded", FAILED),
    ("a webhook does not answer", lambda: _refused(_DOWN, "Service", obj=endpoint()), ENDPOINT, "e",
     "WebhookFailed", UNDER_WAY),
    ("just applied", lambda: _new(split(m=1)), SPLIT, "s", "", UNDER_WAY),
    ("all is well", _serving, SPLIT, "s", "Applied", WELL),
    ("its endpoint is not there", lambda: _of(split(m=1)), SPLIT, "s", "EndpointMissing", FAILED),
    ("a backend is not there", lambda: _of(endpoint(), split(m=1)), SPLIT, "s", "BackendMissing", FAILED),
    ("its router starts", lambda: _of(backend(), endpoint(), split(m=1)), SPLIT, "s", "RouterStarting",
     UNDER_WAY),
    ("an older one splits the endpoint", lambda: _of(backend(), endpoint(), split("a", m=1), split(m=1)),
     SPLIT, "s", "Conflict", FAILED),
    ("just applied", lambda: _new(policy()), POLICY, "p", "", UNDER_WAY),
    ("nobody names it", lambda: _of(policy()), POLICY, "p", "Unused", WELL),
    ("all is well", _serving, POLICY, "p", "Applied", WELL),
    ("pods have yet to take it up", lambda: _then(_serving, lambda h: _changed(h, _smaller)), POLICY, "p",
     "Applying", UNDER_WAY),
]  # fmt: skip


async def _then(
    first: Callable[[], Awaitable[Harness]], then: Callable[[Harness], Awaitable[Harness]]
) -> Harness:
    return await then(await first())


def _overdue(harness: Harness) -> None:
    status = {"conditions": _OVERDUE}
    harness.cluster.edit(DEPLOYMENT, "n", "m-backend", lambda live: live.update(status=status))


def _suspend(harness: Harness) -> None:
    harness.cluster.edit(BACKEND, "n", "m", lambda live: live["spec"].update(suspend=True))


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
