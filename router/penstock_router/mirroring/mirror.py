"""One mirror of one endpoint: which requests it draws, and the fields of their copies."""

from __future__ import annotations

import random

from penstock_router.choice.load_balancing import WeightedSelector
from penstock_router.choice.match_rules import MatchRules
from penstock_router.messages.arrived_head import MAX_HEAD_SIZE
from penstock_router.mirroring.compare import Rules
from penstock_router.mirroring.large_answers import LargeAnswers
from penstock_router.mirroring.totals import MirrorSeries
from penstock_wire.control.router_settings import Mirror
from penstock_wire.control.traffic_rules import MAX_MIRROR_REGEX_SIZE
from penstock_wire.headers import MIRROR, STICKY, Headers, without
from penstock_wire.http.server import head as heads

MAX_HEADS = 256
"""The most request heads that are cached with the fields of their copies, or with the mirrors they match."""
_COPIED, _NOT_COPIED = "copied", "not copied"


class EndpointMirror:
    """One mirror of one endpoint.

    Args:
        random_source: for its draw.
    """

    __slots__ = (
        "_heads",
        "_selector",
        "_settings",
        "full_until",
        "in_flight",
        "large_answers",
        "match",
        "name",
        "next_probe",
        "rules",
        "series",
    )

    def __init__(self, settings: Mirror, series: MirrorSeries, random_source: random.Random) -> None:
        self.name = settings.name
        self.series = series
        self.in_flight = 0
        """Copies that are drawn and not over."""
        self.full_until = 0.0
        """No copy is sent before this time, because a pod had no room (seconds of the router's clock)."""
        self.large_answers = LargeAnswers()
        self.next_probe = 0.0
        """When an unreachable pod may be tried again (likewise)."""
        self._selector = WeightedSelector(random_source)
        self._take(settings)

    def update(self, settings: Mirror) -> None:
        """Take new settings."""
        if settings == self._settings:
            return
        if settings.compare != self._settings.compare:
            self.series.compare_anew()
        self._take(settings)

    def _take(self, settings: Mirror) -> None:
        self._settings = settings
        self._selector.set_weights({_COPIED: settings.percent, _NOT_COPIED: 100 - settings.percent})
        compare = settings.compare
        self.rules = (
            None
            if compare is None
            else Rules(compare.ignore, compare.tolerance, show_values=compare.show_values)
        )
        """The rules for comparing answers; None if they are not compared."""
        ruled = [(settings.name, settings.match)]
        self.match = MatchRules(ruled, "mirror", MAX_MIRROR_REGEX_SIZE) if settings.match else None
        """The rules, one of which a request must match; None if all requests may be copied."""
        dropped = tuple([name.lower().encode() for name in settings.drop_headers])
        self._heads = _Heads(settings.priority_header.encode(), settings.priority_level, dropped)

    def takes(self, headers: Headers) -> bool:
        """Whether requests with these fields can be drawn."""
        return self.match is None or bool(self.match.find(headers))

    def drop(self, kind: str, cause: str) -> bool:
        """Count a request that was drawn and not copied; always false.

        Args:
            cause: the same in words, for the first of the kind.
        """
        if self.series.drop(kind):
            self.series.explain(kind, cause)
        return False

    def draws(self) -> bool:
        """Whether the next request is to be copied."""
        return self._selector.next() == _COPIED

    def fields(self, shared: Headers) -> Headers:
        """The fields of a copy, except those that differ for each copy.

        Args:
            shared: the fields of the request; see `ProxiedRequest`.
        """
        return self._heads.of(shared)


class _Heads:
    """Fields of copies, cached by those of their requests, so that copies share heads as requests do."""

    __slots__ = ("_dropped", "_known", "_level", "_priority")

    def __init__(self, priority: bytes, level: int, dropped: tuple[bytes, ...]) -> None:
        self._dropped = (STICKY, *dropped)
        self._priority = priority
        self._level = (priority, b"%d" % level)
        self._known: dict[int, tuple[Headers, Headers]] = {}

    def of(self, shared: Headers) -> Headers:
        known = self._known.get(id(shared))
        if known is not None and known[0] is shared:
            return known[1]
        # NB: a copy that a pod hands back would end there, and count as an error of the mirror's.
        made: Headers = (*without(shared, self._dropped), (MIRROR, b"true"), (STICKY, b"1"))
        if self._priority:
            made = (*without(made, (self._priority,)), self._level)
        if heads.size("", shared) <= MAX_HEAD_SIZE:
            if len(self._known) >= MAX_HEADS:
                self._known.clear()
            self._known[id(shared)] = (shared, made)
        return made
