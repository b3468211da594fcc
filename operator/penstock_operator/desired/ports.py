"""The port of each endpoint on its router: recorded in the endpoint's Service, unique in the namespace."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping

from penstock_operator.desired import labels
from penstock_operator.desired.objects import Object

FIRST, LAST = 20000, 29999
SHARED_FIRST = 10000
"""The first port of the shared router, whose endpoints are those of many namespaces."""


def allocate(endpoints: Iterable[str], services: Iterable[Object]) -> dict[str, int]:
    """Allocate a port to each endpoint; a port that its live Service records stays.

    If two Services claim one port, the oldest Service keeps it. The search for a new endpoint's port begins
    at a hash of its name, so that the port does not depend on which other endpoints are new.

    Args:
        services: the namespace's live Services of endpoints (label `penstock.dev/endpoint`).

    Returns:
        Port by endpoint name. Endpoints beyond 10 000 have none.
    """
    # The Service of a deleted endpoint keeps its port until it is deleted: routers may still listen.
    recorded = [
        (name, port)
        for service in sorted(services, key=_age)
        if (name := service["metadata"].get("labels", {}).get(labels.ENDPOINT)) is not None
        and (port := recorded_port(service)) is not None
    ]
    return _fill(endpoints, recorded, set(), FIRST)


def allocate_shared(
    wanted: Collection[str], slices: Mapping[str, Object | None], taken: Collection[int]
) -> dict[str, int]:
    """Allocate a port on the shared router to endpoints and front doors that have none; as `allocate`.

    A namespace's users may be able to write its slices: these can claim a port that is free, for what exists.

    Args:
        wanted: `NAMESPACE/ENDPOINT`, and `NAMESPACE/` for a front door.
        slices: the live EndpointSlices by which these lead to the shared router.
        taken: ports of others, or that nodes may still lead to for others.
    """
    live = [(key, slice_) for key, slice_ in slices.items() if slice_ is not None and key in wanted]
    recorded = [
        (key, port)
        for key, slice_ in sorted(live, key=lambda pair: _age(pair[1]))
        if (port := recorded_shared_port(slice_)) is not None
    ]
    return _fill(wanted, recorded, set(taken), SHARED_FIRST)


def _fill(
    wanted: Iterable[str], recorded: Iterable[tuple[str, int]], taken: set[int], first: int
) -> dict[str, int]:
    names, count = sorted(set(wanted)), LAST - first + 1
    claims: dict[str, int] = {}
    for name, port in recorded:
        if port not in taken and name not in claims:
            claims[name] = port
            taken.add(port)
    ports = {name: claims[name] for name in names if name in claims}
    for name in names:
        if name in ports or len(taken) >= count:
            continue
        step = zlib.crc32(name.encode()) % count
        while first + step in taken:
            step = (step + 1) % count
        ports[name] = first + step
        taken.add(ports[name])
    return ports


def recorded_shared_port(slice_: Object | None) -> int | None:
    """The port that a slice to the shared router records; None if it records none, or there is no slice."""
    for port in (slice_ or {}).get("ports") or ():
        number = port.get("port")
        if isinstance(number, int) and SHARED_FIRST <= number <= LAST:
            return number
    return None


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
