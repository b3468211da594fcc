"""What each view of the page shows, as JSON, of the resources and what was scraped. Pure.

All words are those of `status`, `why`, `rollout` and `remedies`; the page lays them out and draws.
"""

from __future__ import annotations

import functools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from penstock_cli import causes, injected, remedies
from penstock_cli.cluster import PLURALS, CommandError, Resource, event_time
from penstock_cli.commands import abort, pause, promote, rollout, status, why
from penstock_cli.release import PAUSED, ROLLED_BACK, Release
from penstock_cli.text import when
from penstock_cli.ui.scrapes import Target
from penstock_cli.ui.shared import Shared
from penstock_cli.ui.store import INJECTED, POD, Key, Store
from penstock_wire import contract
from penstock_wire.page import measures
from penstock_wire.page.measures import Scraped, buckets, quantile, total

View = dict[str, Any]
WORKLOAD = "Workload"
_ROUTER, _SIDECAR = "penstock_router_", measures.SIDECAR
_DEDICATED = "penstock-dedicated-router"
_SLOW = ("Downloading", "Loading")
"""Reasons that say why pods are not ready yet, beside `RollingOut`."""

Pods = dict[str, Scraped]


def rows(store: Store, now: datetime) -> dict[str, View]:
    """The rows of the overview, by `kind/namespace/name`; its caller holds `store.lock`.

    Args:
        store: all resources.
        now: the time.
    """
    made: dict[str, View] = {}
    shown = causes.Shown()
    for kind in PLURALS:
        for resource in sorted(store.of(kind), key=_place):
            key = "/".join((kind, *_place(resource)))
            try:
                made[key] = _row(kind, resource, key, shown)
            except Exception as error:  # of a CRD of another version: the others are shown
                made[key] = _head(kind, {"metadata": resource["metadata"], "spec": {}}) | {
                    "details": [],
                    "notes": [f"cannot be shown: {error!r}"],
                }
    for (namespace, name), pods in injected.by_workload(list(store.of(INJECTED))).items():
        made[f"{WORKLOAD}/{namespace}/{name}"] = _workload(store, namespace, name, pods)
    return made


def _row(kind: str, resource: Resource, key: str, shown: causes.Shown) -> View:
    details = list(status.details(kind, resource))
    if kind == "TrafficSplit" and (release := _release(resource)) is not None and release.stored:
        details = [f"{resource['spec'].get('endpoint')}: {release.summary}"]  # the note says why
    found = causes.found({"kind": kind, **resource}, key, shown, everything=False)
    if any(each.reason == "Downloading" for each in found):  # its note says how far it is
        details = [each for each in details if not each.startswith("downloads ")]
    return {**_head(kind, resource), "details": details, "notes": _notes(found)}


def _release(split: Resource) -> Release | None:
    return Release.of(split) if "strategy" in split["spec"] else None


def _notes(found: Sequence[causes.Cause]) -> list[View]:
    """Causes, each with what the documentation says of its reason."""
    made = []
    for each in found:
        meaning, remedy = remedies.of(each.reason)
        if each.reason == "RollingOut" and any(other.reason in _SLOW for other in found):
            remedy = ""  # to look for the other reason, which is here
        made.append(
            {
                "reason": each.reason,
                "kinds": ", ".join(each.kinds),
                "message": each.message or meaning,
                "remedy": remedy,
            }
        )
    return made


def _pill(kind: str, resource: Resource, ready: Mapping[str, Any]) -> tuple[str, str] | None:
    """What is to be seen first of a resource: a colour, and words; None for whether it is Ready."""
    reason = ready.get("reason", "")
    if ready.get("status") == "False":
        return ("wait", f"Not ready: {reason}") if remedies.in_progress(reason) else None
    if kind == "TrafficSplit" and (release := _release(resource)) is not None:
        return {PAUSED: ("wait", "Waits for a user"), ROLLED_BACK: ("bad", "Rolled back")}.get(release.phase)
    return ("quiet", "Nothing follows it") if kind == "BatchPolicy" and reason == "Unused" else None


def backend(store: Store, key: Key, scraped: Callable[[Iterable[Target]], Pods], now: datetime) -> View:
    """A ModelBackend; its caller holds `store.lock`.

    Args:
        store: all resources.
        key: which.
        scraped: gives what is known of pods, which are scraped from now on.
        now: the time.
    """
    resource = store.resources[key]
    spec, state = resource["spec"], resource.get("status") or {}
    load, scaling = state.get("load") or {}, spec.get("autoscaling")
    recommendation = state.get("recommendation") or {}
    verdict = recommendation.get("verdict", "")
    pods = [
        pod
        for pod in store.of(POD, key[1])
        if (pod["metadata"].get("labels") or {}).get(contract.BACKEND_LABEL) == key[2]
    ]
    known = scraped(_targets(pods, contract.SIDECAR_ADMIN_PORT, _SIDECAR))
    inputs = recommendation.get("inputs") or {}
    detailed = _detailed("ModelBackend", resource)
    return {
        **detailed,
        "details": [],  # the view has more
        "notes": [each for each in detailed["notes"] if each["reason"] != verdict],
        "replicas": {
            "wanted": spec.get("replicas", 1),
            "ready": state.get("readyReplicas") or 0,
            "recommended": state.get("desiredReplicas") if recommendation else None,
        },
        "load": {name: load.get(name, 0) for name in ("queued", "ongoing", "requestsPerMinute")}
        | {"held": int(inputs.get("held", 0))},
        "answers": _rate(known.values(), f"{_SIDECAR}requests_total"),
        "verdict": verdict,
        "meaning": _released(store, key, state) or why.VERDICTS.get(verdict, ""),
        "why": recommendation.get("message", ""),
        "remedy": remedies.of(verdict)[1],
        "terms": why.terms(inputs) if recommendation else [],
        "settings": why.limits(spec) if scaling is not None else [],
        "limits": [scaling.get("minReplicas", 1), scaling.get("maxReplicas")] if scaling is not None else [],
        "window": measures.window(known.values()),
        "changes": [
            {"time": each["time"], "from": each["from"], "to": each["to"], "reason": each.get("reason", "")}
            for each in state.get("scaling") or ()
            if when(each["time"]) is not None
        ],
        "samples": list(store.samples.get(key, ())),
        "errors": why.errors(load),
        "refused": load.get("refusedPerMinute", 0),
        "failed": load.get("failedPerMinute", 0),
        "artifact": (state.get("artifact") or {}).get("progress", ""),
        "pods": [_pod(pod, known.get(pod["metadata"]["name"])) for pod in pods],
        "batches": measures.batches(known.values(), now),
        "curve": measures.curve(known.values(), inputs, spec.get("batching") or {}),
        "users": _users(store, key),
        "follows": spec.get("batchPolicyRef", ""),
    }


def _released(store: Store, key: Key, state: Mapping[str, Any]) -> str:
    """What a release has to do with a backend's number of pods, and why; empty for nothing."""
    recommendation, name = state.get("recommendation") or {}, key[2]
    if recommendation.get("verdict") != "Release":
        return ""
    least = (store.resources[key]["spec"].get("autoscaling") or {}).get("minReplicas", 1)
    alone = max((recommendation.get("inputs") or {}).get("wanted", 0), least)
    for each in store.of("TrafficSplit", key[1]):
        release = _release(each)
        if release is None or not release.stored or name not in (release.stable, release.candidate):
            continue
        whole = release.stored.get("replicas")
        reason = f"all requests take {whole}, and can come back to it at any time"
        if name == release.candidate:
            reason = f"all requests take {whole}, and it is to have a part of them"
        return (
            f"kept at {state.get('desiredReplicas')} by the release of TrafficSplit "
            f"{each['metadata']['name']}: {reason}; the load alone asks for {alone}"
        )
    return ""


def endpoint(store: Store, key: Key, scraped: Callable[[Iterable[Target]], Pods], shared: Shared) -> View:
    """A ModelEndpoint; as `backend`.

    Args:
        store: all resources.
        key: which.
        scraped: gives what is known of pods, which are scraped from now on.
        shared: the routers that it shares with other namespaces.
    """
    resource = store.resources[key]
    state, name = resource.get("status") or {}, key[2]
    everyone = list(store.of(POD, key[1]))
    own = _of_app(everyone, _DEDICATED, {"penstock.dev/endpoint": name})
    routers = own or _of_app(everyone, contract.ROUTER_SERVICE, {})
    targets = list(_targets(routers, contract.ROUTER_ADMIN_PORT, _ROUTER))
    targets += [Target(*pod, contract.ROUTER_ADMIN_PORT, _ROUTER, key[1]) for pod in shared.pods]
    known = scraped(targets)
    split = next(
        (
            each
            for each in sorted(store.of("TrafficSplit", key[1]), key=_age)
            if each["spec"].get("endpoint") == name
        ),
        None,
    )
    flows = [
        _flow(store, key[1], name, each, known.values()) | {"mirror": False}
        for each in state.get("backends") or ({"name": resource["spec"]["backend"], "weight": 1},)
    ]
    mirrored = ((split or {}).get("status") or {}).get("mirrors") or ()
    copies = {each["name"]: each for each in mirrored}
    percents = {
        each["name"]: each.get("percent", 100)
        for each in (split or {"spec": {}})["spec"].get("mirrors") or ()
    }
    for mirror in {**dict.fromkeys(percents), **dict.fromkeys(copies)}:
        came = copies.get(mirror, {})
        flows.append(
            {
                "name": mirror,
                "mirror": True,
                "percent": percents.get(mirror),
                "summary": came.get("summary", ""),
                "differ": came.get("mismatchedPercent"),
                "difference": came.get("firstDifference", ""),
                "readyPods": _ready_pods(store, key[1], mirror),
                "rate": _rate(
                    known.values(), f"{_ROUTER}mirror_requests_total", endpoint=name, mirror=mirror
                ),
            }
        )
    return {
        **_detailed("ModelEndpoint", resource),
        "url": state.get("url", ""),
        "split": split["metadata"]["name"] if split else "",
        "flows": flows,
        "none": _answers(known.values(), name, ""),
        "window": measures.window(known.values()),
        "routers": [_pod(pod, known.get(pod["metadata"]["name"])) for pod in routers]
        + [_shared_pod(*pod, known[pod[1]]) for pod in shared.pods],
        "routersProblem": "" if routers else shared.problem,
    }


def split(
    store: Store, key: Key, events: Sequence[Resource] | CommandError, allowed: str, now: datetime
) -> View:
    """A TrafficSplit, and the release that it has; its caller holds `store.lock`.

    Args:
        store: all resources.
        key: which.
        events: of the split, oldest first, or why they cannot be read.
        allowed: why the user may not steer the release; empty if that is allowed.
        now: the time.
    """
    resource = store.resources[key]
    spec, state = resource["spec"], resource.get("status") or {}
    release = _release(resource)
    named = (release.stable, release.candidate) if release is not None else ()
    weights = {each["name"]: dict(each) for each in state.get("weights") or ()}
    view = {
        **_detailed("TrafficSplit", resource),
        "endpoint": spec.get("endpoint", ""),
        "weights": [each for name, each in weights.items() if name not in named],
        "mirrors": [dict(each) for each in state.get("mirrors") or ()],
        "events": [] if isinstance(events, CommandError) else [_event(each) for each in reversed(events)],
        "eventsProblem": str(events) if isinstance(events, CommandError) else "",
    }
    if release is None:
        return view
    backends = []
    for name, role, needed in (
        (release.stable, "stable", release.stored.get("replicas")),
        (release.candidate, "candidate", release.needed if release.stored else None),
    ):
        backends.append(
            {
                "name": name,
                "role": role,
                "ready": _ready_pods(store, key[1], name),
                "needed": needed,
                **{which: weights.get(name, {}).get(which) for which in ("desired", "applied", "observed")},
            }
        )
    # What the release says stands once, with the release.
    notes = [each for each in view["notes"] if f"{each['reason']}: {each['message']}" != release.why]
    return view | {
        "details": [],
        "notes": notes if release.stored else view["notes"],
        "release": {
            "summary": release.summary,
            "why": release.why,
            "remedy": remedies.of(release.reason)[1],
            "started": release.stored.get("started"),
            "ended_at": release.stored.get("ended"),
            "steps": rollout.steps(release, now=now),
            "candidate": release.candidate,
            "backends": backends,
            "buttons": _buttons(release, unready=backends[0]["ready"] == 0),
            "verdicts": [dict(each) for each in rollout.judged(release)],
            "samples": list(store.samples.get(key, ())),
            "allowed": allowed,
        },
    }


def _buttons(release: Release, *, unready: bool) -> list[tuple[str, str, str, str]]:
    """What a user may ask of a release: verb, name, what comes of it, and why nothing would."""
    plans: list[tuple[str, str, Callable[[Release], str]]] = [
        ("promote", promote.label(release), promote.goes_on),
        ("promote-full", "Promote to 100 %", promote.all_at_once),
        ("pause", "Pause", pause.stays),
        ("abort", f"Abort: back to {release.stable}", functools.partial(abort.goes_back, unready=unready)),
    ]
    made: list[tuple[str, str, str, str]] = []
    for verb, name, plan in plans:
        if verb == "promote-full" and name == made[0][1]:
            continue
        will, problem = "", "" if release.stored else "the release has not begun"
        try:
            will = plan(release) if not problem else ""
        except CommandError as error:
            problem = str(error)
        made.append((verb, name, will, problem))
    return made


def policy(store: Store, key: Key) -> View:
    """A BatchPolicy and who follows it; its caller holds `store.lock`.

    Args:
        store: all resources.
        key: which.
    """
    resource = store.resources[key]
    state = resource.get("status") or {}
    return {
        **_detailed("BatchPolicy", resource),
        "spec": sorted((name, _value(value)) for name, value in resource["spec"].items()),
        "backends": [dict(each) for each in state.get("backends") or ()],
        "workloads": [dict(each) for each in state.get("workloads") or ()],
    }


def workload(
    store: Store, key: Key, scraped: Callable[[Iterable[Target]], Pods], now: datetime
) -> View | None:
    """A workload with injected sidecars, None if there is none; as `backend`.

    Args:
        store: all resources.
        key: which.
        scraped: gives what is known of pods, which are scraped from now on.
        now: the time.
    """
    pods = injected.by_workload(list(store.of(INJECTED, key[1]))).get((key[1], key[2]))
    if pods is None:
        return None
    known = scraped(
        _targets([pod for pod in pods if injected.has_sidecar(pod)], contract.SIDECAR_ADMIN_PORT, _SIDECAR)
    )
    return {
        **_workload(store, key[1], key[2], pods),
        "pods": [_pod(pod, known.get(pod["metadata"]["name"])) for pod in pods],
        "batches": measures.batches(known.values(), now),
        "curve": measures.curve(known.values(), {}, {}),
        "policy": pods[0]["metadata"]["labels"][injected.LABEL],
    }


def _workload(store: Store, namespace: str, name: str, pods: Sequence[Resource]) -> View:
    _, ready, reason, detail = injected.row(name, pods)
    return {
        "kind": WORKLOAD,
        "namespace": namespace,
        "name": name,
        "created": min(str(pod["metadata"].get("creationTimestamp") or "") for pod in pods),
        "ready": ready,
        "reason": reason,
        "pill": ("wait", "Ready, not all injected") if (ready, reason) == ("True", "NotInjected") else None,
        "details": [detail],
        "notes": list(injected.notes(pods, (), _names(store, "BatchPolicy", namespace))),
    }


def _head(kind: str, resource: Resource) -> View:
    metadata = resource["metadata"]
    conditions = (resource.get("status") or {}).get("conditions") or ()
    ready: Resource = next((each for each in conditions if each["type"] == "Ready"), {})
    return {
        "kind": kind,
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "created": metadata.get("creationTimestamp", ""),
        "ready": ready.get("status", "-"),
        "reason": ready.get("reason", "-"),
        "pill": _pill(kind, resource, ready),
    }


def _detailed(kind: str, resource: Resource) -> View:
    state = resource.get("status") or {}
    found = causes.found({"kind": kind, **resource}, "", causes.Shown(), everything=False)
    return {
        **_head(kind, resource),
        "details": list(status.details(kind, resource)),
        "notes": _notes(found),
        "behind": state.get("observedGeneration") != resource["metadata"].get("generation"),
        "conditions": [
            {
                name: each.get(name, "")
                for name in ("type", "status", "reason", "message", "lastTransitionTime")
            }
            for each in state.get("conditions") or ()
        ],
    }


def _pod(pod: Resource, scraped: Scraped | None) -> View:
    metadata, spec, state = pod["metadata"], pod["spec"], pod.get("status") or {}
    conditions = {each["type"]: each for each in state.get("conditions") or ()}
    containers = [*(state.get("initContainerStatuses") or ()), *(state.get("containerStatuses") or ())]
    waits = [
        reason
        for each in containers
        if (reason := ((each.get("state") or {}).get("waiting") or {}).get("reason"))
    ]
    ready = conditions.get("Ready", {}).get("status") == "True"
    phase = "Terminating" if "deletionTimestamp" in metadata else str(state.get("phase", "Unknown"))
    view: View = {
        "name": metadata["name"],
        "created": metadata.get("creationTimestamp", ""),
        "node": spec.get("nodeName", ""),
        "ready": ready,
        "state": "Ready" if ready and phase == "Running" else next(iter(waits), phase),
        "restarts": sum(each.get("restartCount", 0) for each in containers),
        "problem": scraped.problem if scraped is not None else "",
    }
    if scraped is None or not scraped.values:
        return view
    latest = scraped.values[-1][1]
    batches = scraped.rate(f"{_SIDECAR}batch_items_count")
    items = scraped.rate(f"{_SIDECAR}batch_items_sum")
    return view | {
        "queued": total(latest, f"{_SIDECAR}queued_items", {}),
        "ongoing": total(latest, f"{_SIDECAR}ongoing_items", {}),
        "answers": scraped.rate(f"{_SIDECAR}requests_total"),
        "size": items / batches if batches and items is not None else None,
    }


def _shared_pod(namespace: str, name: str, scraped: Scraped) -> View:
    """A pod of a shared router, of which nothing is read but its metrics: only ready ones are known."""
    return {
        "name": f"{namespace}/{name}",
        "ready": True,
        "state": "Ready, shared by namespaces",
        "problem": scraped.problem,
    }


def _flow(
    store: Store, namespace: str, name: str, share: Mapping[str, Any], routers: Iterable[Scraped]
) -> View:
    return {
        "name": share["name"],
        "weight": share.get("weight", 1),
        "readyPods": _ready_pods(store, namespace, share["name"]),
        **_answers(list(routers), name, share["name"]),
    }


def _answers(routers: Iterable[Scraped], name: str, of: str) -> View:
    """What routers answered for an endpoint by one backend: rates a second, and bounds in milliseconds."""
    routers = list(routers)
    errors: dict[str, float] = defaultdict(float)
    rate, known, durations_of, held = 0.0, False, defaultdict[float, float](float), 0.0
    for scraped in routers:
        if scraped.values:
            held += total(scraped.values[-1][1], f"{_ROUTER}held_requests", {"backend": of})
        if (ends := scraped.ends()) is None:
            continue
        known = True
        (before, old), (now, new) = ends
        seconds = max(now - before, 1e-3)
        for labels, count in new.get(f"{_ROUTER}requests_total", {}).items():
            pairs = dict(labels)
            if (pairs.get("endpoint"), pairs.get("backend")) != (name, of):
                continue
            rise = max(count - old.get(f"{_ROUTER}requests_total", {}).get(labels, 0.0), 0.0) / seconds
            rate += rise
            if rise and (pairs["reason"] or int(pairs["code"]) >= 500):
                errors[pairs["reason"] or f"status {pairs['code']}"] += rise
        wanted = {"endpoint": name, "backend": of}
        for bound, rise in buckets(old, new, f"{_ROUTER}duration_seconds", wanted):
            durations_of[bound] += rise
    counts = sorted(durations_of.items())
    halves = {f"p{share}": quantile(share / 100, counts) for share in (50, 99)}
    return {
        "rate": rate if known else None,
        "errors": sorted(errors.items(), key=lambda pair: -pair[1]),
        "held": held,
        **{name: bounds and [_milliseconds(bound) for bound in bounds] for name, bounds in halves.items()},
    }


def _milliseconds(seconds: float) -> float | None:
    return None if seconds == math.inf else seconds * 1000


def _rate(pods: Iterable[Scraped], metric: str, **labels: str) -> float | None:
    rates = [rate for scraped in pods if (rate := scraped.rate(metric, **labels)) is not None]
    return sum(rates) if rates else None


def _ready_pods(store: Store, namespace: str, name: str) -> int | None:
    found = store.resources.get(("ModelBackend", namespace, name))
    return None if found is None else (found.get("status") or {}).get("readyReplicas") or 0


def _users(store: Store, key: Key) -> list[tuple[str, str]]:
    """The endpoints and splits that name a backend: pairs of kind and name."""
    _, namespace, name = key
    found = [
        ("ModelEndpoint", each["metadata"]["name"])
        for each in store.of("ModelEndpoint", namespace)
        if each["spec"].get("backend") == name
    ]
    for each in store.of("TrafficSplit", namespace):
        spec = each["spec"]
        named = {one["name"] for part in ("backends", "mirrors") for one in spec.get(part) or ()}
        strategy = spec.get("strategy") or {}
        if name in named | {strategy.get("stable"), strategy.get("candidate")}:
            found.append(("TrafficSplit", each["metadata"]["name"]))
    return sorted(found)


def _targets(pods: Iterable[Resource], port: int, prefix: str) -> Iterator[Target]:
    for pod in pods:
        metadata = pod["metadata"]
        if (pod.get("status") or {}).get("phase") == "Running" and "deletionTimestamp" not in metadata:
            yield Target(metadata["namespace"], metadata["name"], port, prefix)


def _of_app(pods: Iterable[Resource], app: str, more: Mapping[str, str]) -> list[Resource]:
    wanted = {contract.APP_LABEL: app, **more}
    return [pod for pod in pods if wanted.items() <= (pod["metadata"].get("labels") or {}).items()]


def _names(store: Store, kind: str, namespace: str) -> set[str]:
    return {each["metadata"]["name"] for each in store.of(kind, namespace)}


def _event(event: Resource) -> View:
    reason, message = event.get("reason", ""), event.get("message", "")
    if re.fullmatch(r"[A-Z]\w+ is (True|False|Unknown)", message):  # of a condition without a message
        message = remedies.of(reason)[0] or message
    return {
        "time": event_time(event),
        "type": event.get("type", ""),
        "reason": reason,
        "message": message,
        "known": reason in remedies.known(),
    }


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _place(resource: Resource) -> tuple[str, str]:
    return resource["metadata"]["namespace"], resource["metadata"]["name"]


def _age(resource: Resource) -> tuple[str, str]:
    return str(resource["metadata"].get("creationTimestamp", "")), resource["metadata"]["name"]
