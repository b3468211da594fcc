"""Ray Serve's handle: a replica calls another one, which echoes. `python serve_ray_handle.py JSON`.

It prints the figures of each round as a JSON list.
"""

import asyncio
import json
import os
import sys
import time

import ray
from ray import serve
from ray.serve.schema import LoggingConfig

QUIET = LoggingConfig(enable_access_log=False, log_level="ERROR")
DEPLOYMENT = {
    "num_replicas": 1,
    "max_ongoing_requests": 1024,
    "ray_actor_options": {"num_cpus": 0},
    "logging_config": QUIET,
}


@serve.deployment(**DEPLOYMENT)
class Echo:
    """Answers with its item."""

    async def __call__(self, item):
        return item


@serve.deployment(**DEPLOYMENT)
class Caller:
    """Calls it."""

    def __init__(self, echo):
        self.echo = echo

    async def measure(self, callers, seconds, item, rounds):
        for _ in range(200):
            assert await self.echo.remote(item) == item
        return [await self.round(callers, seconds, item) for _ in range(rounds)]

    async def round(self, callers, seconds, item):
        times = []
        until = time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            await self.echo.remote(item)
            times.append(time.perf_counter() - began)
        done = 0
        began = time.perf_counter()
        until = began + seconds

        async def caller():
            nonlocal done
            while time.perf_counter() < until:
                await self.echo.remote(item)
                done += 1

        await asyncio.gather(*[caller() for _ in range(callers)])
        rate = done / (time.perf_counter() - began)
        return {"p50_ms": sorted(times)[len(times) // 2] * 1000, "rate": rate}


if __name__ == "__main__":
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
    handle = serve.run(Caller.bind(Echo.bind()), route_prefix=None)
    print(json.dumps(handle.measure.remote(**json.loads(sys.argv[1])).result()))
    serve.shutdown()
    ray.shutdown()
