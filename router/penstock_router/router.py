"""The router as a whole: applies settings to endpoints and ports, and assigns each request to an endpoint."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from penstock_router.choice.routes import ROUTES_PATH, RouteTable
from penstock_router.endpoints import EndpointState, no_such_endpoint
from penstock_router.forwarding.forwarder import Forwarder
from penstock_router.messages.arrived_head import ArrivedHeads
from penstock_router.metrics import Metrics
from penstock_router.mirroring.mirrors import CopyBounds, Mirrors
from penstock_router.pods.endpoint_slices import parse_target
from penstock_router.pods.pool import Pods
from penstock_router.ports import Ports, owners
from penstock_router.tracing import Begin, Tracing
from penstock_wire.access_log import AccessLog
from penstock_wire.build import BUILD
from penstock_wire.control import report, router_settings
from penstock_wire.control.report import EndpointReport, State
from penstock_wire.control.router_settings import Endpoint, Mirror, RouterSettings, WeightedBackend
from penstock_wire.errors import DocumentError, PenstockError, Reason
from penstock_wire.http import Exchange, Front, Response, Service, Upstream
from penstock_wire.http.memory import MemoryBound
from penstock_wire.process import NOWHERE, log

MAX_MATCHES = 4096
"""The most targets whose endpoint is cached."""
MATCH_BYTES = 256
"""Bytes of one beside two targets."""
MAX_TARGET_SIZE = 1024
"""The longest target whose endpoint is cached: clients choose how long theirs are."""
JSON = ((b"content-type", b"application/json"),)


def decode_settings(data: bytes, *, by_hand: bool = False, targets: bool = True) -> RouterSettings:
    """Decode router settings, JSON or YAML, and check what a schema cannot express.

    Args:
        by_hand: whether a person wrote it; see `documents.decode`.
        targets: whether it may say where pods are. Beside an operator the EndpointSlices alone do.

    Raises:
        DocumentError: the document is not usable; no part of it may take effect.
    """
    try:
        # PyYAML reads JSON, too, but a large document would block the event loop for a second.
        settings = router_settings.decode(data, by_hand=by_hand)
    except DocumentError:
        if data.lstrip()[:1] == b"{":
            raise
        settings = router_settings.decode(data, text=True, by_hand=by_hand)
    for place, endpoints in settings.scopes:
        _check(endpoints, f"router settings: {place}", by_hand=by_hand, targets=targets)
    return settings


def _check(endpoints: Sequence[Endpoint], at: str, *, by_hand: bool, targets: bool) -> None:
    """Check the endpoints of one namespace.

    Args:
        at: their place in the document, for the error message.

    Raises:
        DocumentError: they are not usable.
    """
    seen: set[str] = set()
    targets_of: dict[str, tuple[str, ...]] = {}
    for place, endpoint in enumerate(endpoints):
        path = f"{at}[{place}]"
        if not endpoint.name or endpoint.name in seen:
            raise DocumentError(f"{path}.name: expected a unique name, found {endpoint.name!r}")
        seen.add(endpoint.name)
        if by_hand and endpoint.route and not endpoint.route.startswith("/"):
            raise DocumentError(f"{path}.route: expected one that begins with /, found {endpoint.route!r}")
        names = [backend.name for backend in endpoint.backends]
        twice = [name for index, name in enumerate(names) if not name or name in names[:index]]
        if twice:
            raise DocumentError(f"{path}.backends: expected unique names, found {twice[0]!r} again or empty")
        for number, backend in enumerate(all_backends(endpoint)):
            mirror = number - len(endpoint.backends)
            word = f"backends[{number}]" if mirror < 0 else f"mirrors[{mirror}]"
            if backend.targets and not targets:
                raise DocumentError(f"{path}.{word}.targets: expected none beside an operator, found some")
            if backend.targets and targets_of.setdefault(backend.name, backend.targets) != backend.targets:
                where = f"endpoint {endpoint.name}, backend {backend.name}"
                others = ", ".join(targets_of[backend.name])
                raise DocumentError(
                    f"router settings: {where}: expected the targets that another endpoint gives this "
                    f"backend ({others}), found {', '.join(backend.targets)}: use another name"
                )
            for index, target in enumerate(backend.targets):
                try:
                    parse_target(target)
                except ValueError as error:
                    raise DocumentError(f"{path}.{word}.targets[{index}]: {error}") from error


def all_backends(endpoint: Endpoint) -> list[WeightedBackend | Mirror]:
    """The backends that serve an endpoint, followed by its mirrors."""
    return [*endpoint.backends, *endpoint.mirrors]


def _place(endpoint: Endpoint) -> tuple[str, int | None]:
    """Where an endpoint gets its requests: its route and its port."""
    return endpoint.effective_route, endpoint.port


def without_targets(settings: RouterSettings) -> dict[str, str]:
    """Find backends that have targets in no endpoint, each with an endpoint that names it."""
    pairs = [
        (backend, endpoint.name) for endpoint in settings.endpoints for backend in all_backends(endpoint)
    ]
    served = {backend.name for backend, _ in pairs if backend.targets}
    return {backend.name: endpoint for backend, endpoint in pairs if backend.name not in served}


class Router:
    """One router process.

    Args:
        front: listens for requests.
        host: address on which endpoints' ports listen.
        upstream: sends requests to pods.
        random_source: for all random choices.
        pod: name of its pod; empty outside a cluster.
        uid: uid of its pod.
        where: fields of each log line, such as the namespace where the process serves several.
        slices_synced: whether the pods are known; always true outside a cluster.
        news: called on changes that must be reported at once.
        access: logs requests; None = none of them.
        processor_wait: see `report.SidecarReport`.
        tracing: makes spans of requests; None for none.
        short: whether it is short of CPU now.
        memory: the limit on memory that its connections keep; None for no limit.
        copies: the limit on mirrors' copies; None for its own.
    """

    def __init__(
        self,
        *,
        front: Front,
        host: str,
        upstream: Upstream,
        random_source: random.Random,
        clock: Callable[[], float],
        pod: str = "",
        uid: str = "",
        where: Mapping[str, str] = NOWHERE,
        slices_synced: Callable[[], bool] = lambda: True,
        news: Callable[[], None] = lambda: None,
        access: AccessLog | None = None,
        processor_wait: Callable[[], float | None] = lambda: None,
        tracing: Tracing | None = None,
        short: Callable[[], bool] = lambda: False,
        memory: MemoryBound | None = None,
        copies: CopyBounds | None = None,
    ) -> None:
        self.settings: RouterSettings | None = None
        self.ready = asyncio.Event()
        """Set once all ports of its first settings have been tried and its pods are known; never reset."""
        self.draining = False
        self._clock = clock
        self._random = random_source
        self._pod, self._uid = pod, uid
        self._where = where
        self._slices_synced = slices_synced
        self._news = news
        self._processor_wait = processor_wait
        self._endpoints: dict[str, EndpointState] = {}
        self._table = RouteTable.of(())
        self._matches: dict[str, tuple[str, str, str]] = {}  # cached results of the table, by target
        self._door: int | None = None
        self._owners: dict[int, str] = {}
        self._owner_errors: dict[str, str] = {}
        self.pods = Pods(clock=clock, random_source=random_source, changed=self._pods_changed, where=where)
        self._memory = memory = MemoryBound() if memory is None else memory
        self._heads = ArrivedHeads(memory.caches)
        self.metrics = Metrics(self._held_by_backend, self.pods.with_room, memory, where)
        self.ports = Ports(
            front=front, host=host, make_service=self._port_service, settled=self._settled, where=where
        )
        self._forwarder = Forwarder(
            pods=self.pods,
            upstream=upstream,
            metrics=self.metrics,
            clock=clock,
            pod=pod,
            access=access,
            caches=memory.caches,
            where=where,
        )
        self._mirrors = Mirrors(
            pods=self.pods,
            upstream=upstream,
            clock=clock,
            make_series=self.metrics.mirror_series,
            forget_series=self.metrics.forget_mirror,
            random_source=random_source,
            short=short,
            is_held_for=self._is_held_for,
            bounds=copies,
        )
        memory.others.append(self._mirrors.kept)
        self._begin: Begin = self._forwarder.begin
        if tracing is not None:
            self._begin = tracing.traced(self._begin, where)

    def apply(self, settings: RouterSettings, *, door: int | None = None) -> None:
        """Replace the settings: earlier requests are served by the old ones, later requests by these.

        Args:
            door: a port on which it listens as at the front door.
        """
        targets: dict[str, dict[str, None]] = {}
        for endpoint in settings.endpoints:
            for backend in all_backends(endpoint):
                if backend.targets:
                    targets.setdefault(backend.name, {}).update(dict.fromkeys(backend.targets))
        self.pods.set_targets({name: tuple(map(parse_target, texts)) for name, texts in targets.items()})
        wanted = {endpoint.name: endpoint for endpoint in settings.endpoints}
        before = () if self.settings is None else self.settings.endpoints
        moved = [endpoint.name for endpoint in before] != list(wanted)
        for name in self._endpoints.keys() - wanted.keys():
            self._endpoints.pop(name).remove()
            self.metrics.forget(name)
        for name, endpoint in wanted.items():
            state = self._endpoints.get(name)
            if state is None:
                state = self._endpoints[name] = self._make_state(endpoint)
            elif state.settings == endpoint:  # as of nearly all, where a namespace has thousands
                continue
            else:
                moved = moved or _place(state.settings) != _place(endpoint)
                state.update(endpoint)
            state.mirrors = self._mirrors.wanted(state.mirrors, endpoint)
            for fault in state.faults:
                log("match rule left out", level="warning", endpoint=name, error=fault, **self._where)
        if moved:
            self._place_all(settings)
        self.settings = settings
        leaving = [endpoint.port for endpoint in settings.endpoints if endpoint.leaving and endpoint.port]
        self._door = door
        self.ports.want([*self._owners, *([] if door is None else [door])], leaving)

    def _place_all(self, settings: RouterSettings) -> None:
        """Make anew what says which endpoint a route or a port is of."""
        self._table = RouteTable.of(settings.endpoints)
        self._forget_matches()
        for name, conflict in self._table.conflicts.items():
            log("endpoint has no route", level="warning", endpoint=name, error=conflict, **self._where)
        self._owners, self._owner_errors = owners(settings.endpoints)
        for name, conflict in self._owner_errors.items():
            log("endpoint has no port", level="warning", endpoint=name, error=conflict, **self._where)

    def front_door(self, exchange: Exchange) -> None:
        """Take a request at the common front door (a `Service`)."""
        request = exchange.request
        target = request.target
        match = self._matches.get(target)
        if match is None:
            if request.path == ROUTES_PATH:
                self._answer_routes(exchange)
                return
            match = self._table.match(target)
            if match is None:
                error = PenstockError(Reason.NO_ROUTE, f"no endpoint serves this path; see {ROUTES_PATH}")
                self._forwarder.refuse(exchange, error)
                return
            if len(target) <= MAX_TARGET_SIZE:
                if len(self._matches) >= MAX_MATCHES:
                    self._forget_matches()
                self._matches[target] = match
                self._memory.caches.grew(self._matches, MATCH_BYTES + 2 * len(target))
        name, route, request.target = match
        self._begin(self._endpoints[name], exchange, route.encode("latin-1"), None)

    def _forget_matches(self) -> None:
        self._matches.clear()
        self._memory.caches.cleared(self._matches)

    def _answer_routes(self, exchange: Exchange) -> None:
        method = exchange.request.method
        if method in ("GET", "HEAD"):
            body = msgspec.json.encode(self.routes())
            exchange.answer(Response(200, JSON, body))
            return
        error = PenstockError(
            Reason.METHOD_NOT_ALLOWED,
            f"{ROUTES_PATH} takes GET, found {method}",
            headers=((b"allow", b"GET, HEAD"),),
        )
        self._forwarder.refuse(exchange, error)

    def routes(self) -> list[dict[str, Any]]:
        """The entries of `/-/routes`."""
        listed = []
        for name, state in sorted(self._endpoints.items()):
            endpoint = state.settings
            backends = [
                {
                    "name": backend.name,
                    "weight": backend.weight,
                    "readyPods": len(list(self.pods.ready(backend.name))),
                }
                for backend in endpoint.backends
            ]
            conflict = self._table.conflicts.get(name)
            listed.append(
                {
                    "route": None if conflict or not endpoint.effective_route else endpoint.effective_route,
                    "methods": list(endpoint.methods),
                    "endpoint": name,
                    "port": endpoint.port or None,
                    "backends": backends,
                    **({"error": error} if (error := conflict or self._port_error(endpoint)) else {}),
                    **({"faults": state.faults} if state.faults else {}),
                }
            )
        return listed

    def report(self, sequence: int, *, settings_version: int, settings_digest: str = "") -> bytes:
        document = report.RouterReport(
            pod=self._pod,
            uid=self._uid,
            seq=sequence,
            state=self.state(),
            settings_version=settings_version,
            settings_digest=settings_digest,
            endpoints=self.endpoints_report(),
            changes=True,
            processor_wait=self._processor_wait(),
        )
        return report.encode(document)

    def endpoints_report(self) -> dict[str, EndpointReport]:
        """What a report says of each endpoint."""
        now = self._clock()
        endpoints = {}
        for name, state in self._endpoints.items():
            oldest = state.held.oldest()
            error = self._port_error(state.settings)
            port = state.settings.port
            endpoints[name] = EndpointReport(
                listening=not error and (not port or port in self.ports.bound),
                error=error,
                held=state.held.count,
                oldest_held_ms=0 if oldest is None else max(0, int((now - oldest) * 1000)),
                backends=state.report(),
                mirrors={} if state.mirrors is None else state.mirrors.report(),
            )
        return endpoints

    def state(self) -> State:
        if self.draining:
            return "draining"
        if self.settings is None:
            return "starting"
        return "ready" if self.ready.is_set() else "loading"

    @property
    def door_listens(self) -> bool:
        """Whether the port of the front door that the settings name is bound."""
        return self._door in self.ports.bound

    async def run(self) -> None:
        """Listen as the settings say, until cancelled or until `end`."""
        await self.ports.run()

    def end(self) -> None:
        """Serve nothing any more; what is in progress is answered, and then `run` returns.

        The front is not closed, and stays in the bound of memory.
        """
        self.apply(RouterSettings(endpoints=()))
        self._memory.others.remove(self._mirrors.kept)
        self.ports.end()

    def end_holds(self) -> None:
        """Answer all held requests 503, since the router shuts down."""
        for state in self._endpoints.values():
            state.end_holds(PenstockError(Reason.DRAINING, "the router shuts down", not_admitted=True))

    def check_ready(self) -> None:
        """Set `ready` once its conditions hold."""
        if (
            self.settings is not None
            and not self.ready.is_set()
            and self.ports.all_tried
            and self._slices_synced()
        ):
            self.ready.set()
            log("ready", endpoints=len(self._endpoints), build=BUILD, **self._where)
            self._news()

    def _make_state(self, endpoint: Endpoint) -> EndpointState:
        return EndpointState(
            endpoint,
            pods=self.pods,
            clock=self._clock,
            random_source=self._random,
            on_held=self._news,
            series=self.metrics.series,
            heads=self._heads,
        )

    def _port_error(self, endpoint: Endpoint) -> str:
        error = self._owner_errors.get(endpoint.name, "")
        return error or (self.ports.errors.get(endpoint.port, "") if endpoint.port else "")

    def _port_service(self, port: int) -> Service:
        def take(exchange: Exchange) -> None:
            name = self._owners.get(port)
            if name is None and port == self._door:
                self.front_door(exchange)
            elif name is None:  # a connection that outlived its endpoint
                self._forwarder.refuse(exchange, no_such_endpoint(f"of port {port}"))
            else:
                self._begin(self._endpoints[name], exchange, b"", None)

        return take

    def _pods_changed(self) -> None:
        for state in self._endpoints.values():
            state.settle()
        self.check_ready()

    def _settled(self) -> None:
        self.check_ready()
        self._news()

    def _is_held_for(self, backend: str) -> bool:
        return any(state.held.length(backend) for state in self._endpoints.values())

    def _held_by_backend(self) -> Counter[str]:
        held: Counter[str] = Counter()
        for state in self._endpoints.values():
            held.update(state.held_by_backend())
        return held
