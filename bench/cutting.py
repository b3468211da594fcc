"""What batches by cost take from the sidecar's CPU, beside batches by number: `python -m bench.cutting`.

Requests of one item go through the sidecar's own queue, latency model and load count, in one process and
without HTTP; the model's time is added up and not waited for. `WAITING` requests wait at each cut. A figure
is the CPU of a request, and the difference to the same requests by number, where costs are equal and nobody
looks at them: the median of paired rounds. It takes half a minute.
"""

from __future__ import annotations

import math
import os
import random
import sys
import time
from collections.abc import Callable

from bench import product
from bench.paired import median

WAITING, BATCH, ROUNDS, REQUESTS = 256, 32, 15, 8000
LENGTHS = [min(512, max(1, round(random.Random(at).lognormvariate(math.log(128), 1.0)))) for at in range(997)]
Seconds = Callable[[int, int, int], float]
"""The time of a batch: of its items, the sum of their lengths, and the longest."""


def padded(items: int, _: int, longest: int) -> float:
    """A server that pads."""
    return 5e-3 + 8e-6 * items * longest


def summed(_: int, lengths: int, __: int) -> float:
    """A server whose time goes by all lengths."""
    return 5e-3 + 8e-6 * lengths


class Line:
    """A queue with a model behind it.

    Args:
        lengths: of the requests' items, in turn.
        seconds: the time of a batch.
        looks: whether what items cost is looked at.
    """

    def __init__(self, lengths: list[int], seconds: Seconds, *, looks: bool) -> None:
        # NB: not before `product.choose`.
        from penstock_sidecar.estimators.latency_model import LatencyModel
        from penstock_sidecar.queue.batch_limits import Limits
        from penstock_sidecar.queue.key import BatchKey
        from penstock_sidecar.queue.queue import Queue
        from penstock_sidecar.queue.request import QueuedRequest, work_of
        from penstock_wire.http import Request

        self.limits, self.request, self.work_of = Limits, QueuedRequest, work_of
        self.queue, self.model = Queue(), LatencyModel()
        self.key = BatchKey("POST", "/predict", (), ())
        self.head = Request(method="POST", target="/predict", headers=(), body=b"")
        self.items = [[b"x" * length] for length in lengths]
        self.seconds, self.looks = seconds, looks
        self.now, self.number = 0.0, 0

    def run(self, requests: int) -> float:
        """Answer so many requests; returns the CPU of each in microseconds."""
        queue, model, key, looks = self.queue, self.model, self.key, self.looks
        begin = time.process_time()
        for _ in range(requests // BATCH):
            while queue.requests < WAITING:
                item = self.items[self.number % len(self.items)]
                self.number += 1
                until = self.now + 10.0
                one = self.request(key, self.head, b"", item, (), self.now, until, until)
                if looks:
                    model.load(key.cls, 1, one.cost_left, one.longest)
                queue.add(one)
            formula = model.formula(key.cls)
            limits = self.limits(
                size=BATCH, bytes=1 << 30, formula=formula or model.trial(key.cls), reach=10.0
            )
            parts = queue.cut(key, limits, None, None)
            items = len(parts)
            cost, longest = sum([part.cost for part in parts]), max([part.longest for part in parts])
            work = items if formula is None else self.work_of(parts, items, formula)
            model.predict(self.now, key.cls, work)
            if looks:
                for part in parts:
                    model.load(key.cls, 1, part.cost, part.longest)
            seconds = self.seconds(items, cost, longest)
            self.now += seconds
            model.observe(self.now, key.cls, items, seconds, *((cost, longest) if looks else (0, 0)))
        return (time.process_time() - begin) / requests * 1e6


def main() -> int:
    """Measure and print; returns the exit code."""
    print(f"build: {product.choose()}", flush=True)
    sys.path[:0] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    print("| items | µs a request | by number | difference |\n| -- | -- | -- | -- |")
    for name, lengths, seconds in (
        ("equal", [128], padded),
        ("unequal, by their sum", LENGTHS, summed),
        ("unequal, padded", LENGTHS, padded),
    ):
        ours, plain = (Line(lengths, seconds, looks=looks) for looks in (True, False))
        for each in (ours, plain):
            each.run(REQUESTS)
        pairs = [(ours.run(REQUESTS), plain.run(REQUESTS)) for _ in range(ROUNDS)]
        formula = ours.model.formula(ours.key.cls)
        if (formula is not None) != (name != "equal"):
            print(f"bench.cutting: {name}: found the formula {formula}", file=sys.stderr)
            return 1
        values = [median(column) for column in zip(*pairs, strict=True)]
        more = median([one - other for one, other in pairs])
        print(
            f"| {name} | {values[0].value:.2f} | {values[1].value:.2f} | {more.value:.2f} "
            f"({more.low:.2f} to {more.high:.2f}) |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
