"""What copies for mirrors have come to, from the routers' counters, and in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penstock_operator.api.trafficsplit import MirrorState, SplitMirror
from penstock_wire.control.report import Difference, MirrorTotals, RouterReport


def states(
    endpoint: str,
    mirrors: Sequence[SplitMirror],
    reports: Iterable[RouterReport],
    backends: Mapping[str, bool],
) -> tuple[MirrorState, ...]:
    """The state of each mirror of an endpoint.

    Args:
        endpoint: its name.
        mirrors: those that are asked for.
        reports: of the routers that serve it.
        backends: the backends that exist, and whether each has a ready pod.
    """
    ends = [report.endpoints[endpoint] for report in reports if endpoint in report.endpoints]
    return tuple(
        _state(mirror, [end.mirrors[mirror.name] for end in ends if mirror.name in end.mirrors], backends)
        for mirror in mirrors
    )


def line(states: Iterable[MirrorState]) -> str | None:
    """All mirrors in one line; None for none.

    Args:
        states: their states.
    """
    return ("; ".join(f"{state.name}: {state.summary}" for state in states) or "")[:4096] or None


def most(endpoint: str, name: str, reports: Iterable[RouterReport]) -> str | None:
    """Where most answers to the copies for a mirror differ, in words; None where none is known to.

    Args:
        endpoint: whose requests are copied.
        name: the mirror's.
        reports: of the routers that serve the endpoint.
    """
    first = _first(
        [
            report.endpoints[endpoint].mirrors[name]
            for report in reports
            if endpoint in report.endpoints and name in report.endpoints[endpoint].mirrors
        ]
    )
    return None if first is None else _where(first)


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
    parts.append(f"{sent} sent" + (f", {dropped} not copied ({_reasons(totals)})" if dropped else ""))
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
        parts.append(f"{_time(took)} against {_time(served)}")
    return MirrorState(
        name=mirror.name,
        sent=sent,
        dropped=dropped,
        mismatched_percent=percent,
        first_difference=None if first is None else _where(first)[:512],
        summary="; ".join(parts)[:1024],
    )


def _where(first: Difference) -> str:
    types = f"{first.expected or 'nothing'} → {first.found or 'nothing'}"
    return f"{first.path} ({first.kind}: {types})"


def _reasons(totals: Sequence[MirrorTotals]) -> str:
    return ", ".join(sorted({reason for total in totals for reason in total.dropped}))


def _time(seconds: float) -> str:
    return f"{_two_digits(max(seconds, 0.0) * 1000)} ms" if seconds < 0.1 else f"{_two_digits(seconds)} s"


def _two_digits(value: float) -> str:
    """A number with two significant digits, and without an exponent."""
    return f"{float(f'{value:.2g}'):f}".rstrip("0").rstrip(".")
