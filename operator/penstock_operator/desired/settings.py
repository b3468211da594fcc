"""Settings documents, the rule of their versions, and the ConfigMaps from which pods start.

A ConfigMap is never the truth: its namespace's users may write it. Pods get what the operator has made
(`reconcile.context.Memory.made`), and say by its digest that they have it.
"""

from __future__ import annotations

import base64
import functools
import gzip
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from penstock_operator.api import BatchPolicy, ModelBackend
from penstock_operator.api.batchpolicy import BatchPolicySpec
from penstock_operator.api.defaults import (
    MAX_ONGOING_REQUESTS,
    batching,
    batching_spec,
    max_ongoing_requests,
)
from penstock_operator.desired import names
from penstock_operator.desired.objects import Object
from penstock_wire.control import router_settings, settings
from penstock_wire.control.artifact import ArtifactDemand
from penstock_wire.control.documents import digest
from penstock_wire.control.report import RouterReport, SidecarReport
from penstock_wire.control.settings_source import unpacked
from penstock_wire.errors import DocumentError

Maker = Callable[[int], bytes]
"""Makes the bytes of a settings document for a version."""

PLAIN_BYTES = 512 * 1024
"""Bytes up to which a document is in a ConfigMap as it is."""

PACKED_BYTES = 1000 * 1024
"""The most bytes of a compressed one: a ConfigMap takes 1 MiB, with the certificates beside it."""

_LEVEL = 3

CHANGES = 256
"""The changes of a router's settings that are remembered: one that is further behind gets all of them."""

HIGHEST = 2**53 - 1
"""The highest version that a pod can report: a report with a higher one is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Versioned:
    """A settings document for the sidecars of a backend, or for the routers of a namespace.

    Args:
        version: its version: for people, and for older pods, which take only a higher one.
        document: its bytes: the ConfigMap's value and the member `settings` of a report's answer.
        earlier: the digests of a router's last documents, the oldest first, each with the endpoints that
            the change after it has changed.
    """

    version: int
    document: bytes
    digest: str
    changed: bool
    earlier: tuple[tuple[str, frozenset[str]], ...] = ()

    def since(self, name: str) -> bytes:
        """Return what a router with an earlier document is to get: what has changed since, or all."""
        return self.document if self.changed_since(name) is None else _change(self, name)

    def changed_since(self, name: str) -> frozenset[str] | None:
        """The endpoints in which a router's earlier document differs; None if it is not remembered."""
        changed: frozenset[str] = frozenset()
        for before, news in reversed(self.earlier):
            changed |= news
            if before == name:
                return changed
        return None

    def alike(self, endpoint: str) -> frozenset[str]:
        """The digests of a router's earlier documents that have the same of an endpoint."""
        changes = itertools.takewhile(lambda change: endpoint not in change[1], reversed(self.earlier))
        return frozenset(before for before, _ in changes)

    def following(self, last: Versioned | None) -> Versioned:
        """Return these settings of a router with what they have changed of the last ones."""
        if last is None or not self.changed:
            return self
        before, after = (_endpoints(each.digest, each.document) for each in (last, self))
        news = frozenset(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        if len(news) > max(64, len(after) // 2):  # about the whole, and 256 such take hundreds of megabytes
            return self
        return replace(self, earlier=(*last.earlier, (last.digest, news))[-CHANGES:])


# NB: a namespace can have thousands of endpoints and tens of routers, which all ask for the same change.
@functools.lru_cache(2)
def _endpoints(_digest: str, document: bytes) -> dict[str, bytes]:
    return router_settings.endpoints_of(document)


@functools.lru_cache(8)
def _change(made: Versioned, base: str) -> bytes:
    return router_settings.encode_change(
        _endpoints(made.digest, made.document),
        made.changed_since(base) or frozenset(),
        version=made.version,
        digest=made.digest,
        base=base,
    )


def next_version(
    make: Maker,
    *,
    made: Versioned | None = None,
    recorded: Object | None,
    status_version: int,
    reported: int,
) -> Versioned:
    """Return the document to send now, by the version rule.

    The version is raised, to 1 + max(last, status, reported), only when the bytes differ from the last ones,
    or when the status or a pod has a higher version than those. The last ones are those that this process has
    made, else those in the ConfigMap: a stranger's are never sent, as they differ from what is made here.
    `HIGHEST` or more is ignored: a user has edited it, and no version could follow.

    Args:
        recorded: the settings ConfigMap as last seen or written, if there is one.
        status_version: `status.settingsVersion` of the resource; 0 if there is none.
        reported: the highest version that an older pod has reported; 0 if none has.
    """
    last = replace(made, changed=False) if made is not None else recorded_version(recorded)
    versions = (status_version, reported, last.version if last else 0)
    known = max((version for version in versions if version < HIGHEST), default=0)
    if last is not None and last.version == known and last.document == make(known):
        return last
    document = make(known + 1)
    return Versioned(version=known + 1, document=document, digest=digest(document), changed=True)


def lacks(report: SidecarReport | RouterReport, version: int, name: str) -> bool:
    """Whether a pod reports other settings than these."""
    if report.settings_digest:
        return report.settings_digest != name
    return report.settings_version < version  # an older pod, or one without settings of the operator


def demanding(kept: bytes, demand: ArtifactDemand | None) -> Maker:
    """Return the maker of a document that is kept, but with the digest that pods must find by now, if any."""

    def make(version: int) -> bytes:
        try:
            members: dict[str, Any] = msgspec.json.decode(kept, type=dict[str, msgspec.Raw])
        except msgspec.DecodeError:
            return kept
        if demand is not None:
            members["artifact"] = msgspec.Raw(settings.encode(demand))
        return settings.encode(members | {"version": version})

    return make


def recorded_version(configmap: Object | None, *, readable: bool = False) -> Versioned | None:
    """The document that a live settings ConfigMap records; None if there is none or it is unreadable.

    Args:
        readable: whether to take only what a sidecar reads as well.
    """
    document = recorded_document(configmap)
    if document is None:
        return None
    try:
        version = json.loads(document)["version"]
    except (TypeError, ValueError, KeyError, RecursionError):
        return None
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        return None
    if readable:
        try:
            settings.decode(document)
        except DocumentError:
            return None
    return Versioned(version=version, document=document, digest=digest(document), changed=False)


def recorded_document(configmap: Object | None) -> bytes | None:
    """The bytes that a live settings ConfigMap records, whatever they are; None if there are none."""
    text = ((configmap or {}).get("data") or {}).get(names.SETTINGS_KEY)
    if isinstance(text, str):
        return text.encode()
    packed = ((configmap or {}).get("binaryData") or {}).get(names.PACKED_SETTINGS_KEY)
    if not isinstance(packed, str):
        return None
    try:
        return unpacked(base64.b64decode(packed))
    except (ValueError, DocumentError):
        return None


def for_sidecar(
    backend: ModelBackend, policy: BatchPolicy | None, *, artifact: ArtifactDemand | None = None
) -> Maker:
    """Return the maker of a backend's settings document (the `make` of `next_version`).

    Args:
        policy: the BatchPolicy that it names, if it exists. If it names one that does not exist, send the
            last document; the defaults made here only if none is known.
        artifact: the digest that its pods must find, once it is known.
    """
    document = settings.Settings(
        backend=backend.name,
        batching=batching(batching_spec(backend, policy)),
        max_ongoing_requests=max_ongoing_requests(backend),
        user_config=backend.spec.user_config,
        artifact=artifact or msgspec.UNSET,
    )

    def make(version: int) -> bytes:
        return settings.encode(msgspec.structs.replace(document, version=version))

    return make


def for_policy(policy: BatchPolicy | None) -> Maker:
    """Return the maker of the settings of injected pods that name a policy; without it, the defaults.

    They name no backend: the sidecar shows the name of its workload, which its pod has.
    """
    spec = policy.spec if policy is not None else BatchPolicySpec()
    document = settings.Settings(
        backend="", batching=batching(spec), max_ongoing_requests=MAX_ONGOING_REQUESTS, user_config=None
    )

    def make(version: int) -> bytes:
        return settings.encode(msgspec.structs.replace(document, version=version))

    return make


def for_router(endpoints: tuple[router_settings.Endpoint, ...]) -> Maker:
    """Return the maker of a router's settings document (the `make` of `next_version`)."""

    def make(version: int) -> bytes:
        return router_settings.encode(router_settings.RouterSettings(version=version, endpoints=endpoints))

    return make


def configmap(metadata: Object, document: bytes, authorities: str = "") -> Object:
    """The ConfigMap from which pods start with a settings document while no operator answers.

    It says that it can be changed: if it cannot, nodes no longer follow it, and it has to be made anew. A
    large document of a router is compressed: by a factor of ten or more. If it is too large even so, its
    largest parts are left out, and routers get these from the operator alone.

    Args:
        authorities: certificates by which its reader verifies the operator, PEM; empty if there are none.
    """
    known = {names.AUTHORITIES_KEY: authorities} if authorities else {}
    kept: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": False}
    if len(document) <= PLAIN_BYTES:
        return {**kept, "data": {names.SETTINGS_KEY: document.decode()} | known}
    return {**kept, "data": known, "binaryData": {names.PACKED_SETTINGS_KEY: _packed(document)}}


@functools.lru_cache(maxsize=2)
def _packed(document: bytes) -> str:
    """Return a document, compressed, as `binaryData` has it; without its largest parts if it is too large."""
    packed = gzip.compress(document, _LEVEL, mtime=0)
    while len(packed) > PACKED_BYTES:
        document = router_settings.smaller(document, PACKED_BYTES / len(packed))
        packed = gzip.compress(document, _LEVEL, mtime=0)
    return base64.b64encode(packed).decode()
