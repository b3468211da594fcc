"""Mosec: a Rust front and batcher, one Python worker process.

`max_wait_time` 1 ms is the least (0 means its default of 10 ms); batches of up to 32 gather while the
worker is busy. `num=1`: one batch at a time. JSON is msgspec's, which Mosec's documentation offers as the
quick one.
"""

import os
import sys
import time

import msgspec
from mosec import Server, Worker

A_MS, B_MS = float(os.environ["BENCH_A_MS"]), float(os.environ["BENCH_B_MS"])


class Model(Worker):
    """Sleeps and echoes."""

    def deserialize(self, data):
        return msgspec.json.decode(data)

    def serialize(self, data):
        return msgspec.json.encode(data)

    def forward(self, data):
        time.sleep((A_MS + B_MS * len(data)) / 1000)
        return [{"predictions": body["instances"]} for body in data]


if __name__ == "__main__":
    sys.argv = [*sys.argv[:1], "--address", "127.0.0.1", "--port", os.environ["BENCH_PORT"], "--wait", "1"]
    sys.argv += ["--timeout", "30000", "--log-level", "error"]
    server = Server()
    server.append_worker(
        Model, num=1, max_batch_size=int(os.environ["BENCH_MAX_BATCH"]), max_wait_time=1, route="/predict"
    )
    server.run()
