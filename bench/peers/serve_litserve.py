"""LitServe: FastAPI on uvicorn (uvloop and httptools are installed), one worker process.

`fast_queue` (ZeroMQ between front and worker) is what its documentation advises for many small requests;
one API server, since it has one core; `batch_timeout` 1 ms, for with 0 its loop takes what one poll finds.
"""

import os
import time

import litserve

A_MS, B_MS = float(os.environ["BENCH_A_MS"]), float(os.environ["BENCH_B_MS"])


class Model(litserve.LitAPI):
    """Sleeps and echoes."""

    def setup(self, device):
        pass

    def decode_request(self, request):
        return request["instances"][0]

    def batch(self, inputs):
        return inputs

    def predict(self, batch):
        time.sleep((A_MS + B_MS * len(batch)) / 1000)
        return batch

    def unbatch(self, output):
        return output

    def encode_response(self, output):
        return {"predictions": [output]}


if __name__ == "__main__":
    api = Model(
        max_batch_size=int(os.environ["BENCH_MAX_BATCH"]),
        batch_timeout=0.001,
    )
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=30, fast_queue=True)
    server.run(
        host="127.0.0.1",
        port=int(os.environ["BENCH_PORT"]),
        num_api_servers=1,
        generate_client_file=False,
        log_level="error",
        access_log=False,
    )
