"""A user, or several, who change resources of one namespace at random, and meddle with what was rendered.

What is done next is drawn from a seeded generator. Names come from small pools, so that things are deleted
and made again under the same name while others still refer to them. Pods cannot be scheduled: nothing runs.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

Obj = dict[str, Any]
Send = Callable[..., Awaitable[tuple[int, Obj]]]

GROUP = "/apis/penstock.dev/v1alpha1"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
BACKENDS = tuple(f"b{number}" for number in range(6))
ENDPOINTS = tuple(f"e{number}" for number in range(4))
SPLITS = ("s0", "s1")
POLICIES = ("p0", "p1")
CHILDREN = {
    "deployments": "/apis/apps/v1",
    "services": "/api/v1",
    "configmaps": "/api/v1",
    "serviceaccounts": "/api/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
    "rolebindings": "/apis/rbac.authorization.k8s.io/v1",
}
"""The kinds of rendered objects: plural → group and version."""


class ChangingUser:
    """See the module.

    Args:
        send: makes a call: method, path, body, content type.
    """

    def __init__(self, send: Send, namespace: str, *, seed: int) -> None:
        self._send = send
        self._namespace = namespace
        self._draw = random.Random(seed)
        self.done: Counter[str] = Counter()

    async def everything(self) -> None:
        """Have one of everything, as a start."""
        for name in POLICIES:
            await self._apply("batchpolicies", name, _policy(self._draw))
        for name in BACKENDS:
            await self._apply("modelbackends", name, _backend(self._draw))
        for number, name in enumerate(ENDPOINTS):
            await self._apply("modelendpoints", name, {"backend": BACKENDS[number]})

    async def change(self) -> str:
        """Do one thing; returns what, with what the apiserver said of it."""
        draw = self._draw
        acts: dict[str, tuple[int, Callable[[], Awaitable[int]]]] = {
            "backend applied": (6, self._apply_backend),
            "backend deleted": (2, lambda: self._delete("modelbackends", draw.choice(BACKENDS))),
            "replicas": (2, self._scale),
            "endpoint applied": (4, self._apply_endpoint),
            "endpoint deleted": (1, lambda: self._delete("modelendpoints", draw.choice(ENDPOINTS))),
            "split applied": (2, self._apply_split),
            "split deleted": (1, lambda: self._delete("trafficsplits", draw.choice(SPLITS))),
            "policy applied": (2, self._apply_policy),
            "policy deleted": (1, lambda: self._delete("batchpolicies", draw.choice(POLICIES))),
            "child deleted": (2, self._delete_child),
            "child edited": (2, self._edit_child),
            "child unlabelled": (1, self._unlabel_child),
        }
        name = draw.choices(list(acts), [weight for weight, _ in acts.values()])[0]
        status = await acts[name][1]()
        self.done[f"{name} {status}"] += 1
        return f"{name} {status}"

    async def _apply(self, plural: str, name: str, spec: Obj) -> int:
        kind = {
            "modelbackends": "ModelBackend",
            "modelendpoints": "ModelEndpoint",
            "trafficsplits": "TrafficSplit",
            "batchpolicies": "BatchPolicy",
        }[plural]
        body = {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": name, "namespace": self._namespace},
            "spec": spec,
        }
        path = f"{GROUP}/namespaces/{self._namespace}/{plural}/{name}?fieldManager=user&force=true"
        status, answer = await self._send("PATCH", path, body, form=APPLY)
        assert status in (200, 201, 409), answer
        return status

    async def _delete(self, plural: str, name: str) -> int:
        group = CHILDREN.get(plural, GROUP)
        path = f"{group}/namespaces/{self._namespace}/{plural}/{name}"
        return (await self._send("DELETE", path))[0]

    async def _apply_backend(self) -> int:
        return await self._apply("modelbackends", self._draw.choice(BACKENDS), _backend(self._draw))

    async def _apply_endpoint(self) -> int:
        spec = {"backend": self._draw.choice(BACKENDS), "retries": self._draw.randrange(3)}
        if self._draw.random() < 0.3:
            spec["route"] = "/shared"
        return await self._apply("modelendpoints", self._draw.choice(ENDPOINTS), spec)

    async def _apply_split(self) -> int:
        names = self._draw.sample(BACKENDS, 2)
        shares = [{"name": name, "weight": self._draw.randrange(1, 100)} for name in names]
        spec = {"endpoint": self._draw.choice(ENDPOINTS), "backends": shares}
        return await self._apply("trafficsplits", self._draw.choice(SPLITS), spec)

    async def _apply_policy(self) -> int:
        return await self._apply("batchpolicies", self._draw.choice(POLICIES), _policy(self._draw))

    async def _scale(self) -> int:
        path = f"{GROUP}/namespaces/{self._namespace}/modelbackends/{self._draw.choice(BACKENDS)}/scale"
        return (await self._send("PATCH", path, {"spec": {"replicas": self._draw.randrange(3)}}, form=MERGE))[
            0
        ]

    # -- what was rendered -------------------------------------------------------------------------------

    def _child(self) -> tuple[str, str]:
        """The plural and path of something rendered, which need not be there now."""
        plural = self._draw.choice(list(CHILDREN))
        name = self._draw.choice(BACKENDS) + "-backend" + ("-settings" if plural == "configmaps" else "")
        if plural == "rolebindings" or self._draw.random() < 0.2:
            name = "penstock-router" + ("-settings" if plural == "configmaps" else "")
        elif plural == "services" and self._draw.random() < 0.4:
            name = self._draw.choice(ENDPOINTS)
        return plural, f"{CHILDREN[plural]}/namespaces/{self._namespace}/{plural}/{name}"

    async def _delete_child(self) -> int:
        return (await self._send("DELETE", self._child()[1]))[0]

    async def _edit_child(self) -> int:
        plural, path = self._child()
        patches: dict[str, Obj] = {
            "deployments": {"spec": {"minReadySeconds": 7, "replicas": 3}},
            "services": {"spec": {"selector": {"app.kubernetes.io/name": "stranger"}}},
            "configmaps": {"data": {"settings.json": "{}"}},
            "serviceaccounts": {"automountServiceAccountToken": True},
            "poddisruptionbudgets": {"spec": {"maxUnavailable": 7}},
            "networkpolicies": {"spec": {"ingress": []}},
            "rolebindings": {"subjects": []},
        }
        return (await self._send("PATCH", path, patches[plural], form=MERGE))[0]

    async def _unlabel_child(self) -> int:
        patch = {"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}}
        return (await self._send("PATCH", self._child()[1], patch, form=MERGE))[0]


def _backend(draw: random.Random) -> Obj:
    container = {"image": f"example.invalid/model:{draw.randrange(5)}"}
    if draw.random() < 0.5:
        container["env"] = [{"name": "LEVEL", "value": str(draw.randrange(3))}]  # type: ignore[assignment]
    model: Obj = {"container": container}
    spec: Obj = {
        "model": model,
        "replicas": draw.randrange(4),
        "podTemplate": {"nodeSelector": {"nowhere": "at-all"}},
    }
    if draw.random() < 0.5:
        spec["batchPolicyRef"] = draw.choice(POLICIES)
    elif draw.random() < 0.5:
        spec["batching"] = {"maxBatchSize": draw.randrange(1, 64)}
    if draw.random() < 0.4:
        spec["userConfig"] = {"threshold": draw.randrange(3)}
        if draw.random() < 0.7:  # else it has no model to go to, which the status reports
            model["reconfigurePath"] = "/reconfigure"
    if draw.random() < 0.4:
        least = draw.randrange(1, 3)
        spec["autoscaling"] = {
            "minReplicas": least,
            "maxReplicas": least + draw.randrange(3),
            "targetLoad": draw.randrange(1, 9),
        }
    if draw.random() < 0.1:
        spec["suspend"] = True
    return spec


def _policy(draw: random.Random) -> Obj:
    return {"maxBatchSize": draw.randrange(1, 64), "maxQueuedItems": draw.randrange(100, 200)}
