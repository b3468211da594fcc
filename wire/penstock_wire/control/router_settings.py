"""Settings that the operator sends to a router: its endpoints, their ports and how they share requests."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Literal, get_args

import msgspec

from penstock_wire.control import documents, traffic_rules
from penstock_wire.control.traffic_rules import Match, OnMissing, SessionAffinity, StaticAnswer
from penstock_wire.errors import DocumentError

ORIGIN_PATTERN = r"^[a-z][a-z0-9+.-]*://(\[[0-9a-f:]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?$"
"""An origin as browsers send it: scheme, host and, if it is not the scheme's default, port."""
ANY_ORIGIN = "*"
HEADER_PATTERN = r"^[A-Za-z0-9!#$%&'+.^_`|~-]+$"
"""The name of a header field (RFC 9110 section 5.1), without `*`."""
IGNORED_PATH_PATTERN = r"^\$(\.([A-Za-z0-9_-]+|\*)|\[([0-9]{1,9}|\*|'[^'\\]+')\])+$"
"""A JSON path that a comparison ignores: `$.usage`, `$.predictions[*].id`, `$['a name']`."""

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
"""A method that an endpoint can list."""
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class ColdStart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The handling of requests while no pod of the chosen backend is ready and reachable.

    Args:
        timeout_ms: longest time that a request is held.
        max_pending: most requests held for one endpoint in one router.
    """

    timeout_ms: Annotated[int, msgspec.Meta(ge=0)] = 120_000
    max_pending: Annotated[int, msgspec.Meta(ge=0)] = 1000


class Timeouts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Limits of an answer's time, beside an endpoint's `timeout_ms`.

    Args:
        first_byte_ms: until the head of an answer, at most `timeout_ms`; None = `timeout_ms`.
        idle_ms: between two pieces of a streamed answer, and without a byte either way in a tunnel; None =
            the time that the request had for its head; in a tunnel, ten minutes.
        total_ms: from a request's arrival (a short body's end) to the end of its answer or tunnel; None = no
            limit.
    """

    first_byte_ms: Annotated[int, msgspec.Meta(ge=1)] | None = None
    idle_ms: Annotated[int, msgspec.Meta(ge=1)] | None = None
    total_ms: Annotated[int, msgspec.Meta(ge=1)] | None = None


class Cors(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The web pages that can call an endpoint and read its answers.

    Args:
        origins: origins of the pages; `*` for all.
        headers: request fields that pages can send beside those that are always allowed.
        credentials: whether pages can send cookies and other credentials; not with all origins.
    """

    origins: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    credentials: bool = False


class WeightedBackend(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One backend of an endpoint.

    Args:
        name: name of the ModelBackend; its pods come from the EndpointSlices of its Service.
        weight: its share, relative to the others'.
        match: rules; a request that matches one goes here, whatever the weights. The first backend of the
            list with a matching rule gets the request.
        targets: `host:port` of its sidecars, for a router that runs alone.
    """

    name: str
    weight: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 1
    match: tuple[Match, ...] = ()
    targets: tuple[str, ...] = ()


class Compare(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The way in which a mirror's answers are compared with the served ones.

    Args:
        ignore: JSON paths that are left out, with all below them (`IGNORED_PATH_PATTERN`).
        tolerance: two numbers are equal if they differ by at most this times the larger of 1 and their
            magnitudes.
        show_values: whether reports have the values that differ first, and not their types alone.
    """

    ignore: tuple[str, ...] = ()
    tolerance: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    show_values: bool = False


class Mirror(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A backend that gets copies of an endpoint's requests; clients never get its answers.

    Args:
        name: as in `WeightedBackend`.
        percent: percentage of the requests that is copied.
        match: rules; only requests that match one are copied; empty = all.
        priority_header: the field that gives its sidecars a request's priority, in lower case; empty if they
            use none.
        priority_level: its least urgent level; 1 if it has no other.
        drop_headers: fields of requests that copies do not have, in lower case.
        compare: how its answers are compared; None = not at all.
        targets: as in `WeightedBackend`.
    """

    name: str
    percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 100
    match: tuple[Match, ...] = ()
    priority_header: str = ""
    priority_level: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    drop_headers: tuple[str, ...] = ()
    compare: Compare | None = None
    targets: tuple[str, ...] = ()


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One ModelEndpoint as a router serves it.

    Args:
        name: its name.
        port: the port every router pod listens on for it; None = the front door only (a router alone).
        route: path prefix at the front door, on whole segments, stripped; None = `/<name>`; empty = none.
        methods: methods that it accepts; empty = any.
        timeout_ms: time for a request that brings none, and the most that a request can ask for.
        timeouts: further limits of time; None = none.
        max_body_bytes: of a request's body; None = no limit.
        retries: tries on other pods after the first, only if nothing was executed.
        cold_start: how requests are held while no pod is ready.
        cors: web pages that can read the answers; None = the model's own CORS fields pass unchanged.
        backends: the backends that serve it.
        on_missing: what happens to the requests of a backend that does not exist: the others share them, or
            they fail at once.
        session_affinity: what keeps requests on the same pod, beside `x-penstock-shard-key`; None = nothing
            else.
        static: answers that the router itself gives.
        closed: paths that are refused in every spelling: only a sidecar can use them on its model.
        mirrors: the backends that get copies of its requests.
        access_log_percent: percentage of its requests that are logged; None = as the router's flag says.
        leaving: other routers serve it by now. Each answer at its port closes the connection, so that its
            clients move there before this router stops serving it.
    """

    name: str
    port: Port | None = None
    route: str | None = None
    methods: tuple[str, ...] = ()
    timeout_ms: Annotated[int, msgspec.Meta(ge=1)] = 30_000
    timeouts: Timeouts | None = None
    max_body_bytes: Annotated[int, msgspec.Meta(ge=1)] | None = None
    retries: Annotated[int, msgspec.Meta(ge=0, le=10)] = 1
    cold_start: ColdStart = msgspec.field(default_factory=ColdStart)
    cors: Cors | None = None
    backends: tuple[WeightedBackend, ...] = ()
    on_missing: OnMissing = "Share"
    session_affinity: SessionAffinity | None = None
    static: tuple[StaticAnswer, ...] = ()
    closed: tuple[str, ...] = ()
    mirrors: tuple[Mirror, ...] = ()
    access_log_percent: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    leaving: bool = False

    @property
    def effective_route(self) -> str:
        """The route with its derived default filled in."""
        return f"/{self.name}" if self.route is None else self.route


class Tenant(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a shared router serves for one namespace.

    Args:
        port: the port of the namespace's front door.
        endpoints: the endpoints of the namespace; their backends are those of the namespace, too.
    """

    port: Port
    endpoints: tuple[Endpoint, ...]


class RouterSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All endpoints of one router; `v` and `version` as in `settings.Settings`.

    NB: `endpoints` has no default: a file that lacks it is cut, and does not mean to close all of them.

    Args:
        endpoints: those of the router's own namespace; none of a shared router.
        tenants: what a shared router serves, by namespace.
        digest: the name of a shared router's settings, which is not made from all their bytes after each
            change of a part, and of a change: that of the settings which it makes.
        base: these are a change of the settings of this name: all other namespaces or, of a namespace's own
            router, endpoints stay as they are there.
        gone: those of them that are not served any more, of a change.
    """

    v: int = documents.VERSION
    version: int | None = None
    endpoints: tuple[Endpoint, ...]
    tenants: dict[str, Tenant] | msgspec.UnsetType = msgspec.UNSET
    digest: str | msgspec.UnsetType = msgspec.UNSET
    base: str | msgspec.UnsetType = msgspec.UNSET
    gone: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def scopes(self) -> list[tuple[str, tuple[Endpoint, ...]]]:
        """The endpoints of each namespace, within which names are unique, by their place in the document."""
        tenants = (self.tenants or {}).items()
        return [
            ("$.endpoints", self.endpoints),
            *[(f"$.tenants.{name}.endpoints", tenant.endpoints) for name, tenant in tenants],
        ]


def decode(
    data: bytes, *, what: str = "router settings", text: bool = False, by_hand: bool = False
) -> RouterSettings:
    """Decode router settings (raises DocumentError; see `documents.decode`).

    If written by hand, settings that a ModelEndpoint or a TrafficSplit cannot have are refused, too.
    """
    settings = documents.decode(RouterSettings, data, what=what, text=text, by_hand=by_hand)
    for endpoint in itertools.chain.from_iterable([endpoints for _, endpoints in settings.scopes]):
        if endpoint.cors is not None and (fault := _fault(endpoint.cors)):
            raise DocumentError(f"{what}: endpoint {endpoint.name}: cors.{fault}")
        if endpoint.mirrors and (fault := _mirror_fault(endpoint)):
            raise DocumentError(f"{what}: endpoint {endpoint.name}: mirrors{fault}")
    if by_hand:
        for index, endpoint in enumerate(settings.endpoints):
            if fault := _slip(endpoint):
                raise DocumentError(f"{what}: $.endpoints[{index}].{fault}")
    return settings


def _slip(endpoint: Endpoint) -> str:
    """Return which setting of an endpoint cannot have an effect; empty if nothing is wrong."""
    known = get_args(Method)
    for index, method in enumerate(endpoint.methods):
        if method not in known:
            near = f": did you mean {method.upper()}?" if method.upper() in known else ""
            return f"methods[{index}]: expected one of {', '.join(known)}, found {method!r}{near}"
    first = endpoint.timeouts.first_byte_ms if endpoint.timeouts is not None else None
    if first is not None and first > endpoint.timeout_ms:
        most = f"expected at most the {endpoint.timeout_ms} ms of timeout, found {first} ms"
        return f"timeouts.firstByte: {most}"
    if not any(backend.weight for backend in endpoint.backends):
        return "backends: expected at least one backend with a weight above 0, found none"
    return _traffic_slip(endpoint)


def _traffic_slip(endpoint: Endpoint) -> str:
    """Return what is wrong with an endpoint's rules, affinity or static answers; empty if nothing is."""
    served, most = traffic_rules.RegexBudget(), traffic_rules.MAX_MIRROR_REGEX_SIZE
    ruled = [(f"backends[{index}]", backend.match, served) for index, backend in enumerate(endpoint.backends)]
    ruled += [
        (f"mirrors[{index}]", mirror.match, traffic_rules.RegexBudget(most))
        for index, mirror in enumerate(endpoint.mirrors)
    ]
    for where, rules, budget in ruled:
        for place, rule in enumerate(rules):
            if slip := traffic_rules.match_slip(rule, budget):
                return f"{where}.match[{place}]{slip}"
    affinity = endpoint.session_affinity
    if affinity is not None and (slip := traffic_rules.affinity_slip(affinity)):
        return f"sessionAffinity{slip}"
    if slip := traffic_rules.static_slip(endpoint.static):
        return f"static{slip}"
    return ""


def _fault(cors: Cors) -> str:
    """Return what is wrong with a `cors`; empty if nothing is."""
    for origin in cors.origins:
        if origin != ANY_ORIGIN and not re.fullmatch(ORIGIN_PATTERN, origin):
            return f"origins: expected * or an origin such as https://app.example, found {origin!r}"
    for name in cors.headers:
        if not re.fullmatch(HEADER_PATTERN, name):
            return f"headers: expected the name of a header field, found {name!r}"
    if cors.credentials and ANY_ORIGIN in cors.origins:
        return "credentials: expected false where origins has *, found true"
    return ""


def _mirror_fault(endpoint: Endpoint) -> str:
    """Return what is wrong with an endpoint's mirrors; empty if nothing is."""
    serving = {backend.name for backend in endpoint.backends}
    seen: set[str] = set()
    for index, mirror in enumerate(endpoint.mirrors):
        if not mirror.name or mirror.name in seen:
            return f"[{index}].name: expected a unique name, found {mirror.name!r}"
        if mirror.name in serving:
            return (
                f"[{index}].name: expected a backend that does not serve, found {mirror.name!r} of backends"
            )
        seen.add(mirror.name)
        if mirror.priority_header and not re.fullmatch(HEADER_PATTERN, mirror.priority_header):
            expected = "expected the name of a header field"
            return f"[{index}].priorityHeader: {expected}, found {mirror.priority_header!r}"
        for path in mirror.compare.ignore if mirror.compare is not None else ():
            if not re.fullmatch(IGNORED_PATH_PATTERN, path):
                return (
                    f"[{index}].compare.ignore: expected a path such as $.usage or $.items[*].id, "
                    f"found {path!r}"
                )
    return ""


def encode(settings: RouterSettings) -> bytes:
    """Encode settings as JSON: equal settings are equal bytes."""
    return msgspec.json.encode(settings)


def encode_tenant(tenant: Tenant) -> bytes:
    """Encode what a shared router serves for one namespace, for `encode_tenants`."""
    return msgspec.json.encode(tenant)


def encode_tenants(
    version: int,
    tenants: Mapping[str, bytes],
    *,
    digest: str = "",
    base: str = "",
    gone: Collection[str] = (),
) -> bytes:
    """Encode the settings of a shared router from the parts of its namespaces, which stay as they are.

    Args:
        tenants: all of them; of a change of the settings `base`, only those that it changes.
    """
    parts = {namespace: msgspec.Raw(part) for namespace, part in tenants.items()}
    document: dict[str, object] = {"v": documents.VERSION, "version": version}
    document |= {"digest": digest, "endpoints": (), "tenants": parts}
    if base:
        document |= {"base": base, "gone": sorted(gone)}
    return msgspec.json.encode(document)


class _Parts(msgspec.Struct, frozen=True):
    version: int
    digest: str = ""
    tenants: dict[str, msgspec.Raw] = {}


def decode_parts(document: bytes) -> tuple[int, str, dict[str, bytes]]:
    """Return the version, the name and the parts of `encode_tenants`' settings (raises DocumentError)."""
    try:
        read = msgspec.json.decode(document, type=_Parts)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DocumentError(f"shared router's settings: {error}") from error
    return read.version, read.digest, {name: bytes(part) for name, part in read.tenants.items()}


class _Whole(msgspec.Struct, frozen=True):
    v: int
    version: int
    endpoints: tuple[msgspec.Raw, ...]
    digest: str | msgspec.UnsetType = msgspec.UNSET
    tenants: dict[str, msgspec.Raw] | msgspec.UnsetType = msgspec.UNSET


class _Endpoints(msgspec.Struct, frozen=True):
    endpoints: tuple[msgspec.Raw, ...]


class _Named(msgspec.Struct, frozen=True):
    name: str


def endpoints_of(document: bytes) -> dict[str, bytes]:
    """The endpoints of a document of `encode` or `encode_tenant` by name, each as it is encoded."""
    parts = msgspec.json.decode(document, type=_Endpoints).endpoints
    return {msgspec.json.decode(part, type=_Named).name: bytes(part) for part in parts}


def encode_change(
    endpoints: dict[str, bytes], changed: frozenset[str], *, version: int, digest: str, base: str
) -> bytes:
    """Encode the change of the settings `base` that makes a document of `encode`.

    Args:
        endpoints: the document's.
        changed: those by which they differ, those that are gone too.
        version: the document's.
        digest: the document's name.
    """
    put = tuple(msgspec.Raw(endpoints[name]) for name in sorted(changed & endpoints.keys()))
    change: dict[str, object] = {"v": documents.VERSION, "version": version, "digest": digest, "base": base}
    return msgspec.json.encode(change | {"gone": sorted(changed - endpoints.keys()), "endpoints": put})


def smaller(document: bytes, share: float) -> bytes:
    """Return settings without their largest endpoints or, of a shared router, namespaces, and without name.

    Args:
        document: of `encode` or `encode_tenants`.
        share: of its bytes that are to stay, below 1; at least one endpoint or namespace goes.
    """
    whole = msgspec.json.decode(document, type=_Whole)
    tenants = list((whole.tenants or {}).items())
    sizes = [len(bytes(part)) for part in [*whole.endpoints, *[part for _, part in tenants]]]
    left, kept = share * sum(sizes), set()
    for place in sorted(range(len(sizes)), key=sizes.__getitem__)[:-1]:
        left -= sizes[place]
        if left >= 0:
            kept.add(place)
    first = len(whole.endpoints)
    some = {name: part for place, (name, part) in enumerate(tenants) if first + place in kept}
    return msgspec.json.encode(
        msgspec.structs.replace(
            whole,
            endpoints=tuple(part for place, part in enumerate(whole.endpoints) if place in kept),
            tenants=msgspec.UNSET if whole.tenants is msgspec.UNSET else some,
            digest=msgspec.UNSET,
        )
    )


def changed(settings: RouterSettings, now: RouterSettings | None, name: str) -> RouterSettings:
    """Return settings as a whole.

    Args:
        settings: as they came: whole, or a change.
        now: those in effect.
        name: of those in effect; empty if they did not come from the operator.

    Raises:
        DocumentError: they are a change of others.
    """
    if not settings.base:
        return settings
    if now is None or settings.base != name:
        raise DocumentError(
            f"router settings: expected a change of the settings in effect, {name or 'none'}, "
            f"found one of {settings.base}"
        )
    tenants = {**(now.tenants or {}), **(settings.tenants or {})}
    endpoints = {each.name: each for each in (*now.endpoints, *settings.endpoints)}
    for name in settings.gone or ():
        tenants.pop(name, None)
        endpoints.pop(name, None)
    return msgspec.structs.replace(
        settings,
        endpoints=tuple(endpoints[name] for name in sorted(endpoints)),
        tenants=msgspec.UNSET if settings.tenants is msgspec.UNSET else tenants,
        base=msgspec.UNSET,
        gone=msgspec.UNSET,
    )
