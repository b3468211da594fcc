"""Detects a model that speaks HTTP/2 alone, as a gRPC server does.

Its answer to HTTP/1.1 does not show that: some such servers just close the connection (Go's).
"""

from __future__ import annotations

import asyncio

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_FRAME_HEAD = 9
_SETTINGS = 4


async def speaks_http2(host: str, port: int, seconds: float) -> bool:
    """Whether a server answers HTTP/2's preface as a server of HTTP/2 must (RFC 9113, section 3.4)."""
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(_PREFACE)
                head = await reader.readexactly(_FRAME_HEAD)
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return False
    return head[3] == _SETTINGS and not any(head[5:])
