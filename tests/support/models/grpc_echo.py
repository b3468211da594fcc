"""A gRPC server of another service than the Open Inference Protocol; messages are bytes, and come back.

`Unary`, `Client` (the messages joined), `Server` (each byte by itself), `Both` (each message, as it comes),
`Fail` (a message, then an error), `Wait` (a message, then until the client leaves), `Left` (how many have).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

_left = 0


async def unary(request: bytes, context: Any) -> bytes:
    sent = dict(context.invocation_metadata())
    await context.send_initial_metadata((("x-first", sent.get("x-said", "")),))
    left = context.time_remaining()
    context.set_trailing_metadata((("x-last", "done"), ("x-left", "none" if left is None else f"{left:.0f}")))
    return request


async def client(requests: AsyncIterator[bytes], _: Any) -> bytes:
    return b"".join([each async for each in requests])


async def server(request: bytes, context: Any) -> AsyncIterator[bytes]:
    for byte in request:
        yield bytes([byte])
    context.set_trailing_metadata((("x-last", "done"),))


async def both(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    async for each in requests:
        yield each


async def fail(request: bytes, context: Any) -> AsyncIterator[bytes]:
    if request:
        yield request
    await context.abort(grpc.StatusCode.DATA_LOSS, "lost: 50 %", (("x-why", "test"),))


async def wait(_: bytes, __: Any) -> AsyncIterator[bytes]:
    global _left
    yield b"begun"
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        _left += 1


async def left(_: bytes, __: Any) -> bytes:
    return str(_left).encode()


async def main() -> None:
    """Serve until killed."""
    made = grpc.aio.server()
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Client": grpc.stream_unary_rpc_method_handler(client),
        "Server": grpc.unary_stream_rpc_method_handler(server),
        "Both": grpc.stream_stream_rpc_method_handler(both),
        "Fail": grpc.unary_stream_rpc_method_handler(fail),
        "Wait": grpc.unary_stream_rpc_method_handler(wait),
        "Left": grpc.unary_unary_rpc_method_handler(left),
    }
    made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo.Echo", handlers),))
    port = made.add_insecure_port("127.0.0.1:0")
    await made.start()
    print(f"ready 127.0.0.1:{port}", flush=True)
    await made.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
