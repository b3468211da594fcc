"""`python -m tests.support.worlds.simulated_balance`: requests among unequal pods, beside one central queue.

Requests come by a Poisson process at a share of what the pods can do together. The central queue has the same
arrivals and costs nothing: first come, first served, by whichever pod is free, a fast one where several are.
No scheduler that cannot see the future and starts no request twice does much better.

Routers, both ends of the hops and the sidecars decide as they do in a cluster; what takes time is simulated:
0.2 ms for each way between a router and a pod, and what the model and its connection take. For each load it
prints p99 beside that of one central queue, the time that requests waited at a pod while another one had a
free slot for them, and how often routers asked for requests back, and got none.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections.abc import Sequence

from bench.ledger import quantile
from tests.support.clocks import fake_loop
from tests.support.worlds.routed_pods import Routed

SERVICE_MS = (20.0,) * 6 + (60.0,) * 2
"""Of a request, by pod."""
SHARES = (50, 70, 85)
"""Per cent of what all pods can do together."""
WAY = 0.0002
"""Seconds between a router and a pod."""
MODEL_SECONDS = 0.0004
"""That a request takes between a sidecar and its model, beside the model's own time."""
UNLIKE = {
    "speeds": [(1, each / 1000) for each in SERVICE_MS],
    "slots": [(8, 0.02)] * 2 + [(1, 0.02)] * 2,
}
"""What differs among pods, and the slots and seconds of each."""


def central_queue(times: Sequence[float], service: Sequence[float]) -> list[float]:
    """The latencies of requests that wait in one queue for whichever server is free.

    Args:
        times: when they arrive, ascending.
        service: seconds that each server takes for a request.
    """
    idle = sorted(service)
    busy: list[tuple[float, float]] = []  # when a server is free again, and its time for a request
    latencies = []
    for arrived in times:
        while busy and busy[0][0] <= arrived:
            heapq.heappush(idle, heapq.heappop(busy)[1])
        if idle:
            begins, seconds = arrived, heapq.heappop(idle)
        else:
            begins, seconds = heapq.heappop(busy)
        heapq.heappush(busy, (begins + seconds, seconds))
        latencies.append(begins + seconds - arrived)
    return latencies


def simulate(
    *,
    routers: int,
    share: int,
    seconds: float,
    seed: int,
    pods: Sequence[tuple[int, float]] = tuple(UNLIKE["speeds"]),
) -> tuple[Routed, list[float]]:
    """One run; returns it, and the latencies of the same arrivals in one central queue.

    Args:
        routers: that share the pods; each request goes to one of them by chance.
        share: per cent of what all pods can do together.
        pods: slots and seconds of each.
    """
    chance, at = random.Random(seed), 0.0
    service = [each for slots, each in pods for _ in range(slots)]
    rate = share / 100 * sum(1 / each for each in service)
    arrivals = []
    while (at := at + chance.expovariate(rate)) < seconds:
        arrivals.append((at, chance.randrange(routers)))

    async def run() -> Routed:
        taking = [(slots, each + MODEL_SECONDS) for slots, each in pods]
        routed = Routed(taking, routers=routers, way=WAY)
        await routed.start()
        await routed.load(arrivals)
        return routed

    return fake_loop.run(run()), central_queue([arrived for arrived, _ in arrivals], service)


def main() -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.worlds.simulated_balance", description=__doc__
    )
    parser.add_argument("--routers", type=int, default=1, help="that share the pods and the requests")
    parser.add_argument("--seconds", type=float, default=60.0, help="of one run, simulated")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pods", choices=UNLIKE, default="speeds", help="what differs among them")
    arguments = parser.parse_args()
    names = [
        "load, %",
        "p99, ms",
        "one queue",
        "÷",
        "in vain, ms a request",
        "recalls of 1000",
        "for nothing",
    ]
    print(f"| {' | '.join(names)} |\n{'| -- ' * len(names)}|")
    for share in SHARES:
        routed, central = simulate(
            routers=arguments.routers,
            share=share,
            seconds=arguments.seconds,
            seed=arguments.seed,
            pods=UNLIKE[arguments.pods],
        )
        count = len(central)
        ours, ideal = (quantile(sorted(each), 0.99) * 1000 for each in (routed.latencies, central))
        asked, in_vain = (
            sum(network.counts[name] for network in routed.networks) * 1000 / count
            for name in ("asked", "in vain")
        )
        vain = routed.in_vain * 1000 / count
        cells = [f"{share}", f"{ours:.1f}", f"{ideal:.1f}", f"{ours / ideal:.2f}", f"{vain:.2f}"]
        print(f"| {' | '.join([*cells, f'{asked:.0f}', f'{in_vain:.0f}'])} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
