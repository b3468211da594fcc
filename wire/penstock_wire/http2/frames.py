"""Frames of HTTP/2 (RFC 9113 sections 4 and 6): numbers and renderings. Pure."""

from __future__ import annotations

import struct
from typing import Final

from penstock_wire._mypyc import mypyc_attr

PREFACE_BYTES: Final = 24
HEADER_BYTES: Final = 9

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 1
ACK: Final = 1
END_HEADERS: Final = 4
PADDED: Final = 8
PRIORITIZED: Final = 32
"""Flags."""

NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
INTERNAL_ERROR: Final = 2
FLOW_CONTROL_ERROR: Final = 3
STREAM_CLOSED: Final = 5
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11

ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6
"""Settings."""

USUAL_FRAME_BYTES: Final = 16_384
USUAL_WINDOW: Final = 65_535
LARGEST_WINDOW: Final = 2**31 - 1

MAX_STREAMS: Final = 1000
"""Requests of one connection at once."""
STREAM_WINDOW: Final = 1024 * 1024
"""Bytes of one request's body that may be on the way."""
CONNECTION_WINDOW: Final = 16 * 1024 * 1024

_LONG = struct.Struct(">I")
_SETTING = struct.Struct(">HI")


@mypyc_attr(native_class=False)
class BrokenError(Exception):
    """The client violates the protocol: the connection ends.

    Args:
        code: the error code of the GOAWAY.
        text: what was expected and found.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def header(size: int, kind: int, flags: int, stream: int) -> bytes:
    """Render the header of a frame with `size` bytes of payload."""
    return ((size << 48) | (kind << 40) | (flags << 32) | stream).to_bytes(9, "big")


def settings(pairs: list[tuple[int, int]]) -> bytes:
    """Render a SETTINGS frame."""
    return header(6 * len(pairs), SETTINGS, 0, 0) + b"".join([_SETTING.pack(*pair) for pair in pairs])


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Read the payload of a SETTINGS frame: numbers and values.

    Raises:
        BrokenError: a size or value that is not allowed (RFC 9113 section 6.5).
    """
    if len(payload) % 6:
        raise BrokenError(FRAME_SIZE_ERROR, f"expected settings of 6 bytes each, found {len(payload)} bytes")
    pairs: list[tuple[int, int]] = list(_SETTING.iter_unpack(payload))
    for number, value in pairs:
        if number == ENABLE_PUSH and value > 1:
            raise BrokenError(PROTOCOL_ERROR, f"expected 0 or 1 as ENABLE_PUSH, found {value}")
        if number == INITIAL_WINDOW_SIZE and value > LARGEST_WINDOW:
            raise BrokenError(FLOW_CONTROL_ERROR, f"expected a window below 2^31, found {value}")
        if number == MAX_FRAME_SIZE and not USUAL_FRAME_BYTES <= value < 2**24:
            raise BrokenError(PROTOCOL_ERROR, f"expected a frame size from 16384 to 2^24 - 1, found {value}")
    return pairs


def window_update(stream: int, size: int) -> bytes:
    """Render a WINDOW_UPDATE frame."""
    return header(4, WINDOW_UPDATE, 0, stream) + _LONG.pack(size)


def reset(stream: int, code: int) -> bytes:
    """Render an RST_STREAM frame."""
    return header(4, RST_STREAM, 0, stream) + _LONG.pack(code)


def goaway(last: int, code: int, text: str = "") -> bytes:
    """Render a GOAWAY frame.

    Args:
        last: the last stream that is taken.
        code: the error code.
        text: for people.
    """
    debug = text.encode()[:500]
    return header(8 + len(debug), GOAWAY, 0, 0) + _LONG.pack(last) + _LONG.pack(code) + debug


def head(block: bytes, stream: int, *, ended: bool, most: int) -> bytes:
    """Render the frames of a header block.

    Args:
        block: the block.
        stream: the stream.
        ended: nothing follows on the stream.
        most: most bytes of a frame.
    """
    flags = END_STREAM if ended else 0
    if len(block) <= most:
        return header(len(block), HEADERS, flags | END_HEADERS, stream) + block
    parts = [header(most, HEADERS, flags, stream), block[:most]]
    for start in range(most, len(block), most):
        piece = block[start : start + most]
        last = END_HEADERS if start + most >= len(block) else 0
        parts += [header(len(piece), CONTINUATION, last, stream), piece]
    return b"".join(parts)
