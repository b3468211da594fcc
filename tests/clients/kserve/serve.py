"""KServe's model server with a model that doubles its input: what `test_kserve` puts behind a sidecar.

`python serve.py PORT FOLDER`, in the environment of `requirements-kserve.txt`. Each call of the model is a
line of JSON in `FOLDER/calls`: its rows and its request's id. A call whose first value is -1 ends when the
file `FOLDER/open` is there. The model answers with its request's id, as KServe's own do.
"""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer
from kserve.model_server import FASTAPI_APP_IMPORT_STRING
from kserve.protocol.rest.server import RESTServer

FOLDER = Path(sys.argv[2])


class Double(Model):
    """Doubles what it is given, in KServe's v1 and v2."""

    def __init__(self):
        super().__init__("double")
        self.ready = True

    async def predict(self, payload, headers=None, response_headers=None):
        """Answer one call."""
        if not isinstance(payload, InferRequest):
            values = payload["instances"]
            await note(values, None)
            return {"predictions": [2 * value for value in values]}
        x = payload.inputs[0].as_numpy()
        await note(x[:, 0].tolist(), payload.id)
        y = InferOutput("y", list(x.shape), "FP32")
        binary = payload.use_binary_outputs
        y.set_data_from_numpy(np.multiply(x, 2, dtype=np.float32), binary_data=binary)
        return InferResponse(
            payload.id,
            self.name,
            [y],
            use_binary_outputs=binary,
            requested_outputs=payload.request_outputs,
        )


async def note(values, id):
    """Record a call, and wait where it asks for that."""
    with (FOLDER / "calls").open("a") as file:
        file.write(json.dumps([len(values), id]) + "\n")
    while values[0] == -1 and not (FOLDER / "open").exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.01)


def main():
    """Serve on loopback until killed."""
    server = ModelServer(http_port=int(sys.argv[1]), enable_grpc=False)
    server.register_model(Double())
    rest = RESTServer(
        FASTAPI_APP_IMPORT_STRING,
        server.dataplane,
        server.model_repository_extension,
        int(sys.argv[1]),
    )
    rest.config.host = "127.0.0.1"
    asyncio.run(rest.start())


if __name__ == "__main__":
    main()
