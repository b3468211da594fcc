"""Frames a request's body that is sent as it comes."""

from __future__ import annotations

from collections.abc import AsyncIterator

from penstock_wire.http import BodyReader, UpstreamError


async def framed(stream: BodyReader, length: int | None) -> AsyncIterator[bytes]:
    """Yield the pieces of a body in their framing: in chunks if its length is unknown.

    Args:
        length: bytes of the body; None if unknown.

    Raises:
        UpstreamError: the body is longer or shorter.
    """
    left = length
    while piece := await stream.read():
        if left is None:
            # NB: not `writelines`: with asyncio's own loop it has no back-pressure before Python 3.13.2.
            yield b"%x\r\n%b\r\n" % (len(piece), piece)
            continue
        left -= len(piece)
        if left < 0:
            raise UpstreamError(f"expected a body of {length} bytes, found more")
        yield piece
    if left:
        raise UpstreamError(f"expected a body of {length} bytes, found {left} less")
    if left is None:
        yield b"0\r\n\r\n"
