"""Counts the outcomes of the copies for a mirror in plain numbers, for the metrics and the report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import metrics_core as core

from penstock_router.mirroring.compare import FirstDifference
from penstock_router.series import Series
from penstock_wire.control.report import MAX_CAUSE, MAX_DIFFERENCES, Difference, MirrorTotals
from penstock_wire.process import NOWHERE, log
from penstock_wire.words import cut

EQUAL = "equal"


class CountedDifference:
    """A difference, and the number of times that it was found."""

    __slots__ = ("count", "difference")

    def __init__(self, difference: FirstDifference) -> None:
        self.difference = difference
        self.count = 1


class MirrorSeries:
    """The outcomes of one endpoint's copies for one mirror, since the router started.

    Args:
        where: fields of each log line.
    """

    __slots__ = (
        "_first",
        "_where",
        "answered",
        "causes",
        "compared",
        "copies",
        "differing",
        "dropped",
        "seconds",
        "sent",
        "served",
        "skipped",
        "unanswered",
    )

    def __init__(self, endpoint: str, mirror: str, where: Mapping[str, str] = NOWHERE) -> None:
        self._where = where
        self.copies = Series(endpoint, mirror)
        """The mirror's answers, and their durations."""
        self.served = Series(endpoint, mirror)
        """Durations of the served answers, for requests whose copies the mirror's model answered."""
        self.sent = 0
        self.dropped: dict[str, int] = {}
        """Requests that were drawn and not copied, by reason."""
        self.unanswered: dict[str, int] = {}
        """Copies that were sent and not answered by the mirror's model, by reason."""
        self.causes: dict[str, str] = {}
        """The cause of the first dropped or unanswered copy of each reason, in words."""
        self.answered = 0
        """Copies that the mirror's model answered."""
        self.seconds = 0.0
        """The sum of their durations."""
        self.compared = 0
        self.differing: dict[str, int] = {}
        """Compared pairs that differ, by kind."""
        self.skipped: dict[str, int] = {}
        """Pairs of answers that were not compared, by reason."""
        self._first: dict[tuple[str, str], CountedDifference] = {}

    def drop(self, reason: str) -> bool:
        """Count a request that was drawn and not copied; returns whether it is the first for this reason."""
        before = self.dropped.get(reason, 0)
        self.dropped[reason] = before + 1
        return before == 0

    def fail(self, reason: str) -> bool:
        """Count a copy that the mirror's model did not answer; returns the same as `drop`."""
        before = self.unanswered.get(reason, 0)
        self.unanswered[reason] = before + 1
        return before == 0

    def explain(self, reason: str, cause: str, *, sent: bool = False) -> None:
        """Keep and log the cause of the first request that was not copied, or not answered, for a reason.

        Args:
            cause: the cause, in words.
            sent: whether a copy was sent.
        """
        self.causes[reason] = cut(cause, MAX_CAUSE)
        log(
            "copies are not answered" if sent else "requests are not copied",
            level="warning",
            endpoint=self.copies.endpoint,
            mirror=self.copies.backend,
            reason=reason,
            first=cause,
            **self._where,
        )

    def skip(self, reason: str) -> None:
        """Count two answers that were not compared."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def answer(self, seconds: float, served_seconds: float) -> None:
        """Count a copy that the mirror's model answered.

        Args:
            seconds: the copy's duration.
        """
        self.answered += 1
        self.seconds += seconds
        self.served.answered(0, "", served_seconds)

    def compare(self, difference: FirstDifference | None) -> None:
        """Count two answers that were compared.

        Args:
            difference: their first difference; None if there is none.
        """
        self.compared += 1
        if difference is None:
            return
        self.differing[difference.kind] = self.differing.get(difference.kind, 0) + 1
        key = (difference.kind, difference.general)
        known = self._first.get(key)
        if known is not None:
            known.count += 1
        elif len(self._first) < MAX_DIFFERENCES:
            self._first[key] = CountedDifference(difference)

    def compare_anew(self) -> None:
        """Reset what was compared, since the rules of comparison have changed."""
        self.compared = 0
        self.differing.clear()
        self.skipped.clear()
        self._first.clear()

    def totals(self) -> MirrorTotals:
        return MirrorTotals(
            sent=self.sent,
            dropped=dict(self.dropped),
            codes=self.copies.totals(0).codes,
            unanswered=dict(self.unanswered),
            causes=dict(self.causes),
            compared=self.compared,
            differing=dict(self.differing),
            skipped=dict(self.skipped),
            answered=self.answered,
            seconds=self.seconds,
            served_seconds=self.served.seconds,
            first=tuple(
                Difference(
                    path=counted.difference.path,
                    kind=counted.difference.kind,
                    expected=counted.difference.expected,
                    found=counted.difference.actual,
                    count=counted.count,
                )
                for counted in self._first.values()
            ),
        )


class MirrorFamilies:
    """The families of the metrics of all mirrors.

    Args:
        names: names of the labels that precede each metric's own.
    """

    def __init__(self, names: list[str]) -> None:
        of = [*names, "endpoint", "mirror"]
        self._requests = core.CounterMetricFamily(
            "penstock_router_mirror_requests",
            "Copies that were sent to a mirror and are over; code 0: no answer came.",
            labels=[*of, "code", "reason"],
        )
        self._dropped = core.CounterMetricFamily(
            "penstock_router_mirror_dropped",
            "Requests that were drawn for a mirror and not copied.",
            labels=[*of, "reason"],
        )
        self._seconds = core.HistogramMetricFamily(
            "penstock_router_mirror_duration_seconds", "From the sending of a copy to its answer.", labels=of
        )
        self._served = core.HistogramMetricFamily(
            "penstock_router_mirror_served_duration_seconds",
            "How long the served answers took to the requests whose copies the mirror's model answered.",
            labels=of,
        )
        self._compared = core.CounterMetricFamily(
            "penstock_router_mirror_compared",
            "Pairs of answers by what their comparison has come to: equal, or how they differ.",
            labels=[*of, "result"],
        )
        self._skipped = core.CounterMetricFamily(
            "penstock_router_mirror_compare_skipped",
            "Pairs of answers that were not compared.",
            labels=[*of, "reason"],
        )

    def add(self, mirrors: Iterable[MirrorSeries], preceding: list[str]) -> None:
        """Add the metrics of some mirrors.

        Args:
            preceding: values of the labels that precede each metric's own.
        """
        for series in mirrors:
            labels = [*preceding, series.copies.endpoint, series.copies.backend]
            for (status, reason), count in series.copies.answers.items():
                self._requests.add_metric([*labels, str(status), reason], count)
            for reason, count in list(series.dropped.items()):
                self._dropped.add_metric([*labels, reason], count)
            for family, durations in ((self._seconds, series.copies), (self._served, series.served)):
                family.add_metric(labels, durations.cumulative(), durations.seconds)
            differing = list(series.differing.items())
            equal = series.compared - sum(count for _, count in differing)
            self._compared.add_metric([*labels, EQUAL], equal)
            for kind, count in differing:
                self._compared.add_metric([*labels, kind], count)
            for reason, count in list(series.skipped.items()):
                self._skipped.add_metric([*labels, reason], count)

    def __iter__(self) -> Iterator[Any]:
        yield from (self._requests, self._dropped, self._seconds)
        yield from (self._served, self._compared, self._skipped)
