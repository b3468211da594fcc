"""Ray Serve: its HTTP proxy (uvicorn, uvloop) and one replica with `@serve.batch`.

`batch_wait_timeout_s` 0: a batch goes when it can; `max_concurrent_batches` 1: one at a time;
`max_ongoing_requests` wide, as its batching guide asks, so that batches can fill. The batch sleeps in a
thread, so that the replica reads on meanwhile. The dashboard and the access log are off. No autoscaling.
"""

import asyncio
import concurrent.futures
import os
import time

import ray
from ray import serve
from ray.serve.config import HTTPOptions
from ray.serve.schema import LoggingConfig

A_MS, B_MS = float(os.environ["BENCH_A_MS"]), float(os.environ["BENCH_B_MS"])
QUIET = LoggingConfig(enable_access_log=False, log_level="ERROR")


@serve.deployment(
    num_replicas=1, max_ongoing_requests=1024, ray_actor_options={"num_cpus": 0}, logging_config=QUIET
)
class Model:
    """Sleeps and echoes."""

    def __init__(self, a_ms, b_ms):
        self.a_ms, self.b_ms = a_ms, b_ms
        self.device = concurrent.futures.ThreadPoolExecutor(1)

    @serve.batch(max_batch_size=int(os.environ["BENCH_MAX_BATCH"]), batch_wait_timeout_s=0.0)
    async def run(self, items):
        seconds = (self.a_ms + self.b_ms * len(items)) / 1000
        await asyncio.get_running_loop().run_in_executor(self.device, time.sleep, seconds)
        return items

    async def __call__(self, request):
        body = await request.json()
        return {"predictions": [await self.run(body["instances"][0])]}


if __name__ == "__main__":
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
    serve.start(
        http_options=HTTPOptions(host="127.0.0.1", port=int(os.environ["BENCH_PORT"])), logging_config=QUIET
    )
    serve.run(Model.bind(A_MS, B_MS), route_prefix="/predict")
    while True:
        time.sleep(3600)
