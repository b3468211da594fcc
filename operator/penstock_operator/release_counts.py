"""The routers' counts of two backends that a release compares: differences since they were last taken."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from penstock_operator.releases.state import Counts, Interval
from penstock_wire.control.report import (
    FIRST_BYTE_BUCKETS,
    BackendTotals,
    EndpointReport,
    MirrorTotals,
    RouterReport,
)

SPAN = 30.0
"""Seconds for which a request counts as recently answered."""
SLOT = 5.0
PART = 0.5
"""Least seconds of a part of an interval: the bad requests of one batch are mostly in one part."""
MOST_PARTS = 64
"""Most parts of an interval; when it has this many, each two become one."""
GAP = 30.0
"""Seconds of a router's silence beyond which the time of its requests is unknown."""

Numbers = dict[str, int]
"""Counters by name."""


@dataclass(slots=True)
class _Router:
    """The counters of one router as of its last report.

    Args:
        since: time from which all its answers to the endpoint are known.
    """

    seq: int
    at: float
    since: float
    backends: dict[str, Numbers]
    copies: Numbers


@dataclass(slots=True)
class _Followed:
    """One endpoint whose counters are followed.

    Args:
        slots: recently answered requests, by backend, with the time of the latest.
    """

    stable: str
    candidate: str
    routers: dict[str, _Router] = field(default_factory=dict)
    parts: list[_Part] = field(default_factory=list)
    part: float = PART
    slots: deque[_Slot] = field(default_factory=deque)


@dataclass(slots=True)
class _Part:
    """Counts of a short span."""

    begun: float
    gains: dict[str, Counter[str]] = field(default_factory=dict)
    copies: Counter[str] = field(default_factory=Counter)

    def add(self, gains: Mapping[str, Counter[str]], copies: Counter[str]) -> None:
        """Add counts."""
        for name, gain in gains.items():
            self.gains.setdefault(name, Counter()).update(+gain)  # most buckets have none
        self.copies.update(copies)


@dataclass(slots=True)
class _Slot:
    """Requests answered within a few seconds."""

    begun: float
    latest: float
    answered: Counter[str]


class ReleaseCounts:
    """The counters of releases, for endpoints that are followed.

    A router's first report counts nothing, since the time of its requests is unknown; nor do requests of a
    silence longer than `GAP`. A counter that is lower than before, or in a report with a lower number, has
    restarted from 0.
    """

    def __init__(self) -> None:
        self._followed: dict[str, dict[str, _Followed]] = {}  # by namespace and endpoint

    def follow(self, namespace: str, endpoint: str, stable: str, candidate: str) -> None:
        """Count the answers of two backends of an endpoint from now on; a count under way continues."""
        here = self._followed.setdefault(namespace, {})
        known = here.get(endpoint)
        if known is None or (known.stable, known.candidate) != (stable, candidate):
            here[endpoint] = _Followed(stable, candidate)

    def unfollow(self, namespace: str, endpoint: str) -> None:
        """Stop counting the answers of an endpoint's backends."""
        here = self._followed.get(namespace, {})
        here.pop(endpoint, None)
        if not here:
            self._followed.pop(namespace, None)

    def follows(self, namespace: str) -> bool:
        """Whether an endpoint of a namespace is followed."""
        return namespace in self._followed

    def record(self, namespace: str, report: RouterReport, now: float) -> None:
        """Take a router's counters."""
        for name, followed in self._followed.get(namespace, {}).items():
            _record(followed, report, report.endpoints.get(name, EndpointReport()), now)

    def forget(self, namespace: str, uid: str) -> None:
        """Drop the counters of a router's pod that is gone; its counts so far stay."""
        for followed in self._followed.get(namespace, {}).values():
            followed.routers.pop(uid, None)

    def take(self, namespace: str, endpoint: str) -> Interval:
        """Return the counts since the last call; all are 0 for an endpoint that is not followed."""
        followed = self._followed.get(namespace, {}).get(endpoint)
        if followed is None:
            return Interval(stable=Counts(), candidate=Counts())
        parts, followed.parts, followed.part = followed.parts, [], PART
        whole = _Part(0.0)
        for part in parts:
            whole.add(part.gains, part.copies)
        stable, candidate = _of(followed, whole)
        return Interval(
            stable=stable, candidate=candidate, parts=tuple(_of(followed, part) for part in parts)
        )

    def answered(
        self,
        namespace: str,
        endpoint: str,
        backend: str,
        now: float,
        *,
        silent: AbstractSet[str] = frozenset(),
    ) -> int | None:
        """Requests of an endpoint that one of its two backends answered within the last `SPAN` seconds.

        Requests by rules and requests with a key count too, and those that routers hold for it now.

        Returns:
            None if a count of 0 is uncertain: a router is silent, or is known for less than `SPAN` and had
            answered requests before, or there is no router.
        """
        followed = self._followed.get(namespace, {}).get(endpoint)
        if followed is None:
            return None
        while followed.slots and now - followed.slots[0].latest >= SPAN:
            followed.slots.popleft()
        count = sum(slot.answered[backend] for slot in followed.slots)
        count += sum(router.backends.get(backend, {}).get("held", 0) for router in followed.routers.values())
        known = bool(followed.routers) and all(
            uid not in silent and now - router.since >= SPAN for uid, router in followed.routers.items()
        )
        return count if count or known else None


def _record(followed: _Followed, report: RouterReport, endpoint: EndpointReport, now: float) -> None:
    before = followed.routers.get(report.uid)
    known = before if before is not None and report.seq >= before.seq else None
    backends = {name: _numbers(endpoint, name, known) for name in (followed.stable, followed.candidate)}
    copies = _copies(endpoint, followed.candidate, known)
    untouched = not any(numbers["requests"] for numbers in backends.values())
    if before is None or now - before.at > GAP:
        since = float("-inf") if before is None and untouched else now
        followed.routers[report.uid] = _Router(report.seq, now, since, backends, copies)
        return
    anew = report.seq < before.seq
    followed.routers[report.uid] = _Router(report.seq, now, before.since, backends, copies)
    gains = {
        name: _gain(numbers, {} if anew else before.backends.get(name, {}))
        for name, numbers in backends.items()
    }
    _part(followed, now).add(gains, _gain(copies, {} if anew else before.copies))
    answered = Counter({name: gain["requests"] for name, gain in gains.items()})
    if any(answered.values()):
        if not followed.slots or now - followed.slots[-1].begun >= SLOT:
            followed.slots.append(_Slot(now, now, Counter()))
        followed.slots[-1].latest = now
        followed.slots[-1].answered.update(answered)
    while followed.slots and now - followed.slots[0].latest >= SPAN:
        followed.slots.popleft()


def _part(followed: _Followed, now: float) -> _Part:
    """Return the current part of an interval."""
    parts = followed.parts
    if parts and now - parts[-1].begun < followed.part:
        return parts[-1]
    if len(parts) == MOST_PARTS:
        for first, other in zip(parts[::2], parts[1::2], strict=True):
            first.add(other.gains, other.copies)
        del parts[1::2]
        followed.part *= 2.0
    parts.append(_Part(now))
    return parts[-1]


def _of(followed: _Followed, part: _Part) -> tuple[Counts, Counts]:
    """Return the counts of the stable and of the candidate."""
    return (
        _counts(part.gains.get(followed.stable, Counter()), Counter()),
        _counts(part.gains.get(followed.candidate, Counter()), part.copies),
    )


def _numbers(endpoint: EndpointReport, name: str, known: _Router | None) -> Numbers:
    """Return the counters of a backend, without buckets if they are of another version.

    A backend that gets no more requests is not in the report; its counters continue when it is back.
    """
    if name not in endpoint.backends and known is not None:
        return {**known.backends.get(name, {}), "held": 0}
    totals = endpoint.backends.get(name, BackendTotals())
    seconds = totals.seconds if len(totals.seconds) == FIRST_BYTE_BUCKETS else ()
    return {
        "requests": totals.requests,
        "held": totals.held,
        "errors": totals.errors,
        "refused": sum(totals.refused.values()),
        **{f"{place}": count for place, count in enumerate(seconds)},
    }


def _copies(endpoint: EndpointReport, name: str, known: _Router | None) -> Numbers:
    if name not in endpoint.mirrors and known is not None:
        return known.copies
    totals = endpoint.mirrors.get(name, MirrorTotals())
    return {"compared": totals.compared, "differing": sum(totals.differing.values())}


def _gain(numbers: Numbers, before: Numbers) -> Counter[str]:
    """Return the increase of each counter; its whole value if any counter is lower than before."""
    counters = {name: count for name, count in numbers.items() if name != "held"}
    anew = any(count < before.get(name, 0) for name, count in counters.items())
    return Counter({name: count - (0 if anew else before.get(name, 0)) for name, count in counters.items()})


def _counts(gain: Counter[str], copies: Counter[str]) -> Counts:
    seconds = tuple(gain[f"{place}"] for place in range(FIRST_BYTE_BUCKETS))
    return Counts(
        requests=sum(seconds),
        errors=gain["errors"],
        refused=gain["refused"],
        seconds=seconds,
        compared=copies["compared"],
        differing=copies["differing"],
    )
