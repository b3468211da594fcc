"""The peers' parts of `make bench`: the loads of our own parts, and the resources of each peer.

A peer starts slowly, so what is not held against a target is measured in the first round alone, in the
starts that the other figures need anyway.
"""

from __future__ import annotations

import time

from bench import loads, processes
from bench.frame import LOADS, MAX_BATCH, QUICK_A, QUICK_B, SLOW, Bench, Offered, attempt
from bench.peers.catalogue import PEERS
from bench.processes import Server

TURNS = 3  # so that one stall of the machine is not the median
IDLE_SECONDS = 2.0
_SETTLE_SECONDS = 1.0
_BACKLOG_SECONDS = 5.0


def peers(bench: Bench, number: int) -> None:
    """Closed loop with the quick model at 64 and 256 connections; in round 0 also 1 and 16, and the cost."""
    with bench.quick_model() as model:
        for name in bench.peers:
            with (
                attempt(bench, name),
                PEERS[name].serve(QUICK_A, QUICK_B, core=bench.server_core, max_batch=MAX_BATCH) as server,
            ):
                if not number:
                    loads.warm(server, 1, core=bench.load_core, items=1)
                    with bench.counting(f"latency/{name}/one"):
                        bench.one_connection(model, {name: server}, turns=TURNS, lenient=True)
                    bench.closed(f"throughput/{name}", server, 16, lenient=True, cpu=True)
                for connections in (64, 256):
                    bench.closed(
                        f"throughput/{name}",
                        server,
                        connections,
                        cpu=True,
                        seconds=max(PEERS[name].seconds, bench.seconds),
                        lenient=True,
                    )
                if not number:
                    _cost(bench, name, server)


def _cost(bench: Bench, name: str, server: Server) -> None:
    """Memory after load, and CPU when idle, of all processes of a peer."""
    resident, proportional = processes.memory_mb(server.pid)
    bench.figures.add(f"memory/{name}/loaded/rss", resident, "MB")
    bench.figures.add(f"memory/{name}/loaded/pss", proportional, "MB")
    processes.asked(server, seconds=_BACKLOG_SECONDS)
    time.sleep(_SETTLE_SECONDS)
    before = processes.cpu_by_process(server.pid)
    begun = time.monotonic()
    time.sleep(IDLE_SECONDS)
    used = processes.cpu_since(before, processes.cpu_by_process(server.pid))
    share = used / (time.monotonic() - begun) * 100
    bench.figures.add(f"idle/{name}/-/cpu", share, "% of a core")
    bench.say(f"{name}: {resident:.0f} MB ({proportional:.0f} with shared pages parted), idle {share:.1f} %")


def peer_goodput(bench: Bench, number: int, offered: Offered = SLOW) -> None:
    """Open loop at 25 … 150 % of capacity for each peer; in round 0 alone, for starting them takes long."""
    if number:
        return
    for name in bench.peers:
        with (
            attempt(bench, name),
            PEERS[name].serve(
                offered.a,
                offered.b,
                core=bench.server_core,
                max_batch=MAX_BATCH,
                objective_ms=offered.objective_ms,
            ) as server,
        ):
            loads.warm(server, 16, core=bench.load_core, items=1)
            for percent in LOADS:
                # NB: what it still holds of the last load is not this one's: it answers one more first.
                processes.asked(server, seconds=_BACKLOG_SECONDS)
                bench.open_loop(name, server, percent, number, offered)
