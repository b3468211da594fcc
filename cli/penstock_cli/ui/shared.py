"""The pods of routers that namespaces share, which serve an endpoint from the operator's namespace.

An EndpointSlice beside the endpoint's Service names them, so that nobody needs a right to list pods there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from penstock_cli.cluster import Cluster, CommandError, NotFoundError, Resource
from penstock_wire import contract

_PLACE = re.compile(r"[a-z0-9-]+")
_POD = re.compile(rf"{contract.SHARED_ROUTER}-[a-z0-9-]+")


@dataclass(frozen=True, slots=True)
class Shared:
    """The shared routers of an endpoint.

    Args:
        pods: pairs of namespace and name; none if the endpoint is not on shared routers.
        port: the endpoint's on each of them.
        problem: why they are not known; empty if they are, or there are none.
    """

    pods: tuple[tuple[str, str], ...] = ()
    port: int = 0
    problem: str = ""


def read(cluster: Cluster, endpoint: str) -> Shared:
    """Look where an endpoint's Service leads beside the pods that it selects.

    Args:
        cluster: has the endpoint's namespace.
        endpoint: its name, and its Service's.
    """
    name = f"{endpoint}{contract.SHARED_SUFFIX}"
    try:
        found = cluster.endpoint_slice(name)
    except NotFoundError:
        return Shared()
    except CommandError as error:
        return Shared(problem=str(error))
    pods = tuple(_pods(found))
    port = next((each.get("port") for each in found.get("ports") or ()), None)
    if not found.get("endpoints"):
        return Shared()
    if not pods or not isinstance(port, int):
        problem = (
            f"EndpointSlice {cluster.namespace}/{name} names no pods; the operator is of an older version"
        )
        return Shared(problem=problem)
    return Shared(pods, port)


def _pods(found: Resource) -> Iterator[tuple[str, str]]:
    # NB: a namespace's users may be able to write its slices: no other pod is asked because of them.
    for each in found.get("endpoints") or ():
        target = each.get("targetRef") or {}
        place, name = str(target.get("namespace")), str(target.get("name"))
        if target.get("kind") == "Pod" and _PLACE.fullmatch(place) and _POD.fullmatch(name):
            yield place, name
