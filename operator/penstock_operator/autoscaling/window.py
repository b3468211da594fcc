"""What the pods of one backend reported lately."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock_operator.api.modelbackend import LoadStatus
from penstock_wire.report import SidecarReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One report, as far as scaling and status need it.

    Args:
        at: when it came, in seconds.
        load: items queued and ongoing.
        arrived: items that arrived since the previous report.
        batches: batches sent since the previous report.
        batch_items: items in those.
    """

    at: float
    load: int
    arrived: int = 0
    batches: int = 0
    batch_items: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLoad:
    """What is known of one pod.

    Args:
        name: its name.
        ready: whether it is ready now.
        was_ready: whether it has ever been ready: one that never was is coming capacity without a load.
        samples: its samples, oldest first.
    """

    name: str
    ready: bool
    was_ready: bool
    samples: tuple[Sample, ...] = ()


class LoadWindow:
    """The reports of one backend's pods over a stretch of time; the shell owns and feeds it.

    Args:
        keep: seconds of samples to keep; at least the stable window, at least 60.
    """

    def __init__(self, keep: float) -> None:
        raise NotImplementedError

    @property
    def keep(self) -> float:
        """Seconds of samples that are kept; may be set when the stable window changes."""
        raise NotImplementedError

    @keep.setter
    def keep(self, seconds: float) -> None:
        raise NotImplementedError

    def record(self, report: SidecarReport, at: float) -> None:
        """Take a report.

        A pod of the same name and another uid starts afresh; where totals fell, the sidecar has restarted.

        Args:
            report: the report.
            at: when it came, in seconds.
        """
        raise NotImplementedError

    def view(self, pods: Mapping[str, bool], now: float) -> tuple[PodLoad, ...]:
        """What is known of the pods, for `recommend`; forgets what is older than `keep`.

        Args:
            pods: the pods that are there (not being deleted) by name, and whether each is ready.
            now: the time in seconds.

        Returns:
            The pods that are there; and those that left, as long as their samples lie in the window.
        """
        raise NotImplementedError

    def latest(self) -> Mapping[str, tuple[float, SidecarReport]]:
        """The last report of each pod, and when it came, in seconds."""
        raise NotImplementedError

    def load(self, now: float, max_batch_size: int) -> LoadStatus:
        """The load for `status.load`: now, with arrivals and fill over the last minute.

        Args:
            now: the time in seconds.
            max_batch_size: what a full batch holds.
        """
        raise NotImplementedError
