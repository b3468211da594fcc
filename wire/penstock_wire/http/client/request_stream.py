"""A request's body that is sent as it comes."""

from __future__ import annotations

from collections.abc import AsyncIterator

from penstock_wire.http import BodyReader, UpstreamError


async def framed(stream: BodyReader, length: int | None) -> AsyncIterator[bytes]:
    """The pieces of a body as they are to be sent: in chunks where its length is not known.

    Args:
        stream: its source.
        length: bytes of the body; None where nobody knows.

    Raises:
        UpstreamError: it has more or fewer.
    """
    left = length
    while piece := await stream.read():
        if left is None:
            # NB: no `writelines`, where asyncio's own loop has no back-pressure before Python 3.13.2.
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
