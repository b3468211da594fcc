"""`inference.GRPCInferenceService` beside `protocol_models`, with grpcio: `y` is twice `x`, typed or raw.

A row of 13 is refused, one of 14 raises; the model is not ready until it was asked twice. Messages are
limited as grpcio limits them, to 4 MiB.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import grpc
import grpc.aio

from tests.support.http.grpc_messages import message

_asked = 0


def serve(port: int, runs: list[int], held: list[str], gate: asyncio.Event) -> grpc.aio.Server:
    """Make a server that shares its gate and its records with that of REST."""

    async def infer(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        sent = dict(context.invocation_metadata() or ())
        held.append(request.model_name)
        await gate.wait()
        answer = message("ModelInferResponse")(
            model_name=request.model_name, model_version="1", id=request.id
        )
        runs.append(request.inputs[0].shape[0])
        for x, raw in zip(request.inputs, request.raw_input_contents, strict=True):
            output = answer.outputs.add(name="y", datatype=x.datatype, shape=x.shape)
            if x.datatype == "BYTES":
                answer.raw_output_contents.append(raw)
                continue
            values = struct.unpack(f"<{len(raw) // 4}f", raw)
            if 13.0 in values:
                pushback = (("grpc-retry-pushback-ms", "1500"),)
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "13: 50 % ü", pushback)
            if 14.0 in values:
                raise ValueError("14")
            doubled = [2 * value for value in values]
            if request.parameters["typed"].bool_param:
                output.contents.fp32_contents.extend(doubled)
            else:
                answer.raw_output_contents.append(struct.pack(f"<{len(values)}f", *doubled))
        await context.send_initial_metadata((("x-said", str(sent.get("x-say"))),))
        return answer

    async def ready(_: Any, __: Any) -> Any:
        global _asked
        _asked += 1
        return message("ServerReadyResponse")(ready=_asked > 2)

    async def metadata(request: Any, _: Any) -> Any:
        answer = message("ModelMetadataResponse")(name=request.name, versions=["1"], platform="p")
        answer.inputs.add(name="x", datatype="FP32", shape=[-1, 1])
        return answer

    server = grpc.aio.server()
    methods = {"ModelInfer": infer, "ServerReady": ready, "ModelMetadata": metadata}
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            method,
            request_deserializer=message(name + "Request").FromString,
            response_serializer=lambda answer: answer.SerializeToString(),
        )
        for name, method in methods.items()
    }
    service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers)
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(f"127.0.0.1:{port}")
    return server
