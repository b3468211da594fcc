"""A cluster that records writes and sends none, for `--dry-run`; and one that is read from a file."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock_operator.kinds import Kind
from penstock_operator.kube.cluster import Obj, Reader
from penstock_operator.store import ObjectKey, key_of

T = TypeVar("T")

_PROBLEMS = frozenset({"Unreadable", "NameTaken", "RouteConflict", "Conflict", "NoPort"})
"""Reasons that a preview shows; the others wait for pods, and a dry run has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One write that would be made.

    Args:
        verb: create, apply or delete.
        obj: the object as it would be sent; for a deletion, the live one.
    """

    verb: str
    obj: Obj


class FileCluster:
    """The objects of a file, as the apiserver would return them (a `Reader`)."""

    def __init__(self, documents: Iterable[Obj], *, namespace: str) -> None:
        self._objects: dict[ObjectKey, Obj] = {}
        for number, document in enumerate(documents):
            obj = copy.deepcopy(document)
            metadata = obj["metadata"]
            metadata.setdefault("namespace", namespace)
            uid = f"uid-of-{obj['kind'].lower()}-{metadata['name']}"
            # The order in the file stands for age, which decides between two endpoints of one route.
            made = f"2000-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z"
            metadata |= {"uid": uid, "generation": 1, "resourceVersion": "1", "creationTimestamp": made}
            self._objects[key_of(obj)] = obj

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Obj | None:
        return copy.deepcopy(self._objects.get(ObjectKey(kind.kind, namespace or "", name)))

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        keep: Callable[[Obj], T],
        labels: str | None = None,
        name: str | None = None,
        metadata_only: bool = False,
        began: Callable[[str], None] = lambda _version: None,
    ) -> list[T]:
        del labels, metadata_only, began  # a file holds what users write, and that is listed without either
        return [
            keep(copy.deepcopy(obj))
            for key, obj in self._objects.items()
            if key.kind == kind.kind and namespace in (None, key.namespace) and name in (None, key.name)
        ]


class DryCluster:
    """A `Cluster` that reads another one, and records writes instead of sending them."""

    def __init__(self, there: Reader) -> None:
        self._there, self.list = there, there.list
        self._seen: dict[ObjectKey, Obj | None] = {}
        self._version = 10**15
        self.writes: dict[ObjectKey, Write] = {}
        """The last write of each object, in the order of their first writes."""
        self.problems: dict[tuple[ObjectKey, str], str] = {}
        """The messages that statuses of unusable resources would have."""

    async def apply(self, kind: Kind, obj: Obj) -> Obj:
        key = key_of(obj)
        live = await self.get(kind, key.namespace, key.name)
        verb = "create" if live is None or self._is_new(key) else "apply"
        self.writes[key] = Write(verb=verb, obj=obj)
        return self._note(key, _merged(live or {}, obj))

    async def apply_status(self, kind: Kind, obj: Obj) -> Obj:
        key = key_of(obj)
        for entry in obj["status"].get("conditions") or ():
            if entry["reason"] in _PROBLEMS:
                self.problems[key, entry["reason"]] = entry["message"]
        live = await self.get(kind, key.namespace, key.name)
        return self._note(key, {**(live or obj), "status": obj["status"]})

    async def apply_scale(
        self, kind: Kind, namespace: str, name: str, replicas: int, *, uid: str | None = None
    ) -> Obj:
        """See `Cluster`; nothing scales in a dry run, so a call is a defect."""
        raise RuntimeError(f"expected no write to the scale of {kind.kind} {namespace}/{name} in a dry run")

    async def annotate(
        self, kind: Kind, namespace: str, name: str, annotations: Mapping[str, str | None], *, uid: str
    ) -> Obj:
        """See `Cluster`; a dry run does not show which pods would be removed first."""
        return await self.get(kind, namespace, name) or {}

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Obj | None:
        key = ObjectKey(kind.kind, namespace or "", name)
        return self._seen[key] if key in self._seen else await self._there.get(kind, namespace, name)

    async def delete(self, kind: Kind, namespace: str | None, name: str, *, uid: str | None = None) -> bool:
        key = ObjectKey(kind.kind, namespace or "", name)
        live = await self.get(kind, namespace, name)
        if live is None:
            return False
        self.writes[key] = Write(verb="delete", obj=live)
        self._seen[key] = None
        return True

    async def create(self, kind: Kind, obj: Obj) -> Obj:
        """See `Cluster`; only Events are created, and they are not shown."""
        return obj

    def _is_new(self, key: ObjectKey) -> bool:
        return key in self.writes and self.writes[key].verb == "create"

    def _note(self, key: ObjectKey, answer: Obj) -> Obj:
        self._version += 1
        own = {"uid": f"uid-of-{key.kind.lower()}-{key.name}", **answer["metadata"]}
        answer = {**answer, "metadata": {**own, "resourceVersion": str(self._version)}}
        self._seen[key] = answer
        return answer


def _merged(live: Any, wanted: Any) -> Any:
    """Approximate the result of an apply, well enough for the operator's next read."""
    if isinstance(live, dict) and isinstance(wanted, dict):
        return {**live, **{name: _merged(live.get(name), value) for name, value in wanted.items()}}
    return copy.deepcopy(wanted)
