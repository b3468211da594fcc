"""Lists metadata, at intervals and after the watches were restarted, for changes that no watch has shown.

After a 410, kopf does not report the objects that were deleted meanwhile, and a watch can be stalled or cut.
A list of metadata is cheap, and has the version of every object that exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from penstock_operator import injected
from penstock_operator.clock import Clock
from penstock_operator.errors import ClusterError
from penstock_operator.kinds import PARENTS, POD, Kind
from penstock_operator.kube.cluster import Obj, Reader
from penstock_operator.store import Change, ObjectKey, Store, key_of, version_of

PERIOD = (300.0, 600.0)
"""Seconds between two lists: a random time in this range, so that replicas do not list together."""

LISTED = 10.0
"""Seconds after which restarted watches have listed what exists."""


_FOR_GOOD = 2**63
"""Later than every resourceVersion."""


@dataclass(frozen=True, slots=True)
class Found:
    """Differences between a list and the store."""

    dropped: int = 0
    fetched: int = 0

    def __add__(self, other: Found) -> Found:
        return Found(self.dropped + other.dropped, self.fetched + other.fetched)


class Relister:
    """Lists again whenever a list is due.

    Args:
        enqueue_all: queues every key; called after each periodic list, as the last resort.
        pause: seconds until the next list; drawn again each time.
    """

    def __init__(
        self,
        relist: Callable[[], Awaitable[Found]],
        enqueue_all: Callable[[], None],
        *,
        clock: Clock,
        pause: Callable[[], float],
        log: Callable[..., None],
    ) -> None:
        self._relist = relist
        self._enqueue_all = enqueue_all
        self._clock = clock
        self._pause = pause
        self._log = log
        self._now = asyncio.Event()

    def soon(self) -> None:
        """List soon: the watches were restarted; wait until they have listed."""
        self._now.set()

    async def run(self) -> None:
        """List again and again; runs until cancelled."""
        owed = False  # whether `enqueue_all` is due; it stays due if the list fails
        while True:
            owed = not await self._called() or owed
            self._now.clear()
            try:
                relisted = await self._relist()
            except ClusterError as error:
                self._log("re-list failed", level="warning", error=str(error))
                self._now.set()
                continue
            if owed:
                self._enqueue_all()
                owed = False
            level = "info" if relisted != Found() else "debug"
            self._log("re-listed", level=level, dropped=relisted.dropped, fetched=relisted.fetched)

    async def _called(self) -> bool:
        """Wait until a list is due; return whether `soon` called for it."""
        due = asyncio.Event()
        timer = self._clock.call_at(self._clock.time() + self._pause(), due.set)
        waits = [asyncio.ensure_future(event.wait()) for event in (self._now, due)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            for wait in waits:
                wait.cancel()
        if not self._now.is_set():
            return False
        # NB: an object deleted before a watch has listed is in our store and in no event of the watch.
        await self._clock.sleep(LISTED)
        return True


async def relist_kind(
    cluster: Reader,
    store: Store,
    kind: Kind,
    changed: Callable[[Change], None],
    *,
    namespace: str | None = None,
    name: str | None = None,
    selector: str | None = None,
) -> Found:
    """Bring the store to the state of a fresh list.

    Args:
        changed: called for every object that was dropped or fetched.

    Returns:
        The number of differences.

    Raises:
        ClusterError: a call failed.
    """
    # NB: only objects known before the list began: later ones are younger than the list.
    before = [obj for obj in store.all(kind, namespace) if name is None or obj["metadata"]["name"] == name]
    labels = None if kind in PARENTS else selector
    if kind is POD:
        others = selector == injected.SELECTOR
        before = [obj for obj in before if bool(injected.policy_of(obj)) is others]
    live = await cluster.list(kind, namespace, keep=_listed, labels=labels, name=name, metadata_only=True)
    there = {key: uid for key, uid, _ in live}
    dropped = fetched = 0
    for obj in before:
        key, uid = key_of(obj), obj["metadata"].get("uid")
        if there.get(key) != uid and store.get(kind, key.namespace, key.name) is obj:
            # NB: a child that lost our label can get it back. A parent that is not listed is gone for good,
            # whatever a stalled watch still reports of it.
            changed(store.forget(key, uid, version=_FOR_GOOD if kind in PARENTS else 0))
            dropped += 1
    for key, _, version in live:
        known = store.get(kind, key.namespace, key.name)
        if known is not None and version_of(known) >= version and not store.has_room(key):
            continue
        fresh = await cluster.get(kind, key.namespace, key.name)
        if fresh is not None:
            change = store.put(fresh)
            changed(change)
            fetched += change.happened
    return Found(dropped, fetched)


def _listed(obj: Obj) -> tuple[ObjectKey, str | None, int]:
    return key_of(obj), obj["metadata"].get("uid"), version_of(obj)
