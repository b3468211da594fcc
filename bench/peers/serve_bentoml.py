"""BentoML: Starlette on uvicorn (uvloop and httptools are installed), adaptive batching in the front.

`threads=1`: one batch at a time. `max_latency_ms` is the objective its dispatcher plans by and refuses by:
the load's own objective where it has one, else its default of a minute. Its access log and traces are off.
"""

import os
import sys
import time
from pathlib import Path

import bentoml

A_MS, B_MS = float(os.environ["BENCH_A_MS"]), float(os.environ["BENCH_B_MS"])


@bentoml.service(
    workers=1,
    threads=1,
    traffic={"timeout": 30, "max_concurrency": 4096},
    logging={"access": {"enabled": False}},
    metrics={"enabled": False},
)
class Model:
    """Sleeps and echoes."""

    @bentoml.api(
        route="/predict",
        batchable=True,
        max_batch_size=int(os.environ["BENCH_MAX_BATCH"]),
        max_latency_ms=int(os.environ["BENCH_OBJECTIVE_MS"]) or 60_000,
    )
    def predict(self, instances: list[int]) -> list[int]:
        time.sleep((A_MS + B_MS * len(instances)) / 1000)
        return instances


if __name__ == "__main__":
    os.environ["BENTOML_DO_NOT_TRACK"] = "True"
    os.chdir(Path(__file__).parent)
    program = str(Path(sys.executable).with_name("bentoml"))
    where = ["--host", "127.0.0.1", "--port", os.environ["BENCH_PORT"]]
    os.execv(program, [program, "serve", "serve_bentoml:Model", *where])
