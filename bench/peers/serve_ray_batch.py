"""Ray Serve's `@serve.batch` alone: the load runs in the replica, beside the method that it calls.

Outside of a replica `@serve.batch` does not work. `python serve_ray_batch.py JSON`, as in_process_load.py.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

import ray
from ray import serve
from ray.serve.schema import LoggingConfig

LOAD = Path(__file__).parents[1] / "in_process_load.py"


@serve.deployment(
    num_replicas=1,
    max_ongoing_requests=1024,
    ray_actor_options={"num_cpus": 0},
    logging_config=LoggingConfig(enable_access_log=False, log_level="ERROR"),
)
class Bench:
    """Calls its own batched method."""

    async def measure(self, path, options):
        spec = importlib.util.spec_from_file_location("in_process_load", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        model = module.Model(options.pop("a_ms"), options.pop("b_ms"))

        @serve.batch(max_batch_size=options["batch"], batch_wait_timeout_s=0.0)
        async def run(items):
            return await model.run(items)

        return await module.load(run, **options)


if __name__ == "__main__":
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
    handle = serve.run(Bench.bind(), route_prefix=None)
    print(json.dumps(handle.measure.remote(str(LOAD), json.loads(sys.argv[1])).result()))
    serve.shutdown()
    ray.shutdown()
