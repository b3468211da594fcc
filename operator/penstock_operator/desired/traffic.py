"""Plans the traffic of a namespace: routes, splits and weights; age decides conflicts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock_operator.api import ModelEndpoint, TrafficSplit, match
from penstock_operator.api.batchpolicy import Priority
from penstock_operator.api.defaults import is_dedicated, route
from penstock_operator.api.modelendpoint import Cors, SessionAffinity, Timeouts
from penstock_operator.desired.shares import Weight, mirrors_of, weights_of
from penstock_wire import durations
from penstock_wire.control import router_settings, traffic_rules
from penstock_wire.control.traffic_rules import MAX_MIRROR_REGEX_SIZE, OnMissing, RegexBudget
from penstock_wire.quantities import bytes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointPlan:
    """The plan of an endpoint.

    Args:
        route: its path prefix at the front door; "" if it has none, if it lost a conflict, and if the
            endpoint has a router of its own.
        backends: the serving backends, as in the router's settings: missing backends are left out while
            another of weight > 0 exists, never ready ones while another of weight > 0 is ready.
        untried: backends of weight > 0, or with rules, that were never ready.
        waits_for: the endpoint's own backend, if the last weights are used until it is ready.
        mirrors: the backends that get copies of its requests, as in the router's settings.
    """

    route: str
    route_taken_by: str | None = None
    split: str | None = None
    backends: tuple[Weight, ...] = ()
    missing: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()
    waits_for: str | None = None
    on_missing: OnMissing = "Share"
    mirrors: tuple[router_settings.Mirror, ...] = ()
    releasing: bool = False

    @property
    def asked(self) -> tuple[str, ...]:
        """The backends that get its requests, or copies of them."""
        return (*[share.name for share in self.backends], *[mirror.name for mirror in self.mirrors])


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """The plan of a split.

    Args:
        accepted: whether it decides its endpoint's weights.
        conflict_with: the split that decides them instead, if that is the reason.
        untried: backends of weight > 0, or with rules, that were never ready.
        left_out: those of `untried` whose share the others have.
        faults: rules that match nothing because they are invalid, and why.
    """

    accepted: bool
    conflict_with: str | None = None
    endpoint_missing: bool = False
    missing: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    on_missing: OnMissing = "Share"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficPlan:
    """The plan of a namespace: endpoints and splits by name, and the users of each backend.

    Args:
        used_by: for each backend name, its users, sorted: `TrafficSplit/NAME` of a split that decides, and
            `ModelEndpoint/NAME` of an endpoint that names it (also while a split overrides that: without the
            split, the endpoint falls back to it) or that still uses a deleted split's weights.
    """

    endpoints: Mapping[str, EndpointPlan]
    splits: Mapping[str, SplitPlan]
    used_by: Mapping[str, tuple[str, ...]]


def plan(
    endpoints: Sequence[ModelEndpoint],
    splits: Sequence[TrafficSplit],
    backends: Mapping[str, bool],
    untried: Collection[str] = (),
    priorities: Mapping[str, Priority] | None = None,
) -> TrafficPlan:
    """Decide which backends serve the endpoints of a namespace.

    After its split is deleted, an endpoint keeps the weights in its `status.backends` until `spec.backend` is
    ready. A backend that was never ready (its image is missing, its model does not load) gets no request
    while another is ready: the request would only be held until its timeout.

    Args:
        backends: the backends that exist, and whether each has a ready pod.
        priorities: by backend, the priority levels of its sidecars, if there are several.
    """
    there = sorted((item for item in endpoints if not item.deleting), key=lambda item: item.age_key)
    asked = sorted((item for item in splits if not item.deleting), key=lambda item: item.age_key)
    chosen: dict[str, TrafficSplit] = {}
    for split in asked:
        chosen.setdefault(split.spec.endpoint, split)
    routes: dict[str, str] = {}
    for endpoint in there:
        if not is_dedicated(endpoint):
            routes.setdefault(route(endpoint), endpoint.name)
    used: dict[str, set[str]] = {}
    plans: dict[str, EndpointPlan] = {}
    for endpoint in there:
        decided = chosen.get(endpoint.name)
        user = f"TrafficSplit/{decided.name}" if decided else f"ModelEndpoint/{endpoint.name}"
        weights = _weights(endpoint, decided, backends)
        on_missing: OnMissing = decided.spec.on_missing if decided else "Share"
        strategy = decided.spec.strategy if decided else None
        present = _present(weights, backends, on_missing, strategy.candidate if strategy else "")
        for share in weights:
            used.setdefault(share.name, set()).add(user)
        mirrors = () if decided is None else _mirrors(decided, priorities or {})
        for mirror in mirrors:
            used.setdefault(mirror.name, set()).add(user)
        own = endpoint.spec.backend
        used.setdefault(own, set()).add(f"ModelEndpoint/{endpoint.name}")
        waits_for = own if decided is None and own not in {share.name for share in weights} else None
        named = (*weights, Weight(name=waits_for, weight=1)) if waits_for else weights
        wanted = "" if is_dedicated(endpoint) else route(endpoint)
        lost = wanted != "" and routes[wanted] != endpoint.name
        plans[endpoint.name] = EndpointPlan(
            route="" if lost else wanted,
            route_taken_by=routes[wanted] if lost else None,
            split=decided.name if decided else None,
            backends=_tried(present, backends, untried),
            missing=_missing(named, backends),
            untried=_untried(weights, untried),
            waits_for=waits_for,
            mirrors=mirrors,
            releasing=strategy is not None,
            on_missing=on_missing,
        )
    return TrafficPlan(
        endpoints=plans,
        splits={
            split.name: _split_plan(split, chosen[split.spec.endpoint], plans, backends) for split in asked
        },
        used_by={name: tuple(sorted(users)) for name, users in sorted(used.items())},
    )


def _mirrors(split: TrafficSplit, priorities: Mapping[str, Priority]) -> tuple[router_settings.Mirror, ...]:
    mirrors = []
    for mirror in mirrors_of(split):
        priority, compare = priorities.get(mirror.name), mirror.compare
        mirrors.append(
            router_settings.Mirror(
                name=mirror.name,
                percent=mirror.percent,
                match=match.settings(mirror.match),
                priority_header="" if priority is None else priority.header.lower(),
                priority_level=1 if priority is None else priority.levels,
                drop_headers=tuple(name.lower() for name in mirror.drop_headers),
                compare=None
                if compare is None
                else router_settings.Compare(
                    ignore=compare.ignore, tolerance=compare.tolerance, show_values=compare.show_values
                ),
            )
        )
    return tuple(mirrors)


def _weights(
    endpoint: ModelEndpoint, split: TrafficSplit | None, backends: Mapping[str, bool]
) -> tuple[Weight, ...]:
    """The desired shares, before those of missing backends are redistributed."""
    if split is not None:
        copied = {mirror.name for mirror in mirrors_of(split)}
        return tuple(share for share in weights_of(split) if share.name not in copied)
    if not backends.get(endpoint.spec.backend, False):
        last = tuple(
            Weight(name=share.name, weight=share.weight)
            for share in endpoint.status.backends
            if share.name in backends
        )
        if any(backends[share.name] and share.weight > 0 for share in last):
            return last
    return (Weight(name=endpoint.spec.backend, weight=1),)


def _present(
    weights: tuple[Weight, ...], backends: Mapping[str, bool], on_missing: OnMissing, candidate: str
) -> tuple[Weight, ...]:
    """Drop backends that do not exist, so that the others share their weight; keep all if none is left.

    Keep all, too, if the requests of missing backends are to fail. If a release's stable is missing, the
    candidate gets all requests even at weight 0: no other backend could answer them.
    """
    if on_missing == "Fail":
        return weights
    left = tuple(share for share in weights if share.name in backends)
    if any(share.weight > 0 for share in left):
        return left
    if candidate not in {share.name for share in left}:
        return weights
    return tuple(replace(share, weight=1) if share.name == candidate else share for share in left)


def _tried(
    weights: tuple[Weight, ...], backends: Mapping[str, bool], untried: Collection[str]
) -> tuple[Weight, ...]:
    """Drop backends that were never ready, so that the others share their weight; keep all if none is ready.

    A backend with rules stays, at weight 0: requests that match are held, as for any backend without a pod.
    """
    if not any(share.weight > 0 and backends.get(share.name, False) for share in weights):
        return weights
    return tuple(
        share if share.name not in untried else replace(share, weight=0)
        for share in weights
        if share.weight == 0 or share.name not in untried or share.match
    )


def _untried(weights: tuple[Weight, ...], untried: Collection[str]) -> tuple[str, ...]:
    asked = (share.name for share in weights if share.weight > 0 or share.match)
    return tuple(sorted(name for name in asked if name in untried))


def _missing(weights: tuple[Weight, ...], backends: Mapping[str, bool]) -> tuple[str, ...]:
    return tuple(sorted(share.name for share in weights if share.name not in backends))


def _split_plan(
    split: TrafficSplit,
    chosen: TrafficSplit,
    endpoints: Mapping[str, EndpointPlan],
    backends: Mapping[str, bool],
) -> SplitPlan:
    endpoint_missing = split.spec.endpoint not in endpoints
    conflict = chosen.name if chosen.name != split.name else None
    accepted = conflict is None and not endpoint_missing
    decided = endpoints[split.spec.endpoint] if accepted else EndpointPlan(route="")
    serving = {share.name for share in decided.backends if share.weight > 0}
    shared = {share.name for share in weights_of(split) if share.weight > 0}
    return SplitPlan(
        accepted=accepted,
        conflict_with=conflict,
        endpoint_missing=endpoint_missing,
        untried=decided.untried,
        left_out=tuple(name for name in decided.untried if name in shared - serving),
        faults=_faults(split),
        on_missing=split.spec.on_missing,
        missing=tuple(sorted(share.name for share in split.spec.backends if share.name not in backends)),
    )


def _faults(split: TrafficSplit) -> tuple[str, ...]:
    """The invalid rules of backends and mirrors, and why they are invalid."""
    served = RegexBudget()
    ruled = [(f"backends[{index}]", share.match, served) for index, share in enumerate(split.spec.backends)]
    ruled += [
        (f"mirrors[{index}]", mirror.match, RegexBudget(MAX_MIRROR_REGEX_SIZE))
        for index, mirror in enumerate(split.spec.mirrors)
    ]
    return tuple(
        fault
        for where, asked, budget in ruled
        for fault in match.faults(asked, f"spec.{where}.match", budget)
    )


def _cors(cors: Cors | None) -> router_settings.Cors | None:
    if cors is None:
        return None
    return router_settings.Cors(origins=cors.origins, headers=cors.headers, credentials=cors.credentials)


def _affinity(affinity: SessionAffinity | None) -> traffic_rules.SessionAffinity | None:
    if affinity is None:
        return None
    if affinity.cookie is None:
        return traffic_rules.SessionAffinity(header=affinity.header)
    cookie = traffic_rules.AffinityCookie(
        name=affinity.cookie.name, ttl_ms=_milliseconds(affinity.cookie.ttl)
    )
    return traffic_rules.SessionAffinity(cookie=cookie)


def _timeouts(timeouts: Timeouts | None) -> router_settings.Timeouts | None:
    if timeouts is None:
        return None
    return router_settings.Timeouts(
        first_byte_ms=_milliseconds(timeouts.first_byte),
        idle_ms=_milliseconds(timeouts.idle),
        total_ms=_milliseconds(timeouts.total),
    )


def _milliseconds(duration: str | None) -> int | None:
    return None if duration is None else durations.parse_ms(duration)


def router_endpoints(
    endpoints: Sequence[ModelEndpoint],
    plan: TrafficPlan,
    ports: Mapping[str, int],
    closed: Mapping[str, Sequence[str]],
) -> tuple[router_settings.Endpoint, ...]:
    """Make the endpoints of a router's settings, sorted by name.

    Args:
        ports: port by endpoint name; an endpoint without one is left out.
        closed: as for `router_endpoint`.
    """
    return tuple(
        router_endpoint(endpoint, plan.endpoints[endpoint.name], ports[endpoint.name], closed)
        for endpoint in sorted(endpoints, key=lambda endpoint: endpoint.name)
        if endpoint.name in plan.endpoints and endpoint.name in ports
    )


def router_endpoint(
    endpoint: ModelEndpoint, plan: EndpointPlan, port: int, closed: Mapping[str, Sequence[str]]
) -> router_settings.Endpoint:
    """Make an endpoint of a router's settings.

    Args:
        closed: by backend, the paths of its model that no client may call.
    """
    spec = endpoint.spec
    return router_settings.Endpoint(
        name=endpoint.name,
        port=port,
        route=plan.route,
        methods=spec.methods,
        timeout_ms=durations.parse_ms(spec.timeout),
        timeouts=_timeouts(spec.timeouts),
        max_body_bytes=None if spec.max_body_bytes is None else bytes_of(spec.max_body_bytes),
        retries=spec.retries,
        cold_start=router_settings.ColdStart(
            timeout_ms=durations.parse_ms(spec.cold_start.timeout), max_pending=spec.cold_start.max_pending
        ),
        cors=_cors(spec.cors),
        backends=tuple(
            router_settings.WeightedBackend(
                name=share.name, weight=share.weight, match=match.settings(share.match)
            )
            for share in plan.backends
        ),
        on_missing=plan.on_missing,
        session_affinity=_affinity(spec.session_affinity),
        access_log_percent=spec.access_log_percent,
        static=tuple(
            traffic_rules.StaticAnswer(path=answer.path, status=answer.status, body=answer.body)
            for answer in spec.static
        ),
        closed=tuple(sorted({path for name in plan.asked for path in closed.get(name, ())})),
        mirrors=plan.mirrors,
    )
