"""A view that has seen every change says what a new one says: nothing that it keeps is stale."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock_operator.desired import labels, names, settings
from penstock_operator.reconcile.view import View
from penstock_operator.store import ObjectKey, Store, key_of

API = "penstock.dev/v1alpha1"
NAMES = {
    "ModelEndpoint": "abc",
    "TrafficSplit": "st",
    "ModelBackend": "xyz",
    "Deployment": "xyz",
    "Service": "abcxyz",
}
BACKENDS = NAMES["ModelBackend"]


class World:
    """Random objects of one namespace."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = Store()
        self.live: dict[ObjectKey, dict[str, Any]] = {}
        self._count = 0

    def _maybe(self, chance: float) -> bool:
        return self.random.random() < chance

    def change(self) -> ObjectKey | None:
        """Put an object, or remove one; return the key of a removed one."""
        kind = self.random.choices(list(NAMES), [8, 2, 2, 2, 4])[0]
        name = self.random.choice(NAMES[kind])
        obj: dict[str, Any] = getattr(self, f"_{kind}")(name)
        self._count += 1
        meta = obj.setdefault("metadata", {})
        meta |= {"namespace": "n", "name": meta.get("name", name), "resourceVersion": str(self._count)}
        key = key_of(obj)
        old = self.live.get(key)
        if old is not None and self._maybe(0.1):
            del self.live[key]
            self.store.remove(old | {"metadata": old["metadata"] | {"resourceVersion": str(self._count)}})
            return key
        same = old is not None and not self._maybe(0.15)
        meta["uid"] = old["metadata"]["uid"] if old is not None and same else f"uid-{self._count}"
        meta["creationTimestamp"] = (
            old["metadata"]["creationTimestamp"]
            if same and old
            else f"2026-01-0{self.random.randint(1, 3)}T00:00:00Z"
        )
        if self._maybe(0.05):
            meta["deletionTimestamp"] = "2026-02-01T00:00:00Z"
        if old is not None and self._maybe(0.6):
            obj = obj | {"spec": old.get("spec")}  # only its status has changed
        self.live[key] = obj
        self.store.put(obj)
        return None

    def _ModelEndpoint(self, _name: str) -> dict[str, Any]:  # noqa: N802 - the kind
        spec: dict[str, Any] = {"backend": self.random.choice(BACKENDS)}
        for field, values in (
            ("route", ("", "/r", "/a")),
            ("timeout", ("1s", "2s", "nonsense")),
            ("router", ({"dedicated": True},)),
        ):
            if self._maybe(0.4):
                spec[field] = self.random.choice(values)
        last = self.random.sample(BACKENDS, self.random.randint(0, 3))
        return {
            "apiVersion": API,
            "kind": "ModelEndpoint",
            "spec": spec,
            "status": {
                "backends": [
                    {"name": each, "weight": self.random.choice((0, 5)), "ready": True} for each in last
                ]
            },
        }

    def _TrafficSplit(self, _name: str) -> dict[str, Any]:  # noqa: N802
        stable, candidate, mirror = self.random.sample(BACKENDS, 3)
        spec: dict[str, Any] = {
            "endpoint": self.random.choice(NAMES["ModelEndpoint"]),
            "backends": [
                {"name": each, "weight": self.random.choice((0, 1, 9))} for each in (stable, candidate)
            ],
        }
        obj = {"apiVersion": API, "kind": "TrafficSplit", "spec": spec}
        if self._maybe(0.3):
            spec["mirrors"] = [{"name": mirror, "percent": 10}]
        if self._maybe(0.5):
            spec["strategy"] = {"stable": stable, "candidate": candidate, "steps": [{"weight": 50}]}
            weight = self.random.choice((0, 50))
            release = {
                "stable": stable,
                "candidate": candidate,
                "phase": "Progressing",
                "step": 0,
                "weight": weight,
            }
            obj["status"] = {"release": release}
        return obj

    def _ModelBackend(self, _name: str) -> dict[str, Any]:  # noqa: N802
        model = {"image": "i"} | ({"reconfigurePath": "/cfg"} if self._maybe(0.4) else {})
        spec: dict[str, Any] = {
            "model": model,
            "batching": {"priority": {"levels": self.random.choice((1, 3))}},
        }
        status = {"firstReadyTime": "2026-01-01T00:00:00Z"} if self._maybe(0.5) else {}
        return {"apiVersion": API, "kind": "ModelBackend", "spec": spec, "status": status}

    def _Deployment(self, name: str) -> dict[str, Any]:  # noqa: N802
        status = {"readyReplicas": self.random.choice((0, 1))}
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": names.backend(name)},
            "status": status,
        }

    def _Service(self, name: str) -> dict[str, Any]:  # noqa: N802
        if name in BACKENDS:
            owner = (
                self.live.get(ObjectKey("ModelBackend", "n", name), {}).get("metadata", {}).get("uid", "gone")
            )
            refs = [{"kind": "ModelBackend", "name": name, "uid": owner}]
            return {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": names.backend(name), "ownerReferences": refs},
            }
        app = self.random.choice((labels.APP_ROUTER, labels.APP_DEDICATED_ROUTER))
        ports = [{"port": 80, "targetPort": self.random.choice((20000, 20000, 20000, 25000))}]
        meta = {"name": names.endpoint(name), "labels": {labels.ENDPOINT: name}}
        spec = {"selector": {labels.APP_NAME: app}, "ports": ports}
        return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def said(view: View, made: dict[str, settings.Versioned], lingering: frozenset[str]) -> dict[str, object]:
    """All that a view says of the namespace."""
    routers = ("", *NAMES["ModelEndpoint"])
    at = {"": 1} | {name: 2 + number for number, name in enumerate(NAMES["ModelEndpoint"])}
    return {
        "plan": view.plan("n"),
        "ports": dict(view.ports("n")),
        "releases": [view.releases("n", name) for name in BACKENDS],
        "endpoints": view.endpoints("n"),
        "backends": view.backends_seen("n"),
        "documents": [view.router_document("n", each, lingering=lingering)(1) for each in routers],
        "settings": [
            view.router_settings(made.get(each), "n", each, lingering=lingering) for each in routers
        ],
        "shared": view.tenant_part("n", lingering, at),
    }


@pytest.mark.parametrize("seed", range(12))
def test_nothing_that_a_view_keeps_is_stale(seed: int) -> None:
    world = World(seed)
    view, made = View(world.store), dict[str, settings.Versioned]()
    for _ in range(150):
        gone = world.change()
        if gone is not None and world.random.random() < 0.7:
            view.forget(gone)
        if world.random.random() < 0.3:
            continue  # several changes at once
        lingering = frozenset(world.random.sample("abc", world.random.choice((0, 0, 1))))
        assert said(view, made, lingering) == said(View(world.store), made, lingering)
        for each in ("", "a"):
            if world.random.random() < 0.5:
                make = view.router_document("n", each, lingering=lingering)
                made[each] = settings.next_version(
                    make, made=made.get(each), recorded=None, status_version=0, reported=0
                )
    for key in list(world.live):
        world.store.remove(
            world.live[key] | {"metadata": world.live[key]["metadata"] | {"resourceVersion": "9999"}}
        )
        view.forget(key)
    kept = (view._lists, view._plans, view._backends, view._seen, view._written, view._rendered, view._parts)
    assert not any(kept)
