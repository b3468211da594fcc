"""The ledger of an open-loop run: what became of each request, and when.

A request is one of: `ok` (2xx with its own item), `refused` (429, 503), `error` (another status),
`mismatched` (a 2xx with another's item, or an unreadable one), `lost` (the connection ended without an
answer), `timeout` (given up by us). `duplicated` counts answers to nothing that was asked on their
connection.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

LATE_MS = 1.0
LATE_SHARE = 0.05  # of the objective, where that is more
BUSY = 0.8


@dataclasses.dataclass(slots=True)
class Entry:
    """One request; times in seconds of `time.monotonic`.

    Args:
        number: the item it carries.
        intended: when it should be sent.
        sent: when the generator turned to it (late if after `intended`); 0 = not yet.
        ended: when it was answered or lost; 0 = not yet.
        outcome: see the module.
        detail: status and reason.
    """

    number: int
    intended: float
    sent: float = 0.0
    ended: float = 0.0
    outcome: str = ""
    detail: str = ""


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the ordered values lie; 0 of none."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


@dataclasses.dataclass(slots=True)
class Ledger:
    """All requests of a run.

    Args:
        objective_ms: an `ok` within it, from the intended time, is good.
        entries: the requests, in the order they were meant to be sent.
        duplicated: answers to nothing.
        cpu_share: how busy the generator was, of one core.
    """

    objective_ms: float
    entries: list[Entry] = dataclasses.field(default_factory=list)
    duplicated: int = 0
    cpu_share: float = 0.0

    def void(self) -> list[str]:
        """Why this run says nothing; empty = it counts."""
        late = sorted((entry.sent - entry.intended) * 1000 for entry in self.entries if entry.sent)
        problems = []
        if not late:
            problems.append("nothing was sent")
        most = max(LATE_MS, LATE_SHARE * self.objective_ms)
        if (p99 := quantile(late, 0.99)) > most:
            problems.append(f"sends were late: p99 {p99:.2f} ms, at most {most:g} ms")
        if self.cpu_share > BUSY:
            problems.append(f"the generator was {self.cpu_share:.0%} busy, at most {BUSY:.0%}")
        return problems

    def faults(self) -> list[str]:
        """Faults that count under any load: answers of another request, and second answers."""
        count = sum(entry.outcome == "mismatched" for entry in self.entries)
        problems = [f"{count} answers were another request's"] if count else []
        if self.duplicated:
            problems.append(f"{self.duplicated} answers to nothing that was asked")
        return problems

    def summary(self, seconds: float) -> dict[str, Any]:
        """The figures; latencies from the intended send time.

        Args:
            seconds: how long requests were sent.
        """
        outcomes = collections.Counter(entry.outcome or "unanswered" for entry in self.entries)
        details = collections.Counter(f"{e.outcome} {e.detail}" for e in self.entries if e.outcome != "ok")
        ok = self._latencies("ok")
        refused = self._latencies("refused")
        late = sorted((entry.sent - entry.intended) * 1000 for entry in self.entries)
        good = sum(latency <= self.objective_ms for latency in ok)
        return {
            "requests": len(self.entries),
            "seconds": seconds,
            "offered_per_s": len(self.entries) / seconds,
            "goodput_per_s": good / seconds,
            "outcomes": dict(outcomes),
            "details": dict(details.most_common(20)),
            "duplicated": self.duplicated,
            **_quantiles("latency", ok),
            **_quantiles("refusal", refused),
            "refused_within_5ms": sum(latency <= 5 for latency in refused) / len(refused)
            if refused
            else None,
            "lateness_p99_ms": quantile(late, 0.99),
            "cpu_share": self.cpu_share,
            "void": self.void(),
            "faults": self.faults(),
        }

    def _latencies(self, outcome: str) -> list[float]:
        return sorted((e.ended - e.intended) * 1000 for e in self.entries if e.outcome == outcome)


def _quantiles(name: str, ordered: Sequence[float]) -> dict[str, float]:
    shares: Iterable[tuple[str, float]] = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    return {f"{name}_{word}_ms": quantile(ordered, share) for word, share in shares}
