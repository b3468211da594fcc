"""A server by `grpc.aio` that returns each message: the least that a call costs there.

`python -m bench.grpc_echo PORT`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import grpc.aio

from bench.grpc_load import INFER


async def echo(message: bytes, _: Any) -> bytes:
    """Return the message."""
    return message


async def main(port: int) -> None:
    """Serve until ended."""
    server = grpc.aio.server()
    service, _, method = INFER.decode()[1:].partition("/")
    handlers = {method: grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    print(f"ready {port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
