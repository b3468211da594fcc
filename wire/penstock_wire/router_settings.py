"""Settings that the operator tells a router: its endpoints, their ports and how they share requests."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock_wire import documents

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class ColdStart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What happens to requests while no pod of the chosen backend is ready and can be reached.

    Args:
        timeout_ms: how long a request is held at most.
        max_pending: requests held at most for one endpoint in one router.
    """

    timeout_ms: Annotated[int, msgspec.Meta(ge=0)] = 120_000
    max_pending: Annotated[int, msgspec.Meta(ge=0)] = 1000


class WeightedBackend(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One backend of an endpoint.

    Args:
        name: name of the ModelBackend; its pods come from the EndpointSlices of its Service.
        weight: its share, relative to the others'.
        targets: `host:port` of its sidecars, for a router that runs alone.
    """

    name: str
    weight: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 1
    targets: tuple[str, ...] = ()


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One ModelEndpoint as a router serves it.

    Args:
        name: its name.
        port: the port every router pod listens on for it; None = the front door only (a router alone).
        route: path prefix at the front door, on whole segments, stripped; None = `/<name>`; empty = none.
        methods: methods it takes; empty = any.
        timeout_ms: time for a request that brings none, and the most that one may ask for.
        retries: tries on other pods after the first, only where nothing was executed.
        cold_start: holding.
        backends: who serves it.
    """

    name: str
    port: Port | None = None
    route: str | None = None
    methods: tuple[str, ...] = ()
    timeout_ms: Annotated[int, msgspec.Meta(ge=1)] = 30_000
    retries: Annotated[int, msgspec.Meta(ge=0, le=10)] = 1
    cold_start: ColdStart = msgspec.field(default_factory=ColdStart)
    backends: tuple[WeightedBackend, ...] = ()

    @property
    def effective_route(self) -> str:
        """The route with its derived default filled in."""
        return f"/{self.name}" if self.route is None else self.route


class RouterSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All endpoints of one router; `v` and `version` as in `settings.Settings`."""

    v: int = documents.VERSION
    version: int | None = None
    endpoints: tuple[Endpoint, ...] = ()


def decode(data: bytes, *, what: str = "router settings", text: bool = False) -> RouterSettings:
    """Decode router settings (raises DocumentError; see `documents.decode`)."""
    return documents.decode(RouterSettings, data, what=what, text=text)


def encode(settings: RouterSettings) -> bytes:
    """The document's bytes: equal settings are equal bytes."""
    return msgspec.json.encode(settings)
