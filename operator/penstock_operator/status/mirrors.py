"""The results of copies for mirrors, from the routers' counters, and in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from penstock_operator.api.trafficsplit import MirrorState, SplitMirror
from penstock_wire.control.report import Difference, MirrorTotals, RouterReport
from penstock_wire.words import cut


def states(
    endpoint: str,
    mirrors: Sequence[SplitMirror],
    reports: Iterable[RouterReport],
    backends: Mapping[str, bool],
) -> tuple[MirrorState, ...]:
    """The state of each mirror of an endpoint.

    Args:
        backends: the backends that exist, and whether each has a ready pod.
    """
    known = list(reports)
    return tuple(_state(mirror, _totals(endpoint, mirror.name, known), backends) for mirror in mirrors)


def line(states: Iterable[MirrorState]) -> str | None:
    """Format all mirrors in one line; None for none."""
    return cut("; ".join(f"{state.name}: {state.summary}" for state in states), 4096) or None


def most(endpoint: str, name: str, reports: Iterable[RouterReport]) -> str | None:
    """The most frequent difference in the answers to a mirror's copies, in words; None if there is none."""
    first = _first(_totals(endpoint, name, reports))
    return None if first is None else _where(first)


def obstacles(endpoint: str, name: str, reports: Iterable[RouterReport]) -> str:
    """The reasons why requests were not copied for a mirror, or copies not answered or compared; or ""."""
    return "; ".join(_obstacles(_totals(endpoint, name, reports)))


def _totals(endpoint: str, name: str, reports: Iterable[RouterReport]) -> list[MirrorTotals]:
    return [
        report.endpoints[endpoint].mirrors[name]
        for report in reports
        if endpoint in report.endpoints and name in report.endpoints[endpoint].mirrors
    ]


def _first(totals: Sequence[MirrorTotals]) -> Difference | None:
    return max(
        (difference for total in totals for difference in total.first),
        key=lambda difference: difference.count,
        default=None,
    )


def _state(mirror: SplitMirror, totals: Sequence[MirrorTotals], backends: Mapping[str, bool]) -> MirrorState:
    sent = sum(total.sent for total in totals)
    dropped = sum(sum(total.dropped.values()) for total in totals)
    compared = sum(total.compared for total in totals)
    differing = sum(sum(total.differing.values()) for total in totals)
    first = _first(totals)
    answered = sum(total.answered for total in totals)
    parts = []
    if mirror.name not in backends:
        parts.append(f"no such ModelBackend: {mirror.name}")
    parts.append(f"{sent} sent")
    percent = None
    if compared:
        percent = _two_digits(100 * differing / compared)
        parts.append(
            f"{percent} % of {compared} differ"
            + (f", most at {_where(first)}" if first is not None and differing else "")
        )
    if answered:
        took = sum(total.seconds for total in totals) / answered
        served = sum(total.served_seconds for total in totals) / answered
        parts.append(f"{_time(took)} against the served answers' {_time(served)}")
    parts += _obstacles(totals)  # NB: last, as they are long and a status has a bound
    return MirrorState(
        name=mirror.name,
        sent=sent,
        dropped=dropped,
        mismatched_percent=percent,
        first_difference=None if first is None else _where(first)[:512],
        summary=cut("; ".join(parts), 1024),
    )


def _where(first: Difference) -> str:
    types = f"{first.expected or 'nothing'} → {first.found or 'nothing'}"
    return f"{first.path} ({first.kind}: {types})"


def _obstacles(totals: Sequence[MirrorTotals]) -> list[str]:
    """Counts of copies that were not sent, answered or compared, by reason, with the first cause."""
    causes = {reason: cause for total in reversed(totals) for reason, cause in total.causes.items()}
    return [
        f"{sum(counts.values())} {words}: {_by_reason(counts, causes)}"
        for counts, words in (
            (_sum(total.dropped for total in totals), "not copied"),
            (_sum(total.unanswered for total in totals), "not answered by its model"),
            (_sum(total.skipped for total in totals), "not compared"),
        )
        if counts
    ]


def _sum(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    return sum((Counter(each) for each in counts), Counter())


def _by_reason(counts: Counter[str], causes: Mapping[str, str]) -> str:
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    shown = {reason: f" ({cause})" for reason, cause in causes.items()}
    return ", ".join(f"{count} {reason}{shown.get(reason, '')}" for reason, count in ordered)


def _time(seconds: float) -> str:
    return f"{_two_digits(max(seconds, 0.0) * 1000)} ms" if seconds < 0.1 else f"{_two_digits(seconds)} s"


def _two_digits(value: float) -> str:
    """Format a number with two significant digits, and without an exponent."""
    return f"{float(f'{value:.2g}'):f}".rstrip("0").rstrip(".")
