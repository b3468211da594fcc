"""The front door's table: which endpoint serves a path. Pure.

A route is a prefix of whole segments; the longest match wins and is stripped. Segments are percent-decoded
before they are compared, so `/%64igits` finds `/digits`, and `%2F` never separates segments. The rest of the
target is forwarded byte for byte.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from urllib.parse import unquote

from penstock_wire import contract
from penstock_wire.control.router_settings import Endpoint

ROUTES_PATH = f"{contract.OWN_PATHS}routes"
"""The only path that the front door answers itself."""

Segments = tuple[str, ...]


def segments(route: str) -> Segments:
    """The segments of a route; `/` has none, and a trailing slash is ignored."""
    return tuple(unquote(part) for part in route.strip("/").split("/")) if route.strip("/") else ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RouteTable:
    """Routes of one settings document.

    Args:
        routes: endpoint name by route.
        conflicts: why an endpoint has no route, for people, by endpoint name.
        longest: number of segments of the longest route.
    """

    routes: dict[Segments, str]
    conflicts: dict[str, str]
    longest: int

    @classmethod
    def of(cls, endpoints: Iterable[Endpoint]) -> RouteTable:
        """Make the table of some endpoints; if two have the same route, the first keeps it."""
        routes: dict[Segments, str] = {}
        conflicts: dict[str, str] = {}
        for endpoint in endpoints:
            route = endpoint.effective_route
            if not route:
                continue
            if not route.startswith("/"):
                conflicts[endpoint.name] = f"expected a route that begins with /, found {route!r}"
                continue
            holder = routes.setdefault(segments(route), endpoint.name)
            if holder != endpoint.name:
                conflicts[endpoint.name] = f"route {route!r} is taken by endpoint {holder}"
        return cls(routes=routes, conflicts=conflicts, longest=max(map(len, routes), default=0))

    def match(self, target: str) -> tuple[str, str, str] | None:
        """Find the endpoint of a request.

        Args:
            target: path and query as received.

        Returns:
            The endpoint's name, the route as the target spells it, and the target without it; None if no
            route fits.
        """
        path, mark, query = target.partition("?")
        if not path.startswith("/"):
            return None
        parts = path[1:].split("/") if path != "/" else []
        keys = tuple(unquote(part) for part in parts[: self.longest])
        for length in range(len(keys), -1, -1):
            name = self.routes.get(keys[:length])
            if name is not None:
                route = "".join(["/" + part for part in parts[:length]])
                return name, route, "/" + "/".join(parts[length:]) + mark + query
        return None
