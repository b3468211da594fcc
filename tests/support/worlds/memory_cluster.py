"""A Kubernetes in memory: the `Cluster` Protocol with enough of server-side apply for unit tests.

True to the real one: field ownership by manager (a field that its only manager no longer applies
goes away; a forced apply takes fields over; other managers' fields stay), list-map keys, resourceVersion that
moves only when the object changes, generation that moves with the spec, uids, the status and scale
subresources (see `_leaves_no_owner`), defaulting hooks, owner-reference garbage
collection on demand. Faults can be injected per call.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from penstock_operator.desired.drift import LIST_KEYS
from penstock_operator.errors import ClusterError, Conflict, NotFound, Rejected, Unavailable
from penstock_operator.kinds import BY_KIND, PARENTS, Kind

Obj = dict[str, Any]
Path = tuple[Any, ...]
REPLICAS: Path = ("spec", "replicas")
T = TypeVar("T")
Watcher = Callable[[str, Obj], None]
_MISSING = object()
SCALERS = {"penstock-autoscaler", "hpa"}


def is_selected(obj: Obj, selector: str | None) -> bool:
    """Whether a label selector with `a=b`, `a!=b` and `a`, as the apiserver reads it, selects an object."""
    own = obj["metadata"].get("labels") or {}
    for term in (selector or "").split(",") if selector else ():
        name, equals, value = term.partition("=")
        if not (
            name in own if not equals else (own.get(name.removesuffix("!")) == value) != name.endswith("!")
        ):
            return False
    return True


class MemoryCluster:
    """See the module.

    Attributes:
        writes: every write that changed or could have changed something: (verb, kind, namespace, name).
        reads: how many get and list calls were made.
        fail: called before every call with (verb, kind, namespace, name); may raise a ClusterError.
        defaults: by kind, called with a copy of each object before it is stored; fills server-side defaults.
        answer: by kind, what `create` answers for kinds that are never stored (TokenReview).
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Obj] = {}
        self.writes: list[tuple[str, str, str, str]] = []
        self.reads = 0
        self.fail: Callable[[str, str, str, str], None] = lambda *_: None
        self.defaults: dict[str, Callable[[Obj], None]] = dict(DEFAULTS)
        self.answer: dict[str, Callable[[Obj], Obj]] = {}
        self.watchers: list[Watcher] = []
        self._owned: dict[tuple[str, str, str], dict[str, set[Path]]] = {}
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)

    # -- the Protocol ------------------------------------------------------------------------------------

    async def apply(self, kind: Kind, obj: Obj) -> Obj:
        return self._apply("apply", kind, obj, "penstock")

    async def apply_status(self, kind: Kind, obj: Obj) -> Obj:
        return self._apply("status", kind, obj, "penstock-status", only=("status",))

    async def apply_scale(
        self, kind: Kind, namespace: str, name: str, replicas: int, *, uid: str | None = None
    ) -> Obj:
        stored = self.objects.get((kind.kind, namespace, name))
        if stored is not None and uid not in (None, stored["metadata"]["uid"]):
            raise Conflict(409, "another one by now")
        body: Obj = {
            "kind": kind.kind,
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"replicas": replicas},
        }
        owners = self._owned.get((kind.kind, namespace, name), {}).values()
        if (
            stored
            and stored["spec"]["replicas"] == replicas
            and not any(REPLICAS in paths for paths in owners)
        ):
            raise failing(500, "request to convert CR to an invalid group/version: autoscaling/v1")
        live = self._apply("scale", kind, body, "penstock-autoscaler", only=("spec",))
        return {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": live["metadata"],
            "spec": {"replicas": live["spec"]["replicas"]},
            "status": {"replicas": live.get("status", {}).get("replicas", 0)},
        }

    async def annotate(
        self, kind: Kind, namespace: str, name: str, annotations: Mapping[str, str | None], *, uid: str
    ) -> Obj:
        key = (kind.kind, namespace, name)
        self.fail("annotate", *key)
        live = self.objects.get(key)
        if live is None:
            raise NotFound(404, f"{kind.plural} {name!r} not found")
        if live["metadata"]["uid"] != uid:
            raise Conflict(409, "another one by now")
        self.writes.append(("annotate", *key))

        def change(obj: Obj) -> None:
            merged = (obj["metadata"].get("annotations") or {}) | dict(annotations)
            obj["metadata"]["annotations"] = {name: text for name, text in merged.items() if text is not None}

        return _copied(self.edit(kind, namespace, name, change))

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Obj | None:
        self.reads += 1
        self.fail("get", kind.kind, namespace or "", name)
        live = self.objects.get((kind.kind, namespace or "", name))
        return _copied(live)

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
        fields = ("apiVersion", "kind", "metadata") if metadata_only else ()
        return [
            keep(_copied({field: live[field] for field in fields or live}))
            for live in self.selected(kind, namespace, labels, name)
        ]

    def selected(
        self, kind: Kind, namespace: str | None, labels: str | None = None, name: str | None = None
    ) -> list[Obj]:
        """List the objects themselves, which nobody changes: a write replaces them."""
        self.reads += 1
        self.fail("list", kind.kind, namespace or "", "")
        selected = []
        there = [key for key in self.objects if key[0] == kind.kind]
        for _, where, own_name in sorted(there):
            live = self.objects[kind.kind, where, own_name]
            if namespace is not None and where != namespace:
                continue
            if name not in (None, own_name):
                continue
            if is_selected(live, labels):
                selected.append(live)
        return selected

    async def delete(self, kind: Kind, namespace: str | None, name: str, *, uid: str | None = None) -> bool:
        self.fail("delete", kind.kind, namespace or "", name)
        key = (kind.kind, namespace or "", name)
        live = self.objects.get(key)
        if live is None or (uid and live["metadata"]["uid"] != uid):
            return False
        self.writes.append(("delete", *key))
        self._remove(key)
        return True

    async def create(self, kind: Kind, obj: Obj) -> Obj:
        metadata = obj["metadata"]
        key = (kind.kind, metadata.get("namespace") or "", metadata.get("name") or "")
        self.fail("create", *key)
        if kind.kind in self.answer:
            return self.answer[kind.kind](_copied(obj))
        if key in self.objects:
            raise Conflict(409, f"{kind.plural} {key[2]!r} already exists")
        self.writes.append(("create", *key))
        live = self._new(kind, key, _copied(obj))
        self._owned[key] = {"create": set(_paths(_mine(obj)))}
        self._store(key, live, event="ADDED")
        return _copied(live)

    # -- what a user, a controller or the garbage collector does -----------------------------------------

    def edit(self, kind: Kind, namespace: str, name: str, change: Callable[[Obj], None]) -> Obj:
        """Change an object as kubectl edit does (manager `user`), status included."""
        key = (kind.kind, namespace, name)
        before = self.objects[key]
        live = _copied(before)
        change(live)
        if live == before:
            return before
        old, new = _paths(before), _paths(live)
        changed = {path for path, value in new.items() if path not in old or value != old[path]}
        self._owned[key].setdefault("user", set()).update(changed)
        gone = old.keys() - new.keys()
        for paths in self._owned[key].values():
            paths -= gone
        return self._settle(key, live)

    def scale(self, kind: Kind, namespace: str, name: str, replicas: int, manager: str = "hpa") -> Obj:
        """Write through /scale, as an HPA or kubectl scale does."""
        body = {
            "kind": kind.kind,
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"replicas": replicas},
        }
        return self._apply("scale", kind, body, manager, only=("spec",), record=False)

    def user_applies(self, obj: Obj) -> Obj:
        """Apply as a user with kubectl does (manager `user`)."""
        return self._apply("user", BY_KIND[obj["kind"]], obj, "user", record=False)

    def remove(self, kind: Kind, namespace: str, name: str) -> None:
        """Delete as a user does, then collect what only it owned."""
        self._remove((kind.kind, namespace, name))
        self.collect_garbage()

    def collect_garbage(self) -> None:
        """Delete every object all of whose owners are gone, as the garbage collector does."""
        while True:
            uids = {live["metadata"]["uid"] for live in self.objects.values()}
            orphans = [
                key
                for key, live in self.objects.items()
                if (refs := live["metadata"].get("ownerReferences"))
                and not any(ref["uid"] in uids for ref in refs)
            ]
            if not orphans:
                return
            for key in orphans:
                self._remove(key)

    def find(self, kind: Kind, namespace: str, name: str) -> Obj:
        """The live object; KeyError if it does not exist."""
        return self.objects[(kind.kind, namespace, name)]

    def names(self, kind: Kind, namespace: str) -> list[str]:
        """Names of all objects of a kind."""
        return sorted(key[2] for key in self.objects if key[0] == kind.kind and key[1] == namespace)

    # -- server-side apply -------------------------------------------------------------------------------

    def _apply(
        self,
        verb: str,
        kind: Kind,
        obj: Obj,
        manager: str,
        *,
        only: tuple[str, ...] | None = None,
        record: bool = True,
    ) -> Obj:
        metadata = obj["metadata"]
        key = (kind.kind, metadata.get("namespace") or "", metadata["name"])
        if record:
            self.fail(verb, *key)
            self.writes.append((verb, *key))
        live = self.objects.get(key)
        if live is None:
            if only or metadata.get("resourceVersion"):
                raise NotFound(404, f"{kind.plural} {key[2]!r} not found")
            fresh = self._new(kind, key, _copied(obj))
            fresh.pop("status", None)
            self._owned[key] = {manager: set(_paths(_mine(obj, ("status",))))}
            self._store(key, fresh, event="ADDED")
            return _copied(fresh)
        if metadata.get("resourceVersion") not in (None, live["metadata"]["resourceVersion"]):
            raise Conflict(
                409, "the object has been modified; please apply your changes to the latest version"
            )
        wanted = {field: obj[field] for field in only if field in obj} if only else _mine(obj, ("status",))
        merged = _copied(live)
        owned = self._owned[key]
        before = any(REPLICAS in paths for paths in owned.values())
        mine = set(_paths(wanted))
        left = sorted(owned.get(manager, set()) - mine, key=len)
        others = {path for who, paths in owned.items() if who != manager for path in paths} if left else set()
        for path in left:
            if path not in others and not any(other[: len(path)] == path for other in others | mine):
                _drop(merged, path)
        _merge(merged, wanted)
        for path, value in _paths(wanted).items():
            # An object that an apply empties becomes null, which a schema of Penstock's refuses; lists stay.
            if kind in PARENTS and value == {} and _at(live, path) not in (_MISSING, {}):
                raise Rejected(422, f"{'.'.join(map(str, path))}: Invalid value: null")
        if live.get("immutable") and merged != live:
            raise Rejected(422, "data: field is immutable when `immutable` is set")
        if live.get("addressType") != merged.get("addressType"):
            raise Rejected(422, "addressType: field is immutable")
        owned[manager] = mine
        if verb == "scale" and _leaves_no_owner(live, wanted, before):
            for paths in owned.values():
                paths.discard(REPLICAS)
        for who, paths in owned.items():
            if who != manager:
                taken = {path for path in paths & mine if not _same(live, merged, path)}
                paths -= taken
        return _copied(self._settle(key, merged))

    def _new(self, kind: Kind, key: tuple[str, str, str], obj: Obj) -> Obj:
        obj.setdefault("apiVersion", kind.api_version)
        obj["kind"] = kind.kind
        number = next(self._uids)
        obj["metadata"].update(
            uid=f"uid-{number}",
            generation=1,
            creationTimestamp=f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z",
        )
        obj["metadata"].pop("resourceVersion", None)
        return obj

    def _settle(self, key: tuple[str, str, str], changed: Obj) -> Obj:
        """Normalise, count generation and resourceVersion, notify the watchers of a change."""
        before = self.objects[key]
        for field in ("uid", "generation", "creationTimestamp", "resourceVersion", "deletionTimestamp"):
            if field in before["metadata"]:
                changed["metadata"][field] = before["metadata"][field]
        self._default(key, changed)
        self._managers(key, changed)
        if changed == before:
            return before
        if changed.get("spec") != before.get("spec"):
            changed["metadata"]["generation"] += 1
        self._store(key, changed, event="MODIFIED")
        return changed

    def _default(self, key: tuple[str, str, str], obj: Obj) -> None:
        hook = self.defaults.get(key[0])
        if hook is not None:
            hook(obj)

    def _managers(self, key: tuple[str, str, str], obj: Obj) -> None:
        """The part of managedFields that the autoscaler reads: the owner of spec.replicas."""
        if key[0] != "ModelBackend":
            return
        owners = [who for who, paths in sorted(self._owned[key].items()) if REPLICAS in paths]
        before = {entry["manager"]: entry for entry in obj["metadata"].get("managedFields", [])}
        obj["metadata"]["managedFields"] = [
            before.get(who)
            or {
                "manager": who,
                "operation": "Apply",
                "fieldsV1": {"f:spec": {"f:replicas": {}}},
                **({"subresource": "scale"} if who in SCALERS else {}),
            }
            for who in owners
        ]

    def _store(self, key: tuple[str, str, str], obj: Obj, *, event: str) -> None:
        self._default(key, obj)
        self._managers(key, obj)
        obj["metadata"]["resourceVersion"] = str(next(self._versions))
        self.objects[key] = obj
        for notify in self.watchers:
            notify(event, _copied(obj))

    def _remove(self, key: tuple[str, str, str]) -> None:
        gone = self.objects.pop(key)
        self._owned.pop(key, None)
        gone = _copied(gone)
        gone["metadata"]["resourceVersion"] = str(next(self._versions))
        for notify in self.watchers:
            notify("DELETED", gone)


def _leaves_no_owner(live: Obj, scale: Obj, owned: bool) -> bool:
    """Whether nobody owns the replicas after a write of a Scale, as with Kubernetes 1.36.

    A Scale leaves out a 0, and with it who wrote it; and an update is not tracked of what has no owner, while
    an apply of the number that is there is answered 500 then (`KubernetesCluster.apply_scale`).

    Args:
        owned: whether anybody owned them before.
    """
    replicas = scale["spec"]["replicas"]
    return replicas == 0 or (not owned and live["spec"].get("replicas") != replicas)


def _mine(obj: Obj, without: tuple[str, ...] = ()) -> Obj:
    """The part of an applied object that field management sees."""
    metadata = {
        field: value
        for field, value in obj["metadata"].items()
        if field in ("labels", "annotations", "ownerReferences", "finalizers")
    }
    rest = {
        field: value
        for field, value in obj.items()
        if field not in ("apiVersion", "kind", "metadata", *without)
    }
    return {**rest, "metadata": metadata} if metadata else rest


def _copied(tree: Any) -> Any:
    """As `copy.deepcopy`, of what JSON can say, in a fifth of its time."""
    if isinstance(tree, dict):
        return {name: _copied(member) for name, member in tree.items()}
    return [_copied(item) for item in tree] if isinstance(tree, list) else tree


def _keys(field: Any, items: list[Any]) -> tuple[str, ...] | None:
    if not items or not all(isinstance(item, dict) for item in items):
        return None
    if field == "ports":
        return ("containerPort" if "containerPort" in items[0] else "port", "protocol")
    return LIST_KEYS.get(field)


def _element(item: Obj, keys: tuple[str, ...]) -> tuple[Any, ...]:
    return ("[]", *(item.get(key, "TCP" if key == "protocol" else None) for key in keys))


def _paths(root: Any) -> dict[Path, Any]:
    """All owned field paths, and what is there: leaves, and the elements of list maps."""
    found: dict[Path, Any] = {}
    waiting: list[tuple[Any, Path, Any]] = [(root, (), "")]
    while waiting:
        value, path, field = waiting.pop()
        if isinstance(value, dict) and value:
            waiting += [(member, (*path, name), name) for name, member in value.items()]
        elif isinstance(value, list) and (keys := _keys(field, value)):
            elements = {(*path, _element(item, keys)): item for item in value}
            found |= elements
            waiting += [(item, at, None) for at, item in elements.items()]
        else:
            found[path] = value
    return found


def _at(root: Any, path: Path) -> Any:
    value, field = root, ""
    for step in path:
        if isinstance(value, dict):
            value, field = value.get(step, _MISSING), step
        elif isinstance(value, list) and (keys := _keys(field, value)):
            value = next((item for item in value if _element(item, keys) == step), _MISSING)
        else:
            return _MISSING
    return value


def _same(old: Obj, new: Obj, path: Path) -> bool:
    return bool(_at(old, path) == _at(new, path))


def _drop(root: Obj, path: Path) -> None:
    parent = _at(root, path[:-1])
    if _at(root, path) is _MISSING:
        return  # gone with the element that held it
    last = path[-1]
    if isinstance(parent, dict):
        parent.pop(last, None)
        if not parent and len(path) > 1:
            _drop(root, path[:-1])
    elif isinstance(parent, list):
        field = path[-2]
        keys = _keys(field, parent)
        if keys:
            parent[:] = [item for item in parent if _element(item, keys) != last]


def _merge(into: Any, wanted: Any, field: Any = "") -> None:
    for name, value in wanted.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict) and value:
            _merge(into[name], value, name)
        elif isinstance(value, list) and (keys := _keys(name, value)) and isinstance(into.get(name), list):
            known = {_element(old, keys): old for old in reversed(into[name])}
            for item in value:
                there = known.get(_element(item, keys))
                if there is None:
                    known[_element(item, keys)] = _copied(item)
                    into[name].append(known[_element(item, keys)])
                else:
                    _merge(there, item)
        else:
            into[name] = _copied(value)


# -- what a real apiserver fills in or rewrites ------------------------------------------------------------


def _default_pod(spec: Obj) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    for container in [*spec.get("containers", []), *spec.get("initContainers", [])]:
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("imagePullPolicy", "IfNotPresent")
        for port in container.get("ports", []):
            port.setdefault("protocol", "TCP")
        for entry in container.get("env", []):
            if entry.get("value") == "":
                del entry["value"]
        for amounts in (container.get("resources") or {}).values():
            if isinstance(amounts, dict):
                for name, amount in amounts.items():
                    amounts[name] = _NORMAL.get(str(amount), str(amount))


_NORMAL = {"0.5": "500m", "1024Mi": "1Gi", "1000m": "1", "0.25": "250m"}


def _default_deployment(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    spec.setdefault("progressDeadlineSeconds", 600)
    spec.setdefault("revisionHistoryLimit", 10)
    _default_pod(spec.get("template", {}).get("spec", {}))
    _drop_empty(spec)


def _default_service(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("clusterIP", "10.96.1.1")
    for port in spec.get("ports", []):
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port["port"])


def _drop_empty(value: Any) -> None:
    if isinstance(value, dict):
        for name in list(value):
            _drop_empty(value[name])
            if value[name] in ("", []) or (
                value[name] == {} and name in ("labels", "annotations", "resources")
            ):
                del value[name]
    elif isinstance(value, list):
        for item in value:
            _drop_empty(item)


def _default_backend(obj: Obj) -> None:
    obj["spec"].setdefault("replicas", 1)


DEFAULTS: dict[str, Callable[[Obj], None]] = {
    "Deployment": _default_deployment,
    "Service": _default_service,
    "ModelBackend": _default_backend,
}


def failing(status: int, message: str = "induced") -> ClusterError:
    """An error as the apiserver would give it."""
    if status == 0 or status >= 500:
        return Unavailable(status, message)
    return Rejected(status, message)
