"""Pods that copy an artifact from each other: how often the origin is read, how long it takes, what it costs.

`python -m bench.artifacts` starts the sidecars and first steps of some pods before an operator's real port.
All but one start at once. Then one more comes, again and again: meanwhile requests go to the pod that it
copies from, in turn with a time in which nobody copies, and one in which `cp` does. It ends with exit code 1
if the origin was read twice, or a step took more than 128 MiB. `cp` on the same disk stands beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

from bench import processes, product
from penstock_wire.control.artifact import read_state
from tests.support.http.file_server import file_server
from tests.support.processes.artifact_pods import Pod, World, kill

MOST_KIB = 128 * 1024
RATE, A_MS, B_MS = 200, 5.0, 0.25
SECONDS = 5
"""Of a load."""


def main() -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.artifacts", description=__doc__)
    parser.add_argument("--pods", type=int, default=8, help="that there are in the end (default 8)")
    parser.add_argument("--megabytes", type=int, default=500, help="of the artifact (default 500)")
    parser.add_argument("--rounds", type=int, default=5, help="copies of a late pod (default 5)")
    arguments = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {product.choose()}")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, file_server(Path(folder)) as server:
        data = random.Random(1).randbytes(1_000_000) * arguments.megabytes
        server.files["/model.bin"] = data
        (Path(folder) / "plain").write_bytes(data)
        return asyncio.run(measured(Path(folder), server, arguments))


async def measured(folder: Path, server: object, arguments: argparse.Namespace) -> int:
    """Measure in an event loop, which is the operator's; returns the exit code."""
    size = arguments.megabytes * 1_000_000
    async with AsyncExitStack() as stack:
        world = World(folder, server, stack)  # type: ignore[arg-type] # a FileServer
        host, port = await world.operator.server.start("127.0.0.1", 0)
        world.operator.url = f"http://{host}:{port}"
        stack.push_async_callback(world.operator.server.stop)
        numbers = itertools.count(2)
        first = [await world.pod(next(numbers)) for _ in range(arguments.pods - 1)]
        steps = await asyncio.gather(*(brought(world, pod) for pod in first))
        print(f"{len(first)} pods at once: the last one has all after {max(took for took, _ in steps):.1f} s")
        plain = [await asyncio.to_thread(copied, folder) for _ in range(3)]
        used = [processes.cpu_seconds(pod.sidecar.process.pid) for pod in first]
        late = [await came_late(world, next(numbers)) for _ in range(3)]
        cost = [
            processes.cpu_seconds(pod.sidecar.process.pid) - here
            for pod, here in zip(first, used, strict=True)
        ]
        source = first[cost.index(max(cost))]
        took = median(took for took, _ in late)
        print(f"a late pod: {took:.2f} s; cp: {median(plain):.2f} s, SHA-256 alone: {hashed(folder):.2f} s")
        print(f"CPU of the sidecar that is copied from: {max(cost) / 3 / size * 1e9:.2f} s a GB")

        # Of two nodes from here on: the pod that is copied from with its model, and all else.
        model = stack.enter_context(processes.model(A_MS, B_MS, core=0))
        relay = [sys.executable, "-m", "bench.relay", str(source.model_port), str(model.port)]
        stack.enter_context(processes.running(relay, core=0))
        pin(source.sidecar.process.pid, 0)
        os.sched_setaffinity(0, {1})
        alone, beside, beside_cp = [], [], []
        for _ in range(arguments.rounds):
            alone.append(await p99(source))
            load = asyncio.create_task(p99(source))
            while not load.done():
                late.append(await came_late(world, next(numbers)))
            beside.append(await load)
            load = asyncio.create_task(p99(source))
            while not load.done():
                await asyncio.to_thread(copied, folder)
            beside_cp.append(await load)
        for what, found in (("copies of a pod", beside), ("cp", beside_cp)):
            pairs = sorted(there / here for here, there in zip(alone, found, strict=True))
            spread = f"{median(pairs):.2f} ({pairs[0]:.2f} to {pairs[-1]:.2f})"
            print(f"p99 beside {what} ÷ without, at {RATE}/s: {spread}; {median(alone):.1f} ms without")
        read, most = world.read() / size, max(memory for _, memory in [*steps, *late])
        print(f"the origin was read {read:.2f} times; a step's memory: {most / 1024:.0f} MiB at most")
    return 0 if read == 1 and most <= MOST_KIB else 1


async def came_late(world: World, number: int) -> tuple[float, int]:
    """Start a pod, run its first step and end it; returns as `brought`."""
    pod = await world.pod(number)
    found = await brought(world, pod)
    await kill(pod)
    shutil.rmtree(pod.volume)
    return found


async def brought(world: World, pod: Pod) -> tuple[float, int]:
    """Run a pod's first step; returns its seconds and its most memory in KiB."""
    began, memory = time.monotonic(), 0
    step = pod.step.start()
    while step.poll() is None:
        memory = max(memory, most_memory(step.pid))
        await asyncio.sleep(0.02)
    took = time.monotonic() - began
    _, error = step.communicate()
    if step.returncode:
        raise RuntimeError(error)
    state = read_state(pod.volume / "state.json")
    if state is None or not state.digest:
        raise RuntimeError(f"expected a digest in the state of {pod.name}, found {state}")
    world.record(state.digest)
    return took, memory


def most_memory(pid: int) -> int:
    """The most memory in KiB that a process had so far; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1])
    return 0


def pin(pid: int, core: int) -> None:
    """Let all threads of a process run on one core alone."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def copied(folder: Path) -> float:
    """Seconds of a plain copy on the same disk."""
    began = time.monotonic()
    subprocess.run(["cp", folder / "plain", folder / "copy"], check=True)
    took = time.monotonic() - began
    (folder / "copy").unlink()
    return took


def hashed(folder: Path) -> float:
    """Seconds of this thread for the digest of a file."""
    began = time.thread_time()
    with (folder / "plain").open("rb") as file:
        hashlib.file_digest(file, "sha256")
    return time.thread_time() - began


async def p99(pod: Pod) -> float:
    """Milliseconds within which 99 of 100 requests are answered."""
    url = f"http://{pod.address}:{pod.port}/predict"
    command = [sys.executable, "-m", "bench.open_loop", url, f"--rate={RATE}", f"--seconds={SECONDS}"]
    process = await asyncio.create_subprocess_exec(
        *command, "--latencies", "--connections=32", stdout=subprocess.PIPE, cwd=processes.ROOT
    )
    found, _ = await process.communicate()
    latencies = sorted(json.loads(found)["latencies_ms"])
    return float(latencies[int(len(latencies) * 0.99)])


if __name__ == "__main__":
    sys.exit(main())
