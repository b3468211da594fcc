"""`python -m tests.support.worlds.simulated_growth`: what added pods are worth to who waits, in simulation.

Four pods of one slot take 20 ms for a request, and half as many requests again come as these can do. After
three seconds pods are added, with the load going on. For the requests that wait then it prints how long they
wait from then on, beside what they would without the added pods, and what they would in one central queue:
means of several seeds (see `simulated_balance` for what is simulated).
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import random
from collections.abc import Sequence
from statistics import mean

from bench.ledger import quantile
from tests.support.clocks import fake_loop
from tests.support.worlds.routed_pods import Routed
from tests.support.worlds.simulated_balance import MODEL_SECONDS, WAY

PODS = 4
POD = (1, 0.02)
"""Slots and seconds of each."""
SHARE = 1.5
"""Of what these can do together."""
ADDED_AT, SECONDS = 3.0, 4.0
"""When pods are added, and how long requests come."""


def arrivals_of(*, routers: int, seed: int) -> list[tuple[float, int]]:
    """When requests come, and to which router."""
    chance, at, arrivals = random.Random(seed), 0.0, []
    rate = SHARE * PODS * POD[0] / POD[1]
    while (at := at + chance.expovariate(rate)) < SECONDS:
        arrivals.append((at, chance.randrange(routers)))
    return arrivals


def still(times: Sequence[float], latencies: Sequence[float]) -> list[float]:
    """How long those that wait when pods are added wait from then on, ascending."""
    both = zip(times, latencies, strict=True)
    return sorted(at + took - ADDED_AT for at, took in both if at < ADDED_AT < at + took)


def simulate(*, routers: int, added: int, seed: int) -> list[float]:
    """How long those that wait when so many pods are added wait from then on, ascending.

    Args:
        routers: that share the pods; each request goes to one of them by chance.
    """
    arrivals = arrivals_of(routers=routers, seed=seed)
    pod = (POD[0], POD[1] + MODEL_SECONDS)

    async def run() -> list[float]:
        routed = Routed([pod] * PODS, routers=routers, way=WAY)
        await routed.start()
        asyncio.get_running_loop().call_later(ADDED_AT, routed.add, [pod] * added)
        latencies = await routed.load(arrivals)
        begun = sum(len(each.begun) for each in routed.pods.values())
        assert begun == len(arrivals), "each is answered, and runs once"
        return latencies

    latencies = fake_loop.run(run())
    return still([at for at, _ in arrivals], latencies)


def share_of_added(*, routers: int, added: int, after: float, seed: int) -> float:
    """The share of what waits that waits at the added pods, some time after they were added.

    Args:
        after: that time, in seconds.
    """
    arrivals = arrivals_of(routers=routers, seed=seed)
    pod = (POD[0], POD[1] + MODEL_SECONDS)

    async def run() -> float:
        routed, loop = Routed([pod] * PODS, routers=routers, way=WAY), asyncio.get_running_loop()
        await routed.start()
        loop.call_later(ADDED_AT, routed.add, [pod] * added)
        seen: list[list[int]] = []
        loop.call_later(ADDED_AT + after, lambda: seen.append([each.queued for each in routed.pods.values()]))
        await routed.load(arrivals)
        return sum(seen[0][PODS:]) / sum(seen[0])

    return fake_loop.run(run())


def central(*, routers: int, added: int, seed: int) -> list[float]:
    """The same in one central queue that costs nothing."""
    times = [at for at, _ in arrivals_of(routers=routers, seed=seed)]
    free = [0.0] * (PODS * POD[0]) + [ADDED_AT] * (added * POD[0])
    latencies = []
    for at in times:
        begins = max(at, heapq.heappop(free))
        heapq.heappush(free, begins + POD[1])
        latencies.append(begins + POD[1] - at)
    return still(times, latencies)


def main() -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.worlds.simulated_growth", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=4, help="runs of each, with another chance (default: 4)")
    seeds = range(1, parser.parse_args().seeds + 1)
    names = [
        "routers",
        "pods added",
        "who waits",
        "p50, ms",
        "p99, ms",
        "÷ none added",
        "one queue, p99",
        "÷ none added there",
    ]
    print(f"| {' | '.join(names)} |\n{'| -- ' * len(names)}|")
    for routers in (1, 3):
        alone = alone_ideal = 0.0
        for added in (0, PODS, PODS + 1, 3 * PODS):
            ours = [simulate(routers=routers, added=added, seed=seed) for seed in seeds]
            queue = [central(routers=routers, added=added, seed=seed) for seed in seeds]
            waiting, half = mean(map(len, ours)), mean(quantile(each, 0.5) for each in ours)
            most, ideal = (mean(quantile(each, 0.99) for each in runs) for runs in (ours, queue))
            if not added:
                alone, alone_ideal = most, ideal
            cells = [f"{routers}", f"{added}", f"{waiting:.0f}", f"{half * 1000:.0f}", f"{most * 1000:.0f}"]
            cells += [f"{most / alone:.2f}", f"{ideal * 1000:.0f}", f"{ideal / alone_ideal:.2f}"]
            print(f"| {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
