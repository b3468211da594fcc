"""The shared router's settings: a part for each namespace, and a change costs only the parts that it changes.

A router that has lately got these settings gets the changed parts alone. The ConfigMap from which a router
starts while no operator answers has all of them, compressed, and at most a megabyte: so the largest can be
missing there (`settings.configmap`). It then has no name, so that the next operator makes another one: a
router that still has what is missing would else count as one that has all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import msgspec

from penstock_operator.desired import settings
from penstock_operator.desired.objects import Object
from penstock_wire.control.documents import digest
from penstock_wire.control.router_settings import Tenant, decode_parts, encode_tenants
from penstock_wire.errors import DocumentError


class TenantSettings:
    """All parts, and how they have changed lately.

    Args:
        version: of the settings that routers may have from an earlier operator; 0 if there are none.
        name: of these settings.
        parts: theirs.
    """

    def __init__(self, version: int = 0, name: str = "", parts: Mapping[str, bytes] | None = None) -> None:
        self.version = version
        self.digest = name
        self.parts = dict(parts or {})
        self._names = {namespace: digest(part) for namespace, part in self.parts.items()}
        self._changes: deque[tuple[str, frozenset[str]]] = deque(maxlen=settings.CHANGES)
        """The name of earlier settings, and what the change that followed them has changed."""
        self._document: tuple[str, bytes] | None = None
        self._bytes_digest: tuple[str, str] | None = None

    def ports(self) -> dict[str, dict[str, int]]:
        """The ports of each namespace, by endpoint and, of the front door, ""."""
        read = {name: msgspec.json.decode(part, type=Tenant) for name, part in self.parts.items()}
        return {
            name: {"": tenant.port} | {each.name: each.port for each in tenant.endpoints if each.port}
            for name, tenant in read.items()
        }

    def update(self, changed: Mapping[str, bytes | None], *, reported: int) -> frozenset[str]:
        """Take up parts; return the namespaces whose part has changed.

        Args:
            changed: parts by namespace; None for a namespace that is not served any more.
            reported: the highest version that a router has reported.
        """
        news = frozenset(name for name, part in changed.items() if part != self.parts.get(name))
        ahead = self.version < reported < settings.HIGHEST
        if not news and self.digest and not ahead:
            return news
        self._changes.append((self.digest, news))
        for name in news:
            part = changed[name]
            if part is None:
                del self.parts[name], self._names[name]
            else:
                self.parts[name], self._names[name] = part, digest(part)
        self.version = 1 + (reported if ahead else self.version)
        listed = "".join(f"{name} {self._names[name]}\n" for name in sorted(self._names))
        self.digest = digest(f"{self.version}\n{listed}".encode())
        return news

    @property
    def document(self) -> bytes:
        """The settings as a whole."""
        if self._document is None or self._document[0] != self.digest:
            whole = encode_tenants(self.version, self.parts, digest=self.digest)
            self._document = (self.digest, whole)
        return self._document[1]

    @property
    def bytes_digest(self) -> str:
        """What a router reports that has the settings as a whole, and does not know that they have a name."""
        if self._bytes_digest is None or self._bytes_digest[0] != self.digest:
            self._bytes_digest = (self.digest, digest(self.document))
        return self._bytes_digest[1]

    def since(self, name: str) -> bytes:
        """Return what a router with earlier settings is to get: the parts that changed since, or all."""
        changed: set[str] = set()
        for before, news in reversed(self._changes):
            changed |= news
            if before == name and name:
                put = {each: self.parts[each] for each in changed & self.parts.keys()}
                gone = changed - self.parts.keys()
                return encode_tenants(self.version, put, digest=self.digest, base=name, gone=gone)
        return self.document


def recorded(configmap: Object | None) -> TenantSettings:
    """Return the settings that a live ConfigMap records; empty ones if there are none that can be read."""
    document = settings.recorded_document(configmap)
    if document is None:
        return TenantSettings()
    try:
        made = TenantSettings(*decode_parts(document))
        made.ports()
    except (DocumentError, msgspec.DecodeError):
        return TenantSettings()
    return made if 0 <= made.version < settings.HIGHEST else TenantSettings()
