"""What the operator knows of the cluster: the newest version of every watched object, indexed.

Watch events, answers to our own writes and re-lists all come in through `put` and `remove`, in any order;
the store keeps the newest. Reconcilers read here and nowhere else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock_operator.cluster import Obj
from penstock_operator.kinds import BY_KIND, Kind, kind_of

_TOMBSTONES = 20_000


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Names one object.

    Args:
        kind: ``ModelBackend``.
        namespace: where it is.
        name: its name.
    """

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Change:
    """What a `put` or `remove` did.

    Args:
        old: the version known before, None if none.
        new: the version known now, None if gone.
    """

    old: Obj | None
    new: Obj | None

    @property
    def happened(self) -> bool:
        """Whether anything is new to us."""
        return self.old is not self.new


class Store:
    """Objects by key, by namespace and by owner."""

    def __init__(self) -> None:
        self._objects: dict[Key, Obj] = {}
        self._by_namespace: dict[tuple[str, str], dict[str, Obj]] = {}
        self._by_owner: dict[str, set[Key]] = {}
        # NB: the answer to a write of ours may arrive after the watch has told of the object's deletion;
        # without a memory of the dead it would come back as a ghost until the next re-list.
        self._dead: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, kind: Kind, namespace: str, name: str) -> Obj | None:
        """One object, None when we know of none.

        Args:
            kind: its kind.
            namespace: where it is.
            name: its name.
        """
        return self._objects.get(Key(kind.kind, namespace, name))

    def all(self, kind: Kind, namespace: str | None = None) -> list[Obj]:
        """All known objects of a kind, by name within a namespace.

        Args:
            kind: which.
            namespace: None for all.
        """
        if namespace is not None:
            known = self._by_namespace.get((kind.kind, namespace), {})
            return [known[name] for name in sorted(known)]
        return [
            obj
            for (kind_name, _), known in sorted(self._by_namespace.items(), key=lambda item: item[0])
            if kind_name == kind.kind
            for _, obj in sorted(known.items())
        ]

    def owned(self, uid: str) -> list[Obj]:
        """All known objects with an owner reference to the uid.

        Args:
            uid: the owner's.
        """
        return [self._objects[key] for key in sorted(self._by_owner.get(uid, ()))]

    def keys(self) -> Iterator[Key]:
        """All keys."""
        return iter(list(self._objects))

    def put(self, obj: Obj) -> Change:
        """Take note of a version of an object, unless a newer one is known.

        Args:
            obj: with kind and metadata; not to be changed afterwards.
        """
        metadata = obj["metadata"]
        key = key_of(obj)
        old = self._objects.get(key)
        if metadata.get("uid") in self._dead:
            return Change(old, old)
        if old is not None and not _newer(obj, old):
            return Change(old, old)
        if old is not None:
            self._unlink(key, old)
        self._objects[key] = obj
        self._by_namespace.setdefault((key.kind, key.namespace), {})[key.name] = obj
        for uid in owner_uids(obj):
            self._by_owner.setdefault(uid, set()).add(key)
        return Change(old, obj)

    def remove(self, obj: Obj) -> Change:
        """Take note of an object's deletion.

        Args:
            obj: its last version, or at least kind and metadata.
        """
        return self.forget(key_of(obj), obj["metadata"].get("uid"))

    def forget(self, key: Key, uid: str | None = None) -> Change:
        """Take note that an object is gone.

        Args:
            key: which.
            uid: only if it was this one; a namesake made since stays.
        """
        if uid:
            self._dead[uid] = None
            if len(self._dead) > _TOMBSTONES:
                self._dead.popitem(last=False)
        old = self._objects.get(key)
        if old is None or (uid and old["metadata"].get("uid") != uid):
            return Change(old, old)
        self._unlink(key, old)
        del self._objects[key]
        return Change(old, None)

    def _unlink(self, key: Key, old: Obj) -> None:
        group = self._by_namespace[(key.kind, key.namespace)]
        del group[key.name]
        if not group:
            del self._by_namespace[(key.kind, key.namespace)]
        for uid in owner_uids(old):
            keys = self._by_owner.get(uid)
            if keys is not None:
                keys.discard(key)
                if not keys:
                    del self._by_owner[uid]


def key_of(obj: Obj) -> Key:
    """The key of an object.

    Args:
        obj: with kind and metadata.
    """
    metadata = obj["metadata"]
    return Key(obj["kind"], metadata.get("namespace") or "", metadata["name"])


def owner_uids(obj: Obj) -> Iterable[str]:
    """The uids of an object's owners.

    Args:
        obj: any object.
    """
    return [ref["uid"] for ref in obj["metadata"].get("ownerReferences") or ()]


def parent_changed(change: Change) -> bool:
    """Whether a change of a parent is anybody's business: not when only its status changed.

    Args:
        change: what a `put` or `remove` did.
    """
    if not change.happened:
        return False
    if change.old is None or change.new is None:
        return True
    old, new = change.old["metadata"], change.new["metadata"]
    return any(
        old.get(field) != new.get(field)
        for field in ("uid", "generation", "labels", "annotations", "deletionTimestamp")
    )


def child_changed(change: Change) -> bool:
    """Whether a change of a child may matter: bookkeeping of the apiserver does not.

    Args:
        change: what a `put` or `remove` did.
    """
    if not change.happened:
        return False
    if change.old is None or change.new is None:
        return True
    return _essence(change.old) != _essence(change.new)


def stale(store: Store, kind: Kind, live: Iterable[Obj]) -> list[Key]:
    """Keys that the store still has and a fresh list has not.

    Args:
        store: what we know.
        kind: which kind was listed.
        live: the list.
    """
    there = {key_of(obj): obj["metadata"].get("uid") for obj in live}
    return [key_of(obj) for obj in store.all(kind) if there.get(key_of(obj)) != obj["metadata"].get("uid")]


def known_kind(obj: Obj) -> bool:
    """Whether the operator has any use for the object.

    Args:
        obj: from a watch.
    """
    return obj.get("kind") in BY_KIND and kind_of(obj) is not None


def _essence(obj: Obj) -> Obj:
    metadata = {
        field: value
        for field, value in obj["metadata"].items()
        if field not in ("managedFields", "resourceVersion")
    }
    return {**obj, "metadata": metadata}


def _newer(obj: Obj, than: Obj) -> bool:
    new, old = obj["metadata"], than["metadata"]
    if new.get("uid") != old.get("uid"):
        # A namesake; the watch tells of one after the other, and the dead are remembered.
        return True
    try:
        return int(new["resourceVersion"]) > int(old["resourceVersion"])
    except (KeyError, ValueError):
        return bool(new.get("resourceVersion") != old.get("resourceVersion"))
