"""The port of each endpoint on its router: recorded in the endpoint's Service, unique in the namespace."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from penstock_operator.desired import labels
from penstock_operator.desired.objects import Object

FIRST, LAST = 20000, 29999
_COUNT = LAST - FIRST + 1


def allocate(endpoints: Iterable[str], services: Iterable[Object]) -> dict[str, int]:
    """Allocate a port to each endpoint; a port that its live Service records stays.

    If two Services claim one port, the oldest Service keeps it. The search for a new endpoint's port begins
    at a hash of its name, so that the port does not depend on which other endpoints are new.

    Args:
        services: the namespace's live Services of endpoints (label `penstock.dev/endpoint`).

    Returns:
        Port by endpoint name. Endpoints beyond 10 000 have none.
    """
    wanted = sorted(set(endpoints))
    claims: dict[str, int] = {}
    taken: set[int] = set()
    for service in sorted(services, key=_age):
        name = service["metadata"].get("labels", {}).get(labels.ENDPOINT)
        port = recorded_port(service)
        # The Service of a deleted endpoint keeps its port until it is deleted: routers may still listen.
        if name is not None and port is not None and port not in taken and name not in claims:
            claims[name] = port
            taken.add(port)
    ports = {name: claims[name] for name in wanted if name in claims}
    for name in wanted:
        if name in ports or len(taken) >= _COUNT:
            continue
        step = zlib.crc32(name.encode()) % _COUNT
        while FIRST + step in taken:
            step = (step + 1) % _COUNT
        ports[name] = FIRST + step
        taken.add(ports[name])
    return ports


def _age(service: Object) -> tuple[str, str]:
    metadata = service["metadata"]
    return (str(metadata.get("creationTimestamp") or ""), metadata["name"])


def recorded_port(service: Object | None) -> int | None:
    """The port that an endpoint's Service records; None if it records none, or there is no Service."""
    for port in (service or {}).get("spec", {}).get("ports") or ():
        target = port.get("targetPort")
        if isinstance(target, int) and FIRST <= target <= LAST:
            return target
    return None
