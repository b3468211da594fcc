"""A handle beside a plain request to the same endpoint, and beside Ray Serve's: `python -m bench.handles`.

The endpoint is the SDK's server (a method that echoes a batch at once), a sidecar and a router, on one core;
the caller is on the other, all at real-time priority where that is allowed. One call after the other, by
turns by a handle and by our HTTP client with a body that is made already; 64 callers at once by both;
four calls at once of which the slowest takes 20 ms, by turns with that one alone; and the time from a cancel
until the call has ended with the model, through a second endpoint whose class calls the first by a handle.
Ray Serve's caller is a replica that calls another one (`--peers ''` leaves it out). Writes
`bench/results/handles.json`. Exit code 1: a wrong answer, or a bound was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import uvloop

from bench import venvs
from bench.figures import Figures
from bench.processes import await_line, free_port, running, without_ours
from bench.run import RESULTS, machine
from bench.timer import urgent
from penstock import Handle
from penstock_wire.http import Request
from penstock_wire.http.client.pool import H1Upstream

CALLERS = 64
SLOWEST_MS = 20.0
FANOUT = (5.0, 10.0, 15.0, SLOWEST_MS)
MOST_HOP_MS = 0.5
MOST_FANOUT_MS = 2.0
MOST_CANCEL_MS = 50.0
CANCELS = 50
LEAST_RAY = 5.0
ITEM = [0.5] * 64
BATCHING = {"maxBatchSize": 32, "maxConcurrentBatches": 8}
ENDPOINTS = (
    ("echo", "Echo", "{}", BATCHING),
    ("caller", "Caller", '{"echo": {"handle": "echo"}}', BATCHING),
    ("stamps", "Stamps", "{}", {"maxBatchSize": 64, "maxConcurrentBatches": 1}),
)
"""Name, class of `handles_model.py`, its arguments, how its sidecar batches."""
HERE = Path(__file__).parent


@contextlib.contextmanager
def endpoints(core: int) -> Iterator[dict[str, int]]:
    """Start model servers and sidecars, and a router; yields the endpoints' ports by name."""
    data = free_port()
    ports = {name: free_port() for name, *_ in ENDPOINTS}
    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    env = {**without_ours(), "PENSTOCK_ENDPOINTS": json.dumps(urls)}
    common = ["--admin=127.0.0.1:0", "--propagation-delay=0s"]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def start(command: list[str]) -> None:
            process, log = stack.enter_context(running(command, core=core, env=env))
            await_line(process, log, "ready ", seconds=20)

        def settings(name: str, document: dict[str, Any]) -> Path:
            path = folder / name
            path.write_text(json.dumps({"v": 1, **document}))
            return path

        routes = []
        for name, target, arguments, batching in ENDPOINTS:
            model, sidecar = free_port(), free_port()
            serve = [sys.executable, "-m", "penstock.serve", f"bench.handles_model:{target}"]
            start([*serve, f"--port={model}", f"--init-kwargs={arguments}"])
            where = settings(f"{name}.json", {"backend": name, "batching": batching})
            start(
                [
                    *(sys.executable, "-m", "penstock_sidecar", f"--listen=127.0.0.1:{sidecar}", *common),
                    *(f"--model=http://127.0.0.1:{model}", f"--settings={where}"),
                ]
            )
            backends = [{"name": name, "weight": 1, "targets": [f"127.0.0.1:{sidecar}"]}]
            routes.append({"name": name, "port": ports[name], "backends": backends})
        where = settings("router.json", {"endpoints": routes})
        router = [sys.executable, "-m", "penstock_router", f"--listen=127.0.0.1:{data}", *common]
        start([*router, f"--settings={where}"])
        yield ports


async def measure(figures: Figures, port: int, *, rounds: int, seconds: float) -> int:
    """All rounds; returns the number of wrong answers."""
    handle = Handle("echo", url=f"http://127.0.0.1:{port}")
    echo = handle.echo
    upstream = H1Upstream()
    body = json.dumps({"instances": [ITEM]}, separators=(",", ":")).encode()
    headers = ((b"content-type", b"application/json"), (b"x-penstock-method", b"echo"))
    request = Request("POST", "/", headers, body)
    wrong = 0

    async def plain() -> bool:
        answer = await upstream.send("127.0.0.1", port, request, timeout=10)
        return answer.status == 200

    async def by_handle() -> bool:
        return bool(await echo(ITEM) == ITEM)

    ways: dict[str, Callable[[], Awaitable[bool]]] = {"plain": plain, "handle": by_handle}
    for _ in range(200):
        await plain()
        await by_handle()
    for number in range(rounds):
        medians = {}
        taken: dict[str, list[float]] = {name: [] for name in ways}
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            for name, call in ways.items():
                began = time.perf_counter()
                wrong += not await call()
                taken[name].append(time.perf_counter() - began)
        for name, call in ways.items():
            medians[name] = sorted(taken[name])[len(taken[name]) // 2] * 1000
            figures.add(f"handles/{name}/alone/p50", medians[name], "ms")
            figures.add(f"handles/{name}/{CALLERS}/rate", await rate(call, seconds), "calls/s")
        figures.add("handles/handle/alone/over_a_request", medians["handle"] - medians["plain"], "ms")
        times = []
        for _ in range(20):
            began = time.perf_counter()
            wrong += await handle(SLOWEST_MS) != SLOWEST_MS
            alone = time.perf_counter() - began
            began = time.perf_counter()
            values = await asyncio.gather(*[handle(each) for each in FANOUT])
            times.append((time.perf_counter() - began - alone) * 1000)
            wrong += values != list(FANOUT)
        figures.add("handles/handle/fanout/over_the_slowest", sorted(times)[len(times) // 2], "ms")
        print(f"[bench] round {number + 1}: {medians}", flush=True)
    await upstream.close()
    return wrong


async def cancels(figures: Figures, echo_port: int, caller_port: int) -> None:
    """How long a call is with the model of the second hop after its caller has left the first."""
    echo = Handle("echo", url=f"http://127.0.0.1:{echo_port}")
    caller = Handle("caller", url=f"http://127.0.0.1:{caller_port}")

    async def ended(*, hanging: int) -> float:
        async with asyncio.timeout(10):
            while True:
                calls, last = await echo.state(0)
                if calls == hanging:
                    return float(last)

    times = []
    for _ in range(CANCELS):
        call = caller(1)
        await ended(hanging=1)
        left = time.monotonic()
        call.cancel()
        times.append((await ended(hanging=0) - left) * 1000)
    times.sort()
    figures.add("handles/handle/cancel/p50", times[len(times) // 2], "ms")
    figures.add("handles/handle/cancel/slowest", times[-1], "ms")


async def rate(call: Callable[[], Awaitable[bool]], seconds: float) -> float:
    """Calls a second of many callers at once."""
    until = time.perf_counter() + seconds
    done = 0

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < until:
            await call()
            done += 1

    began = time.perf_counter()
    await asyncio.gather(*[caller() for _ in range(CALLERS)])
    return done / (time.perf_counter() - began)


def beside_ray(figures: Figures, *, rounds: int, seconds: float) -> None:
    """Ray Serve's handle, from replica to replica; left out where Ray cannot be installed."""
    try:
        python = venvs.ensure("ray")
    except venvs.NotInstalledError as error:
        print(f"[bench] without ray: {error}", file=sys.stderr)
        return
    options = json.dumps({"callers": CALLERS, "seconds": seconds, "item": ITEM, "rounds": rounds})
    command = [str(python), str(HERE / "peers" / "serve_ray_handle.py"), options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    if not lines:
        raise RuntimeError(f"ray: expected figures, found exit code {done.returncode}: {done.stderr[-400:]}")
    for each in json.loads(lines[-1]):
        figures.add("handles/ray/alone/p50", each["p50_ms"], "ms")
        figures.add(f"handles/ray/{CALLERS}/rate", each["rate"], "calls/s")


def main() -> int:
    """Measure, write, print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.handles", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--peers", default="ray", help="'' for none")
    parser.add_argument("--out", type=Path, default=RESULTS / "handles.json", help="where the JSON goes")
    options = parser.parse_args()
    figures = Figures()
    cores = sorted(os.sched_getaffinity(0))
    described = {**machine(), "real_time": urgent()}
    if options.peers:
        beside_ray(figures, rounds=options.rounds, seconds=options.seconds)
    os.sched_setaffinity(0, cores[-1:])
    with endpoints(cores[0]) as ports:
        wrong = uvloop.run(measure(figures, ports["echo"], rounds=options.rounds, seconds=options.seconds))
        uvloop.run(cancels(figures, ports["echo"], ports["caller"]))
    document = figures.document()
    options.out.write_text(json.dumps({"machine": described, "figures": document}, indent=1) + "\n")
    return judge(document, wrong)


def judge(document: dict[str, Any], wrong: int) -> int:
    """Print the figures that have bounds; returns the exit code."""
    faults = [f"{wrong} wrong answers"] if wrong else []

    def median(key: str) -> float:
        return float(document[key]["median"])

    hop = median("handles/handle/alone/over_a_request")
    fanout = median("handles/handle/fanout/over_the_slowest")
    print(f"[bench] a handle: {hop:.3f} ms over a plain request (at most {MOST_HOP_MS} wanted)")
    print(f"[bench] four at once: {fanout:.2f} ms over the slowest (at most {MOST_FANOUT_MS} wanted)")
    cancel = median("handles/handle/cancel/slowest")
    print(f"[bench] a cancel ends its call two hops down in {cancel:.1f} ms (at most {MOST_CANCEL_MS:g})")
    if hop > MOST_HOP_MS or fanout > MOST_FANOUT_MS or cancel > MOST_CANCEL_MS:
        faults.append("a bound was missed")
    if f"handles/ray/{CALLERS}/rate" in document:
        times = median(f"handles/handle/{CALLERS}/rate") / median(f"handles/ray/{CALLERS}/rate")
        print(f"[bench] {times:.1f} times the rate of Ray Serve's handle (at least {LEAST_RAY:g} wanted)")
        if times < LEAST_RAY:
            faults.append("too few calls a second beside Ray Serve's")
    for fault in faults:
        print(f"[bench] {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
