"""MLServer: FastAPI on uvicorn (uvloop and httptools are installed), adaptive batching in the process.

`parallel_workers: 0`: no hop to a worker process (with one core it only costs); the batch sleeps in a
thread, so that the loop reads on meanwhile. `max_batch_time` is its window: a batch goes when that is over,
whether the model is free or not, so the window must be as long as a full batch takes, or batches of one queue
up (0 turns batching off). gzip, gRPC's share, metrics and the access log are off as
far as they can be. It speaks v2 alone.
"""

import asyncio
import concurrent.futures
import os
import time

import uvloop
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.types import InferenceResponse, ResponseOutput

A_MS, B_MS = float(os.environ["BENCH_A_MS"]), float(os.environ["BENCH_B_MS"])
MAX_BATCH = int(os.environ["BENCH_MAX_BATCH"])
FULL_BATCH_SECONDS = (A_MS + B_MS * MAX_BATCH) / 1000
DEVICE = concurrent.futures.ThreadPoolExecutor(1)


class Model(MLModel):
    """Sleeps and echoes."""

    async def predict(self, payload):
        data = list(payload.inputs[0].data)
        await asyncio.get_running_loop().run_in_executor(DEVICE, time.sleep, (A_MS + B_MS * len(data)) / 1000)
        output = ResponseOutput(name="y", datatype="INT64", shape=[len(data)], data=data)
        return InferenceResponse(model_name="bench", outputs=[output])


async def main():
    """Serve until ended."""
    port = int(os.environ["BENCH_PORT"])
    server = MLServer(
        Settings(
            debug=False,
            host="127.0.0.1",
            http_port=port,
            grpc_port=int(os.environ["BENCH_SECOND_PORT"]),
            metrics_endpoint=None,
            parallel_workers=0,
            gzip_enabled=False,
        )
    )
    model = ModelSettings(
        name="bench",
        implementation=Model,
        max_batch_size=MAX_BATCH,
        max_batch_time=FULL_BATCH_SECONDS,
    )
    await server.start([model])


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(main())
