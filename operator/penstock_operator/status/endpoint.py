"""The status of a ModelEndpoint, and the observed state of a namespace's router."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock_operator.api import Condition, ModelEndpoint
from penstock_operator.api.defaults import route, url
from penstock_operator.api.modelendpoint import ModelEndpointStatus, ServingBackend
from penstock_operator.desired import labels, names
from penstock_operator.desired.objects import Object
from penstock_operator.desired.settings import lacks
from penstock_operator.desired.traffic import EndpointPlan
from penstock_operator.status import conditions, pods
from penstock_operator.status.conditions import condition
from penstock_operator.status.refusals import Refusal
from penstock_wire import durations
from penstock_wire.control.report import RouterReport


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterObserved:
    """The observed state of a namespace's router.

    Args:
        reports: the last report of each pod by name, of pods that reported lately (say 10 s).
        alike: the digests of earlier settings that are the same for the endpoint for which it is observed.
        unmade: whether the settings that they should have are not made yet: no report can show them.
        taken: its objects with names that are taken by others' objects, as `Service/penstock-router`.
        sort: "shared" by namespaces, "dedicated" to the endpoint; empty for the namespace's own.
        home: the namespace where they are, if that is another one.
        door_taken: as `taken`, of the namespace's front door, where they serve the endpoint without it.
        door_refused: likewise, why the apiserver refused an object of the front door.
        unknown_mode: the label penstock.dev/router of the namespace, if it asks for routers of no known sort.
    """

    deployment: Object | None = None
    pods: Sequence[Object] = ()
    reports: Mapping[str, RouterReport] = field(default_factory=dict)
    settings_version: int = 0
    settings_digest: str = ""
    alike: Collection[str] = ()
    unmade: bool = False
    taken: Sequence[str] = ()
    refused: Refusal | None = None
    sort: Literal["", "shared", "dedicated"] = ""
    home: str = ""
    door_taken: Sequence[str] = ()
    door_refused: Refusal | None = None
    unknown_mode: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointObserved:
    """The observed state of an endpoint.

    Args:
        backends: the backends that exist in the namespace, and whether each has a ready pod.
        without_service: backends with ready pods that no router finds, as their Service does not select them.
        asleep: backends that the autoscaler has scaled to 0, until a pod is ready again; the first
            held request wakes them.
        default_timeouts: by backend, the most milliseconds that its sidecars give a request.
        taken: its objects with names that are taken by others' objects, as `Service/NAME`.
    """

    plan: EndpointPlan
    router: RouterObserved
    backends: Mapping[str, bool]
    port: int | None
    taken: Sequence[str] = ()
    refused: Refusal | None = None
    without_service: Collection[str] = ()
    asleep: Collection[str] = ()
    default_timeouts: Mapping[str, int] = field(default_factory=dict)


def endpoint_status(endpoint: ModelEndpoint, seen: EndpointObserved, *, now: str) -> dict[str, Any]:
    """Make the whole status of an endpoint (see `backend.backend_status`)."""
    old, generation = endpoint.status, endpoint.metadata.generation
    accepted = _accepted(endpoint, seen)
    backends = _backends_ready(seen)
    router = router_ready(endpoint.name, seen.router)
    stood = conditions.stands(conditions.find(old.conditions, "Ready"), generation)
    ready = _summary(
        accepted,
        backends,
        router,
        stood=stood,
        releasing=seen.plan.releasing,
        note=unreachable_timeout(endpoint, seen),
    )
    status_conditions = [accepted, backends, router, ready]
    refusals = (seen.refused, seen.router.refused)
    stalled = backends.reason == "BackendMissing" or router.reason in _STALLED
    stalled = stalled or (accepted.status == "False" and not (seen.refused and seen.refused.passing))
    stalled = stalled or any(refusal is not None and not refusal.passing for refusal in refusals)
    status_conditions += conditions.flags(ready, reconciling=ready.status != "True", stalled=stalled)
    return ModelEndpointStatus(
        observed_generation=generation,
        url=url(endpoint) if seen.port is not None and not seen.taken else None,
        shares=conditions.shares((share.name, share.weight) for share in seen.plan.backends),
        backends=tuple(
            ServingBackend(name=share.name, weight=share.weight, ready=seen.backends.get(share.name, False))
            for share in seen.plan.backends
        ),
    ).document() | {
        "conditions": conditions.merge(old.conditions, status_conditions, generation=generation, now=now)
    }


_STALLED = {"NameTaken", "PortFailed", "ImagePullFailed", "ContainerCrashed", "PodsRefused"}


def _summary(
    accepted: Condition,
    backends: Condition,
    router: Condition,
    *,
    stood: bool,
    releasing: bool,
    note: str | None,
) -> Condition:
    """Make Ready: the first aspect that is not True, else True, with a note on the endpoint's timeout.

    Routers that are merely silent (the operator has just started) leave a True of this generation as it is;
    so do routers that have yet to take up a release's weight, as a release's steps are the operator's own.
    """
    passing = releasing and stood and router.reason == "Waiting"
    for aspect in (accepted, backends, router):
        if aspect.status == "False" and not (aspect is router and passing):
            return condition("Ready", "False", aspect.reason, aspect.message)
    if router.status == "Unknown" and not stood:
        return condition("Ready", "Unknown", router.reason, router.message)
    if note is not None:
        return condition("Ready", "True", "TimeoutUnreachable", note)
    return condition("Ready", "True", "Serving")


def unreachable_timeout(endpoint: ModelEndpoint, seen: EndpointObserved) -> str | None:
    """The reason why no request gets the endpoint's timeout, with the numbers; None if requests get it.

    Only if the timeout was set: a `defaultTimeout` below the default of `timeout` was chosen to be short.
    """
    spec = endpoint.spec
    name, asked = "timeout", spec.timeout
    if spec.timeouts is not None and spec.timeouts.first_byte is not None:
        name, asked = "timeouts.firstByte", spec.timeouts.first_byte
    elif asked == type(spec).model_fields["timeout"].default:
        return None
    wanted = durations.parse_ms(asked)
    asked_for = {share.name for share in seen.plan.backends if share.weight > 0 or share.match}
    shorter = {
        backend: most
        for backend in asked_for
        if (most := seen.default_timeouts.get(backend, wanted)) < wanted
    }
    if not shorter:
        return None
    return (
        f"{name} is {asked}, but sidecars end a request after the defaultTimeout of their backend's batching "
        f"({durations.format_ms(min(shorter.values()))}): raise that of {conditions.some(shorter)}"
    )


def _accepted(endpoint: ModelEndpoint, seen: EndpointObserved) -> Condition:
    if seen.taken:
        text = f"not ours, so not touched: {conditions.some(seen.taken)}; choose another name or delete it"
        return condition("Accepted", "False", "NameTaken", text)
    if seen.refused is not None:
        return condition("Accepted", "False", seen.refused.reason, seen.refused.message)
    if seen.port is None:
        return condition("Accepted", "False", "NoPort", "all 10000 ports of the namespace's router are taken")
    if seen.plan.route_taken_by is not None:
        text = (
            f"route {route(endpoint)} is served for the older ModelEndpoint {seen.plan.route_taken_by}; "
            f"Service {endpoint.name} serves this one"
        )
        return condition("Accepted", "False", "RouteConflict", text)
    return condition("Accepted", "True", "Accepted")


def _backends_ready(seen: EndpointObserved) -> Condition:
    kind, missing = "BackendsReady", seen.plan.missing
    if missing:
        return condition(kind, "False", "BackendMissing", f"no such ModelBackend: {conditions.some(missing)}")
    asked = {share.name for share in seen.plan.backends if share.weight > 0 or share.match}
    asked.update(seen.plan.untried)
    if hidden := asked.intersection(seen.without_service):
        text = (
            f"pods are ready, but no router finds them, of: {conditions.some(hidden)}; the Service "
            f"{names.backend(min(hidden))} is not there or not Penstock's"
        )
        return condition(kind, "False", "NoService", text)
    left_out = asked.difference(share.name for share in seen.plan.backends)
    waiting = [name for name in asked - left_out if not seen.backends[name] and name not in seen.asleep]
    texts = [f"no pod is ready of: {conditions.some(waiting)}"] if waiting else []
    if left_out:
        texts.append(f"the others have its part until a pod is ready of: {conditions.some(left_out)}")
    if texts:
        return condition(kind, "False", "BackendNotReady", "; ".join(texts))
    if seen.plan.waits_for is not None:
        serving = conditions.some(share.name for share in seen.plan.backends if share.weight > 0)
        text = f"no pod is ready of: {seen.plan.waits_for}; until then requests stay with {serving}"
        return condition(kind, "False", "BackendNotReady", text)
    if asleep := (asked - left_out).intersection(seen.asleep):
        text = f"scaled to 0, so requests are held until a pod is ready, of: {conditions.some(asleep)}"
        return condition(kind, "True", "ScaledToZero", text)
    return condition(kind, "True", "PodsReady")


def router_ready(endpoint: str | None, router: RouterObserved) -> Condition:
    """`RouterReady`: every ready router pod has what is current of the endpoint, and listens for it.

    Args:
        endpoint: the endpoint; None checks the settings alone.
    """
    found = _router_ready(endpoint, router)
    text = "; ".join((found.message, *_beside(router)))
    return condition(found.type, found.status, found.reason, text)


def _beside(router: RouterObserved) -> Iterator[str]:
    """Yield, in words, what is wrong around an endpoint's routers and keeps nothing from being served."""
    if router.door_taken:
        taken = conditions.some(router.door_taken)
        yield f"of the namespace's front door, not ours, so not touched: {taken}; delete it"
    if router.door_refused is not None:
        yield f"of the namespace's front door, refused: {router.door_refused.message}"
    if router.unknown_mode is not None:
        label = f"{labels.ROUTER_MODE}={router.unknown_mode}"
        known = f"neither {labels.MODE_SHARED} nor {labels.MODE_OWN}"
        yield f"the namespace's label {label} is {known}, and is ignored"


def _router_ready(endpoint: str | None, router: RouterObserved) -> Condition:
    kind, version = "RouterReady", router.settings_version
    where = f", in {router.home}" if router.home else ""
    sort = f"{router.sort} router".lstrip()
    if router.taken:
        text = f"not ours, so not touched: {conditions.some(router.taken)}{where}; delete it"
        return condition(kind, "False", "NameTaken", text)
    if router.refused is not None:
        return condition(kind, "False", router.refused.reason, router.refused.message)
    ready = [pods.name(pod) for pod in pods.ready(router.pods)]
    if not ready:
        wrong = pods.refused(router.deployment) or pods.trouble(router.pods)
        if wrong is not None:
            return condition(kind, "False", wrong.reason, wrong.message)
        return condition(kind, "False", "RouterStarting", f"no {sort} pod is ready{where}")
    if router.unmade:
        return condition(kind, "False", "Waiting", f"the settings after version {version} are being made")
    reports = {name: router.reports[name] for name in ready if name in router.reports}
    behind = [
        name
        for name, report in reports.items()
        if lacks(report, version, router.settings_digest) and report.settings_digest not in router.alike
    ]
    silent = [name for name in ready if name not in reports]
    current = len(reports) - len(behind)
    count = f"{current} of {len(ready)} ready {sort}s{where and f'{where},'} have settings version {version}"
    if behind:
        return condition(kind, "False", "Waiting", f"{count}; behind: {conditions.some(behind)}")
    if endpoint is not None:
        deaf = [name for name, report in reports.items() if not _listens(report, endpoint)]
        if deaf:
            cause = next(
                (text for name in deaf if (text := _error(reports[name], endpoint))), "no error given"
            )
            return condition(
                kind, "False", "PortFailed", f"{conditions.some(deaf)} cannot listen for it: {cause}"
            )
    if silent:
        return condition(kind, "Unknown", "NoReports", f"{count}; silent: {conditions.some(silent)}")
    # NB: without the version: the next operator would give another to what a shared router serves.
    every = f"the only ready {sort}" if len(ready) == 1 else f"all {len(ready)} ready {sort}s"
    return condition(kind, "True", "Listening", f"{every}{where}")


def _listens(report: RouterReport, endpoint: str) -> bool:
    return endpoint in report.endpoints and report.endpoints[endpoint].listening


def _error(report: RouterReport, endpoint: str) -> str:
    return report.endpoints[endpoint].error if endpoint in report.endpoints else ""
