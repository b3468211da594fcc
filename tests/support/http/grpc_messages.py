"""Messages of gRPC's Open Inference Protocol, made by protobuf's library from the server's own reflection."""

from __future__ import annotations

import struct
from typing import Any

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from penstock_wire.http2 import reflection

POOL = descriptor_pool.DescriptorPool()
for _file in ("grpc_predict_v2.proto", "grpc/health/v1/health.proto"):
    POOL.Add(descriptor_pb2.FileDescriptorProto.FromString(reflection.descriptor(_file)))


def message(name: str, package: str = "inference") -> Any:
    """A class of messages."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{package}.{name}"))


def doubles(*rows: float, width: int = 1, **members: Any) -> Any:
    """A `ModelInferRequest` of rows of one number each, so many times."""
    request = message("ModelInferRequest")(model_name="double", **members)
    request.inputs.add(name="x", datatype="FP32", shape=[len(rows), width])
    request.raw_input_contents.append(b"".join(struct.pack("<f", row) * width for row in rows))
    return request


def numbers(answer: Any) -> list[float]:
    """The numbers of a `ModelInferResponse`."""
    (raw,) = answer.raw_output_contents
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


def call(channel: grpc.aio.Channel, method: str, request: Any, **options: Any) -> Any:
    """Call a method of the inference service."""
    answer = message(method + "Response")
    stub = channel.unary_unary(
        f"/inference.GRPCInferenceService/{method}",
        request_serializer=lambda each: each.SerializeToString(),
        response_deserializer=answer.FromString,
    )
    return stub(request, **options)


async def infer(channel: grpc.aio.Channel, *rows: float, **members: Any) -> Any:
    """Call `ModelInfer` for rows of one number each."""
    return await call(channel, "ModelInfer", doubles(*rows, **members))
