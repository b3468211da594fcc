"""The settings in answers to reports: each of Penstock's ConfigMaps, parsed once a version."""

from __future__ import annotations

from penstock_operator.control.auth import Caller
from penstock_operator.desired import settings
from penstock_operator.kinds import BACKEND, CONFIG_MAP, ENDPOINT
from penstock_operator.kube.cluster import Obj
from penstock_operator.store import Store

KEEP_VERSIONS = 256
"""Entries that are kept before those of deleted ConfigMaps are dropped."""


class SettingsCache:
    """The recorded settings, by ConfigMap.

    Args:
        store: has the ConfigMaps and their owners.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._versions: dict[tuple[str, str], tuple[object, settings.Versioned | None]] = {}
        self._prune_at = KEEP_VERSIONS

    def current(self, caller: Caller, name: str) -> settings.Versioned | None:
        """Return the settings that the ConfigMap records; None if there are none.

        Args:
            caller: the pod that the settings are for.
            name: the ConfigMap's name.
        """
        namespace = caller.namespace
        live = self._store.get(CONFIG_MAP, namespace, name)
        if live is not None and not self._is_record(live, caller):
            live = None
        known = self._versions.get((namespace, name))
        if known is None or known[0] is not live:
            if live is None:
                self._versions.pop((namespace, name), None)
                return None
            known = (live, settings.recorded_version(live))
            self._versions[(namespace, name)] = known
            if len(self._versions) > self._prune_at:
                self._drop_deleted()
        return known[1]

    def _is_record(self, live: Obj, caller: Caller) -> bool:
        """Whether a ConfigMap of the right name belongs to the caller's owner, not to a deleted namesake."""
        kind = BACKEND if caller.backend else ENDPOINT
        for ref in live["metadata"].get("ownerReferences") or ():
            owner = self._store.get(kind, caller.namespace, ref["name"])
            if owner is not None and owner["metadata"]["uid"] == ref["uid"]:
                whose = caller.backend or caller.endpoint
                return ref["name"] == whose or not whose
        return False

    def _drop_deleted(self) -> None:
        self._versions = {
            at: known for at, known in self._versions.items() if self._store.get(CONFIG_MAP, *at) is not None
        }
        self._prune_at = max(KEEP_VERSIONS, 2 * len(self._versions))
