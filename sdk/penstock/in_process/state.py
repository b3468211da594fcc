"""What the batches in this process do: a state for debugging, and metrics for Prometheus.

Batchers count in plain numbers. If the process has imported prometheus_client before a function's first call,
its registry gets a collector that formats them at a scrape.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_PREFIX = "penstock_batch_"
_SIZES = 13  # up to 4096 items


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunningBatch:
    """A batch that is with the function.

    Args:
        items: its items.
        seconds: its age.
        runs_in: its task; for a `Batcher` the number of its thread.
    """

    items: int
    seconds: float
    runs_in: asyncio.Task[None] | int | None

    def stack(self) -> str:
        """Where it is, as in a traceback."""
        if isinstance(self.runs_in, int):
            return "".join(traceback.format_stack(sys._current_frames().get(self.runs_in)))  # noqa: SLF001 - documented
        frames: list[tuple[Any, int]] = []
        coroutine: Any = None if self.runs_in is None else self.runs_in.get_coro()
        while coroutine is not None:  # NB: `Task.print_stack` shows the outermost of those that wait
            kinds = [
                kind for kind in ("cr", "ag", "gi") if getattr(coroutine, f"{kind}_frame", None) is not None
            ]
            if not kinds:
                break
            frame = getattr(coroutine, f"{kinds[0]}_frame")
            frames.append((frame, frame.f_lineno))
            waits = "gi_yieldfrom" if kinds[0] == "gi" else f"{kinds[0]}_await"
            coroutine = getattr(coroutine, waits)
        return "".join(traceback.StackSummary.extract(frames).format())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchState:
    """What a batched function does now.

    Args:
        waiting: calls that wait for a batch.
        seconds: how long the first of them has waited; 0 for none.
        batches: the batches under way.
    """

    waiting: int = 0
    seconds: float = 0.0
    batches: tuple[RunningBatch, ...] = ()

    def __add__(self, other: BatchState) -> BatchState:
        """The state of two queues together."""
        return BatchState(
            waiting=self.waiting + other.waiting,
            seconds=max(self.seconds, other.seconds),
            batches=self.batches + other.batches,
        )


class Totals:
    """Counts the runs of one function, of batches and of parts of them."""

    __slots__ = ("failed", "items", "seconds", "sizes")

    def __init__(self) -> None:
        self.sizes = [0] * 64  # by the power of two that holds the items
        self.items = self.failed = 0
        self.seconds = 0.0

    def ran(self, items: int, seconds: float) -> None:
        """Count a run that gave answers."""
        self.sizes[(items - 1).bit_length()] += 1
        self.items += items
        self.seconds += seconds


class Shown(Protocol):
    """A queue with a state."""

    @property
    def state(self) -> BatchState:
        """Its state; may be read in any thread."""
        ...


_lock = threading.Lock()
_shown: dict[str, tuple[Totals, weakref.WeakSet[Any]]] = {}
_collector: list[_Collector] = []


def show(name: str, batcher: Shown) -> Totals:
    """Show a queue in the process's metrics while it is there; return what counts its runs.

    Args:
        name: of its function.
        batcher: the queue.
    """
    with _lock:
        totals, batchers = _shown.setdefault(name, (Totals(), weakref.WeakSet()))
        batchers.add(batcher)
        registry = getattr(sys.modules.get("prometheus_client"), "REGISTRY", None)
        if registry is not None and not _collector:
            _collector.append(_Collector())
            registry.register(_collector[0])
    return totals


class _Collector:
    """The metrics of all functions; see prometheus_client's custom collectors."""

    def describe(self) -> list[Metric]:
        """Nothing, so that prometheus_client does not collect at once."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics, at a scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        label = ["function"]
        size = HistogramMetricFamily(f"{_PREFIX}size", "Items of each run.", labels=label)
        runs = CounterMetricFamily(f"{_PREFIX}run_seconds", "Time of runs that gave answers.", labels=label)
        failed = CounterMetricFamily(f"{_PREFIX}failed_runs", "Runs that raised.", labels=label)
        waiting = GaugeMetricFamily(f"{_PREFIX}waiting_calls", "Calls that wait for a batch.", labels=label)
        oldest = GaugeMetricFamily(f"{_PREFIX}oldest_call_seconds", "Longest wait now.", labels=label)
        running = GaugeMetricFamily(f"{_PREFIX}running", "Batches under way.", labels=label)
        longest = GaugeMetricFamily(f"{_PREFIX}oldest_run_seconds", "Age of the oldest batch.", labels=label)
        with _lock:
            shown = {name: (totals, list(batchers)) for name, (totals, batchers) in _shown.items()}
        for name, (totals, batchers) in shown.items():
            state = sum((each.state for each in batchers), BatchState())
            counts = [*(sum(totals.sizes[: power + 1]) for power in range(_SIZES)), sum(totals.sizes)]
            bounds = [*(str(float(2**power)) for power in range(_SIZES)), "+Inf"]
            size.add_metric([name], list(zip(bounds, counts, strict=True)), totals.items)
            runs.add_metric([name], totals.seconds)
            failed.add_metric([name], totals.failed)
            waiting.add_metric([name], state.waiting)
            oldest.add_metric([name], state.seconds)
            running.add_metric([name], len(state.batches))
            longest.add_metric([name], max((each.seconds for each in state.batches), default=0.0))
        yield from (size, runs, failed, waiting, oldest, running, longest)
