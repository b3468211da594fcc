"""Writes children, if they are ours and need it.

A child is written if its desired object has changed or the live object has drifted from it
(`desired.drift`), and only if an owner reference, or our label on an object of a namespace, shows that it is
ours.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from penstock_operator.desired.drift import needs_write
from penstock_operator.desired.labels import DESIRED_HASH, MANAGED, MANAGED_BY
from penstock_operator.desired.objects import stamped
from penstock_operator.errors import NameTaken, Rejected
from penstock_operator.kinds import CHILDREN, CONFIG_MAP, ENDPOINT_SLICE, PARENTS, ROLE_BINDING, Kind, kind_of
from penstock_operator.kube.cluster import Cluster, NoObserver, Obj, WriteObserver
from penstock_operator.store import UNREADABLE, ObjectKey, Store, key_of, owner_uids

_NOTHING: Obj = {"metadata": {}}
_SPARE = 100
_INVALID = 422


class Applier:
    """Writes children by this module's rule.

    Args:
        store: the known objects; answers to writes go into it at once, so that the next look sees them.
    """

    def __init__(self, cluster: Cluster, store: Store, observer: WriteObserver | None = None) -> None:
        self._cluster = cluster
        self._store = store
        self._observer: WriteObserver = observer or NoObserver()
        # NB: pairs of desired hash and live version that need no comparison: the version is the answer to our
        # apply, or was equal to the desired object. If a webhook undoes our write, the same write again would
        # only load the apiserver, so there is none until the object changes.
        self._settled: dict[ObjectKey, tuple[str, str]] = {}

    async def look(self, kind: Kind, namespace: str, name: str) -> Obj | None:
        """Return the live object, from the store or else from the cluster.

        An object without our label is not in the store.
        """
        live = self._store.get(kind, namespace, name)
        if live is None:
            live = await self._cluster.get(kind, namespace, name)
            if live is not None and labelled(live):
                self._store.put(live)
        return live

    async def ensure(
        self,
        desired: Obj,
        *,
        owners: Collection[str],
        shared: bool = False,
        looked: Mapping[ObjectKey, Obj | None] | None = None,
        confirm: Callable[[], Awaitable[None]] | None = None,
    ) -> Obj:
        """Bring the child to its desired state, without a write if it is there already.

        Args:
            desired: the whole object, without the hash annotation.
            owners: uids of possible owners; a live object is ours if one of them owns it.
            shared: the object belongs to a namespace; our label on it is proof enough.
            looked: live objects that the caller has just looked at, to spare a second look.
            confirm: called before an object is made, or gets an owner (back); its errors propagate.

        Returns:
            The live object.

        Raises:
            NameTaken: a live object of that name is not ours; it was not touched.
            ClusterError: the apiserver refused.
        """
        kind, key = kind_of(desired), key_of(desired)
        # NB: a forced apply silently rewrites an object that is not ours, hence the look before it.
        if looked is not None and key in looked:
            live = looked[key]
        else:
            live = await self.look(kind, key.namespace, key.name)
        wanted = stamped(desired)
        if live is not None:
            if not _ours(live, owners, shared=shared):
                raise NameTaken(kind.kind, key.namespace, key.name, _whose(live))
            if UNREADABLE in live:
                why = f"it is not written, as it cannot be compared: {live[UNREADABLE]}"
                raise Rejected(413, f"{why}; make it smaller, or delete it")
            mark = _mark(wanted, live)
            if self._settled.get(key) == mark:
                return live
            if needs_write(desired, live, hashed=mark[0]) is None:
                self._settle(key, mark)
                return live
        if confirm is not None and not set(owner_uids(desired)) <= set(owner_uids(live or _NOTHING)):
            await confirm()
        try:
            answer = await self._cluster.apply(kind, wanted)
        except Rejected as error:
            if live is None or error.status != _INVALID or not _frozen(wanted, live):
                raise
            await self._cluster.delete(kind, key.namespace, key.name, uid=live["metadata"]["uid"])
            self._observer.wrote("delete", kind.kind)
            answer = await self._cluster.apply(kind, wanted)
        self._observer.wrote("apply", kind.kind)
        self._settle(key, _mark(wanted, answer))
        self._store.put(answer)
        return answer

    def _settle(self, key: ObjectKey, mark: tuple[str, str]) -> None:
        self._settled[key] = mark
        if len(self._settled) > 2 * len(self._store) + _SPARE:  # objects that are gone
            self._settled = {known: mark for known, mark in self._settled.items() if known in self._store}

    async def prune(self, candidates: Iterable[Obj], keep: Iterable[ObjectKey]) -> list[ObjectKey]:
        """Delete children that we rendered and that are no longer wanted.

        Returns:
            The keys of the deleted children.
        """
        wanted = set(keep)
        gone: list[ObjectKey] = []
        for child in list(candidates):
            key, metadata = key_of(child), child["metadata"]
            if key in wanted or kind_of(child) not in CHILDREN or metadata.get("deletionTimestamp"):
                continue
            if not labelled(child) or DESIRED_HASH not in (metadata.get("annotations") or {}):
                continue  # not rendered by us, whatever its owner
            if await self._cluster.delete(kind_of(child), key.namespace, key.name, uid=metadata["uid"]):
                self._observer.wrote("delete", key.kind)
                gone.append(key)
            self._store.forget(key, metadata["uid"])
        return gone


def labelled(live: Obj) -> bool:
    """Whether the object carries our label."""
    return bool((live["metadata"].get("labels") or {}).get(MANAGED_BY) == MANAGED)


def _mark(wanted: Obj, live: Obj) -> tuple[str, str]:
    """The inputs of a comparison: the hash of the desired object, and the version of the live one."""
    return wanted["metadata"]["annotations"][DESIRED_HASH], str(live["metadata"].get("resourceVersion"))


def _frozen(wanted: Obj, live: Obj) -> bool:
    """Whether an object has what nobody can change, and can be made anew at no cost.

    An object that is refused for another reason (its size, a policy of the cluster) stays: pods need it.
    """
    kind = kind_of(wanted)
    if kind == CONFIG_MAP:
        return live.get("immutable") is True
    fixed = {ROLE_BINDING: "roleRef", ENDPOINT_SLICE: "addressType"}.get(kind)
    return fixed is not None and live.get(fixed) != wanted[fixed]


def _ours(live: Obj, owners: Collection[str], *, shared: bool) -> bool:
    return (shared and labelled(live)) or any(uid in owners for uid in owner_uids(live))


def _whose(live: Obj) -> str:
    refs = live["metadata"].get("ownerReferences") or ()
    if not refs:
        return "it has no owner"
    ours = {kind.kind for kind in PARENTS}
    for ref in refs:
        if ref["kind"] in ours:
            return (
                f"it belongs to {ref['kind']} {ref['name']} with uid {ref['uid']}, perhaps one just deleted"
            )
    return f"it belongs to {refs[0]['kind']} {refs[0]['name']}"
