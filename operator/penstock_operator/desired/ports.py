"""The port of each endpoint on its router: recorded in the endpoint's Service, unique in the namespace."""

from __future__ import annotations

from collections.abc import Iterable

from penstock_operator.desired.objects import Object

FIRST, LAST = 20000, 29999


def allocate(endpoints: Iterable[str], services: Iterable[Object]) -> dict[str, int]:
    """A port for each endpoint; one that its live Service records stays.

    Where two Services claim one port, the oldest Service keeps it. A new endpoint starts looking at a hash of its
    name, so that two operators that both allocate mostly agree.

    Args:
        endpoints: names of the namespace's endpoints.
        services: the namespace's live Services of endpoints (label `penstock.dev/endpoint`).

    Returns:
        Port by endpoint name. An endpoint beyond the ten thousandth has none.
    """
    raise NotImplementedError
