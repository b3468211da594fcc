"""The newest known version of every watched object, indexed.

Watch events, answers to our own writes and re-lists all come in through `put` and `remove`, in any order;
the store keeps the newest. Reconcilers read only here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from sys import getsizeof, intern
from typing import Any

import msgspec

from penstock_operator import nesting
from penstock_operator.desired import labels, names
from penstock_operator.kinds import CONFIG_MAP, PARENTS, POD, Kind
from penstock_operator.kube.cluster import Obj

INDEXED_KINDS = frozenset({POD.kind})
INDEXED_LABELS = (labels.BACKEND, labels.ENDPOINT, labels.APP_NAME, labels.INJECT)
_TOMBSTONES = 20_000
_SHORT = 64
"""Characters of a text that is shared for good, not only while it occurs."""
_PARTS = 2000
"""Parts of objects that are remembered to be shared (see `_Shared`)."""
_PART_SIZE = 1024
"""Characters of the largest of them, as JSON: they outlive their objects."""
_PARENT_KINDS = frozenset(kind.kind for kind in PARENTS)

NAMESPACE_BYTES = 128 * 1024 * 1024
"""Bytes that all objects of a namespace may take together (see `nesting.weigh`), their stubs not counted."""

_BYTES = {CONFIG_MAP.kind: 4 * nesting.BYTES}
"""Bytes that an object of a kind may take, if not `nesting.BYTES`: the settings in a ConfigMap are one text,
which takes four bytes a character if one of them needs that."""

_ANNOTATIONS = frozenset({labels.DESIRED_HASH, labels.RENDERED, labels.DELETION_COST, labels.RELEASE})
"""The annotations that are read."""

_OF_CONTAINER = ("name", "image", "ready", "restartCount", "state", "lastState")
"""The members of a container's status that are read."""

_RENDERED_KEYS = frozenset({names.SETTINGS_KEY, names.PACKED_SETTINGS_KEY, names.AUTHORITIES_KEY})
"""Keys of the ConfigMaps that we render."""

UNREADABLE = "penstock.dev/unreadable"
"""Member of a stub with the reason why its object cannot be read."""
_STUB_METADATA = (
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
)  # fmt: skip
_STUB_BYTES = 16 * 1024
"""Bytes up to which a stub has its object's labels, annotations, owners and status, each."""


_text_of = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """The key of one object."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Change:
    """The effect of a `put` or `remove`.

    Args:
        new: the version known now, None if the object is gone.
    """

    old: Obj | None
    new: Obj | None

    @property
    def happened(self) -> bool:
        """Whether the store has changed."""
        return self.old is not self.new


class Store:
    """Objects by key, by namespace and by owner."""

    def __init__(self) -> None:
        self._objects: dict[ObjectKey, Obj] = {}
        self._by_namespace: dict[tuple[str, str], dict[str, Obj]] = {}
        self._by_owner: dict[str, set[ObjectKey]] = {}
        self._by_label: dict[tuple[str, str, str, str], dict[str, Obj]] = {}
        self._by_address: dict[str, list[str]] = {}
        """The namespace of each pod that has an address, by the address."""
        self._epochs: dict[tuple[str, str], int] = {}
        self._changes = 0
        self._bytes: dict[ObjectKey, int] = {}
        self._spent: dict[str, int] = {}
        self._waiting: dict[ObjectKey, int] = {}
        """Bytes of the objects for which their namespaces had no room."""
        # NB: the answer to one of our writes can arrive after the watch has shown the object's deletion;
        # without the deleted uids (uid -> last version) the object would be back until the next re-list. A
        # later version of the same uid exists: its label was removed and added again.
        self._dead: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._objects

    def get(self, kind: Kind, namespace: str, name: str) -> Obj | None:
        """Return one object, None if it is not in the store."""
        return self._objects.get(ObjectKey(kind.kind, namespace, name))

    def all(self, kind: Kind, namespace: str | None = None) -> list[Obj]:
        """All known objects of a kind, by name within a namespace."""
        if namespace is not None:
            known = self._by_namespace.get((kind.kind, namespace), {})
            return [known[name] for name in sorted(known)]
        return [
            obj
            for (kind_name, _), known in sorted(self._by_namespace.items(), key=lambda item: item[0])
            if kind_name == kind.kind
            for _, obj in sorted(known.items())
        ]

    def count(self, kind: Kind, namespace: str) -> int:
        """How many objects of a kind a namespace has."""
        return len(self._by_namespace.get((kind.kind, namespace), ()))

    def owned(self, uid: str) -> list[Obj]:
        """All known objects with an owner reference to the uid."""
        return [self._objects[key] for key in sorted(self._by_owner.get(uid, ()))]

    def selected(self, kind: Kind, namespace: str, label: str, value: str) -> list[Obj]:
        """The known objects of an indexed kind with a label, by name."""
        objects = self._by_label.get((kind.kind, namespace, label, value), {})
        return [objects[name] for name in sorted(objects)]

    def namespace_of(self, address: str) -> str:
        """The namespace whose pod has an address; empty if it is of none, or of several.

        Pods in their node's network do not count, nor do those that have ended.

        Args:
            address: in its canonical form.
        """
        namespaces = set(self._by_address.get(address, ()))
        return namespaces.pop() if len(namespaces) == 1 else ""

    def epoch(self, kind: Kind, namespace: str) -> int:
        """A number for caches, which a kind's objects in a namespace have only once; 0 if there are none."""
        return self._epochs.get((kind.kind, namespace), 0)

    def namespaces(self, kind: Kind) -> list[str]:
        """Namespaces that have an object of a kind."""
        return sorted(namespace for kind_name, namespace in self._by_namespace if kind_name == kind.kind)

    def keys(self) -> Iterator[ObjectKey]:
        """All keys."""
        return iter(list(self._objects))

    def put(self, obj: Obj) -> Change:
        """Store a version of an object, unless a newer one is known.

        For an object that cannot be stored, for any reason, a stub is kept: kind and metadata, the status if
        it can be read, and the reason under `UNREADABLE`.

        Args:
            obj: with kind and metadata; not to be changed afterwards.
        """
        metadata = obj["metadata"]
        key = key_of(obj)
        old = self._objects.get(key)
        died = self._dead.get(metadata.get("uid") or "")
        if died is not None and version_of(obj) <= died:
            return Change(old, old)
        again = self.has_room(key) and version_of(obj) == version_of(self._objects[key])
        if old is not None and not _newer(obj, old) and not again:
            return Change(old, old)
        if old is not None:
            self._unlink(key, old)
        obj = self._taken_in(key, obj, old)
        self._objects[key] = obj
        self._by_namespace.setdefault((key.kind, key.namespace), {})[key.name] = obj
        self._bump(key)
        for uid in owner_uids(obj):
            self._by_owner.setdefault(uid, set()).add(key)
        for at in _label_keys(key, obj):
            self._by_label.setdefault(at, {})[key.name] = obj
        for address in _addresses(obj):
            self._by_address.setdefault(address, []).append(key.namespace)
        return Change(old, obj)

    def remove(self, obj: Obj) -> Change:
        """Remove a deleted object.

        Args:
            obj: its last version, or at least kind and metadata.
        """
        return self.forget(key_of(obj), obj["metadata"].get("uid"), version=version_of(obj))

    def forget(self, key: ObjectKey, uid: str | None = None, *, version: int = 0) -> Change:
        """Remove an object that is gone.

        Args:
            uid: its uid; a newer object of the same name stays. None for any.
            version: resourceVersion of its deletion, 0 if unknown.
        """
        old = self._objects.get(key)
        same = old is not None and uid in (None, old["metadata"].get("uid"))
        if uid:
            self._dead[uid] = max(version, version_of(old) if old is not None and same else 0)
            if len(self._dead) > _TOMBSTONES:
                self._dead.popitem(last=False)
        if old is None or not same:
            return Change(old, old)
        self._unlink(key, old)
        del self._objects[key]
        self._bump(key)
        return Change(old, None)

    def has_room(self, key: ObjectKey) -> bool:
        """Whether an object is a stub for want of room in its namespace, and there is room for it now."""
        size = self._waiting.get(key)
        return size is not None and self._spent.get(key.namespace, 0) + size <= NAMESPACE_BYTES

    def _taken_in(self, key: ObjectKey, obj: Obj, old: Obj | None) -> Obj:
        """Return the object to keep: its content, or a stub if that cannot be read or is too much.

        One object must not keep the others out, so this catches every error that an object can cause.
        """
        kept = reduced(obj)
        if UNREADABLE in kept:
            return kept
        shared: Obj
        try:
            if old is None or UNREADABLE in old:
                shared, size = _sharing(kept, nesting.LEVELS, small=nesting.is_small(kept))
            else:
                shared, size = adopting(kept, old), nesting.weigh(kept, NAMESPACE_BYTES)
        except nesting.TooDeep:
            return _stub(kept, _too_deep(kept))
        except Exception as error:
            return _stub(kept, _cannot_be_read(error))
        spent = self._spent.get(key.namespace, 0) + size
        if spent > NAMESPACE_BYTES:
            self._waiting[key] = size
            return _stub(
                kept,
                f"its namespace is full: expected at most {NAMESPACE_BYTES >> 20} MiB for all resources and "
                f"their objects together, found {size >> 10} KiB more with this one; it is read within ten "
                "minutes after there is room",
            )
        self._bytes[key], self._spent[key.namespace] = size, spent
        return shared

    def _bump(self, key: ObjectKey) -> None:
        at = (key.kind, key.namespace)
        self._changes += 1
        if at in self._by_namespace:
            self._epochs[at] = self._changes
        else:
            self._epochs.pop(at, None)

    def _unlink(self, key: ObjectKey, old: Obj) -> None:
        self._waiting.pop(key, None)
        if size := self._bytes.pop(key, 0):
            self._spent[key.namespace] -= size
            if not self._spent[key.namespace]:
                del self._spent[key.namespace]
        group = self._by_namespace[(key.kind, key.namespace)]
        del group[key.name]
        if not group:
            del self._by_namespace[(key.kind, key.namespace)]
        for at in _label_keys(key, old):
            labelled = self._by_label[at]
            del labelled[key.name]
            if not labelled:
                del self._by_label[at]
        for address in _addresses(old):
            namespaces = self._by_address[address]
            namespaces.remove(key.namespace)
            if not namespaces:
                del self._by_address[address]
        for uid in owner_uids(old):
            keys = self._by_owner.get(uid)
            if keys is not None:
                keys.discard(key)
                if not keys:
                    del self._by_owner[uid]


def key_of(obj: Obj) -> ObjectKey:
    """The key of an object."""
    metadata = obj["metadata"]
    return ObjectKey(obj["kind"], metadata.get("namespace") or "", metadata["name"])


def owner_uids(obj: Obj) -> Iterable[str]:
    """The uids of an object's owners."""
    return [ref["uid"] for ref in obj["metadata"].get("ownerReferences") or ()]


def parent_changed(change: Change) -> bool:
    """Whether a change of a parent needs a look: not if only its status changed."""
    if not change.happened:
        return False
    if change.old is None or change.new is None:
        return True
    if change.old.get(UNREADABLE) != change.new.get(UNREADABLE):
        return True
    old, new = change.old["metadata"], change.new["metadata"]
    return any(
        old.get(field) != new.get(field)
        for field in ("uid", "generation", "labels", "annotations", "deletionTimestamp")
    )


def child_changed(change: Change) -> bool:
    """Whether a change of a child can matter: not if only its resourceVersion changed."""
    if not change.happened:
        return False
    if change.old is None or change.new is None:
        return True
    return _essence(change.old) != _essence(change.new)


def slim(obj: Obj) -> Obj:
    """Return the object without the parts that are never read.

    These are managedFields, except the owners of a resource's replicas; annotations of others; a pod's spec
    except the node, the ServiceAccount and whether a sidecar was injected; ids and resources of its
    containers; a ConfigMap's data, except keys that we render in one that our resources own.

    Args:
        obj: from the cluster; it is not changed.
    """
    metadata = {name: member for name, member in obj["metadata"].items() if name != "managedFields"}
    annotations = metadata.pop("annotations", None) or {}
    if known := {name: text for name, text in annotations.items() if name in _ANNOTATIONS}:
        metadata["annotations"] = known
    if obj["kind"] in _PARENT_KINDS:
        # NB: an entry of managedFields is nested as deeply as its field.
        owners = owners_of_replicas(obj)
        return {**obj, "metadata": metadata | ({"managedFields": owners} if owners else {})}
    if obj["kind"] == POD.kind:
        if "spec" not in obj:
            return {**obj, "metadata": metadata}
        spec = obj["spec"]
        account = {"serviceAccountName": spec["serviceAccountName"]} if "serviceAccountName" in spec else {}
        first = [{"name": each.get("name")} for each in spec.get("initContainers") or ()]
        sidecar = {"initContainers": first} if labels.INJECT in (metadata.get("labels") or {}) else {}
        kept = {"nodeName": spec.get("nodeName", ""), **account, **sidecar}
        status = dict(obj.get("status") or {})
        for place in ("initContainerStatuses", "containerStatuses"):
            if each := status.get(place):
                status[place] = [{name: one[name] for name in _OF_CONTAINER if name in one} for one in each]
        return {**obj, "metadata": metadata, "spec": kept, **({"status": status} if status else {})}
    if obj["kind"] == CONFIG_MAP.kind:
        owned = any(ref.get("kind") in _PARENT_KINDS for ref in metadata.get("ownerReferences") or ())
        ours = owned or labels.POLICY in (metadata.get("labels") or {})
        ours = ours or metadata.get("name") == names.SHARED_ROUTER_SETTINGS
        rendered = _RENDERED_KEYS if ours else ()
        kept = {name: member for name, member in obj.items() if name not in ("data", "binaryData")}
        for place in ("data", "binaryData"):
            data = {name: text for name, text in (obj.get(place) or {}).items() if name in rendered}
            if data or place == "data":
                kept[place] = data
        return {**kept, "metadata": metadata}
    return {**obj, "metadata": metadata}


def owners_of_replicas(obj: Obj) -> list[Obj]:
    """The entries of `managedFields` that own `spec.replicas`, without their other fields."""
    return [
        {name: entry[name] for name in ("manager", "operation", "subresource") if name in entry}
        | {"fieldsV1": {"f:spec": {"f:replicas": {}}}}
        for entry in obj["metadata"].get("managedFields") or ()
        if "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    ]


class _Shared:
    """Parts of JSON that lately occurred, so that an equal one need not be kept twice.

    Bounded by two generations: what occurs again stays, and what has not for long is dropped.
    """

    def __init__(self) -> None:
        self._young: dict[Any, Any] = {}
        self._old: dict[Any, Any] = {}

    def get(self, key: Any) -> Any:
        """Return the part with this key, None if it is not known."""
        known = self._young.get(key)
        if known is None and (known := self._old.get(key)) is not None:
            self.put(key, known)
        return known

    def put(self, key: Any, part: Any) -> None:
        """Remember a part.

        Args:
            key: equal if and only if the parts are.
        """
        self._young[key] = part
        if len(self._young) >= _PARTS:
            self._old, self._young = self._young, {}

    def of(self, part: Any) -> Any:
        """Return the known part that equals this one, which is its own key; itself if there is none."""
        known = self.get(part)
        if known is None:
            self.put(part, part)
            return part
        return known


_known_parts = _Shared()


def sharing(value: Any, levels: int = nesting.LEVELS) -> Any:
    """Copy JSON, with equal parts shared in the whole process.

    A parser makes new ones for every document. In the objects of a thousand backends most names, texts,
    probes, volumes and the like repeat, and take two thirds of the documents' memory.

    Args:
        value: from a parser; it is not changed.

    Raises:
        TooDeep: it has more levels.
    """
    return _sharing(value, levels, small=nesting.is_small(value))[0]


def _sharing(value: Any, levels: int, *, small: bool) -> tuple[Any, int]:
    """Do as `sharing`; also return how many bytes it takes if nothing is shared (see `nesting.weigh`).

    Args:
        small: whether it is worth a text for each of its lists and maps, by which equal ones are found.
    """
    kind = type(value)
    if kind is not dict and kind is not list:
        return _shared_leaf(value), getsizeof(value)
    text = _text_of(value) if small else b""
    if len(text) > _PART_SIZE:
        text = b""
    elif text and (known := _known_parts.get(text)) is not None and known[2] <= levels:
        return known[0], known[1]
    if not levels:
        raise nesting.TooDeep
    size, copied = getsizeof(value), []
    for member in value.values() if kind is dict else value:
        inner = type(member)
        if inner is dict or inner is list:
            member, its = _sharing(member, levels - 1, small=small)
            size += its
        else:
            size += getsizeof(member)
            # NB: most members are short texts; a call for each would double the work.
            member = intern(member) if inner is str and len(member) <= _SHORT else _shared_leaf(member)
        copied.append(member)
    part: Any = copied
    if kind is dict:
        part = dict(zip(map(intern, value), copied, strict=True))
        size += sum(map(getsizeof, part))
    if text:
        _known_parts.put(text, (part, size, levels))
    return part, size


def _shared_leaf(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        if len(value) <= _SHORT:
            return intern(value)
        return _known_parts.of(value) if len(value) <= _PART_SIZE else value
    return _known_parts.of(value) if kind is int else value  # NB: not `true`, which equals 1


def adopting(obj: Obj, old: Obj) -> Obj:
    """Copy as `sharing` does, but reuse parts that equal the old version's: most updates change a status.

    Args:
        obj: the new version; it is not changed.

    Raises:
        TooDeep: see `sharing`.
    """
    # NB: a user can change 1 to `true` in a spec, which are equal here; then the generation rises.
    parent = obj["kind"] in _PARENT_KINDS
    settled = not parent or obj["metadata"].get("generation") == old["metadata"].get("generation")
    levels = nesting.LEVELS - 1
    adopted: Obj = {}
    for name, member in obj.items():
        known = old.get(name)
        if name in ("metadata", "status") and isinstance(member, dict) and isinstance(known, dict):
            member = {
                intern(part): _adopted(value, known.get(part), levels - 1) for part, value in member.items()
            }
        elif name != "spec" or settled:
            member = _adopted(member, known, levels)
        else:
            member = sharing(member, levels)
        adopted[intern(name)] = member
    return adopted


def _adopted(value: Any, known: Any, levels: int) -> Any:
    return known if known is not None and value == known else sharing(value, levels)


def reduced(obj: Obj) -> Obj:
    """Return what is kept of an object: the parts that are read; a stub if it cannot be read or is too large.

    Any thread can call this, and should before it hands an object on: the rest is free at once.

    Args:
        obj: from the cluster; it is not changed.
    """
    if UNREADABLE in obj:
        return obj
    try:
        kept, most = slim(obj), _BYTES.get(obj["kind"], nesting.BYTES)
        if nesting.is_small(kept, most):
            return kept
        if obj["kind"] in _PARENT_KINDS:
            nesting.check_count(obj.get("spec"))
        nesting.check_bytes(kept, most)
        return kept
    except (nesting.TooMany, nesting.TooLarge) as error:
        why = str(error)
    except Exception as error:
        why = _cannot_be_read(error)
    return _stub(obj, why)


def _cannot_be_read(error: Exception) -> str:
    return f"it cannot be read: {type(error).__name__}: {error}"


def _too_deep(kept: Obj) -> str:
    return f"below {nesting.where(kept)}: expected at most {nesting.LEVELS} levels of nesting, found more"


def _stub(obj: Obj, why: str) -> Obj:
    metadata = obj["metadata"]
    stub: Obj = {
        "apiVersion": obj.get("apiVersion"),
        "kind": obj["kind"],
        "metadata": {name: metadata[name] for name in _STUB_METADATA if name in metadata},
        UNREADABLE: why,
    }
    annotations = metadata.get("annotations") or {}
    known = {name: text for name, text in annotations.items() if name in _ANNOTATIONS}
    for name, members in {**metadata, "annotations": known}.items():
        if name in ("labels", "annotations", "ownerReferences") and _is_small(members):
            stub["metadata"][name] = members
    with suppress(Exception):
        if _is_small(obj.get("status")):
            stub["status"] = sharing(obj.get("status") or {})
    return stub


def _is_small(value: Any) -> bool:
    return nesting.weigh(value, _STUB_BYTES) <= _STUB_BYTES


def _label_keys(key: ObjectKey, obj: Obj) -> list[tuple[str, str, str, str]]:
    if key.kind not in INDEXED_KINDS:
        return []
    own = obj["metadata"].get("labels") or {}
    return [(key.kind, key.namespace, label, own[label]) for label in INDEXED_LABELS if label in own]


def _addresses(obj: Obj) -> set[str]:
    """The addresses that are a pod's own."""
    status = obj.get("status") or {}
    if obj["kind"] != POD.kind or status.get("phase") in ("Succeeded", "Failed"):
        return set()
    own = {status.get("podIP"), *(entry.get("ip") for entry in status.get("podIPs") or ())}
    nodes = {status.get("hostIP"), *(entry.get("ip") for entry in status.get("hostIPs") or ())}
    return {address for address in own - nodes if address}


def _essence(obj: Obj) -> Obj:
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": ""}}


def version_of(obj: Obj) -> int:
    """An object's resourceVersion as a number, 0 if it has none."""
    try:
        return int(obj["metadata"]["resourceVersion"])
    except (KeyError, ValueError):
        return 0


def _newer(obj: Obj, than: Obj) -> bool:
    # NB: this also compares objects of the same name with different uids: versions of a kind form one
    # sequence. The deletion of the older object may not have been seen (a list after a cut watch has only the
    # younger one), and a late answer to a write can still show it.
    new, old = version_of(obj), version_of(than)
    unknown = obj["metadata"].get("uid") != than["metadata"].get("uid") and not (new and old)
    return unknown or new > old
