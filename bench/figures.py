"""Measured figures: samples under a key, with their unit; void rounds, and servers that failed.

A key is `part/subject/case/quantity`, as `throughput/sidecar/256/rate`.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(slots=True)
class Figures:
    """Everything of a run.

    Args:
        samples: by key, one value a round.
        units: by key.
        voids: rounds that do not count, with the reason.
        failures: servers that did not install, start or bear the load, with the reason.
    """

    samples: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    units: dict[str, str] = dataclasses.field(default_factory=dict)
    voids: list[dict[str, str]] = dataclasses.field(default_factory=list)
    failures: dict[str, str] = dataclasses.field(default_factory=dict)

    def add(self, key: str, value: float, unit: str) -> None:
        """Add one sample."""
        assert self.units.setdefault(key, unit) == unit, f"{key} is in {self.units[key]}, not in {unit}"
        self.samples.setdefault(key, []).append(float(value))

    def void(self, key: str, reason: str) -> None:
        """Note that a round does not count."""
        self.voids.append({"what": key, "reason": reason})

    def document(self) -> dict[str, dict[str, Any]]:
        """All figures, in the order of their keys."""
        return {key: self._figure(key) for key in sorted(self.samples)}

    def _figure(self, key: str) -> dict[str, Any]:
        values = self.samples[key]
        return {
            "unit": self.units[key],
            "n": len(values),
            "median": round(statistics.median(values), 4),
            "min": round(min(values), 4),
            "max": round(max(values), 4),
            "samples": [round(value, 4) for value in values],
        }


def median(document: Mapping[str, Any], key: str) -> float | None:
    """A figure's median out of a results document; None where it was not measured."""
    values = document["figures"].get(key)
    return None if values is None else float(values["median"])
