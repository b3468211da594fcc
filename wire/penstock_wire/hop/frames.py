"""Frames: a header of 14 bytes, big-endian, then a payload. Pure.

A frame belongs to one request by its number, or to the connection (number 0). A client numbers its requests
1, 2, 3, …; no number is used twice, so a late frame is never taken for another request's.
"""

from __future__ import annotations

import struct
from typing import Final

PROTOCOL: Final = b"penstock-hop/1"
"""The value of the `Upgrade` field."""

HEADER: Final = struct.Struct(">IIHBBH")
"""Payload bytes, request number, bytes of own fields in the payload, kind, flags, slot."""
HEADER_BYTES: Final = 14

# From both: METHOD and target, or a status, then field lines with CR LF; later requests name it by its slot.
HEAD: Final = 1
# From the client: the body's length if flagged, own fields (lines), the whole body if flagged as its end. Own
# fields are x-request-id, x-penstock-timeout-ms, traceparent, tracestate, x-forwarded-for and x-real-ip.
REQUEST: Final = 2
# From the server: the same; the own fields are the sidecar's.
ANSWER: Final = 3
# From the server: status (2 bytes) and field lines of an interim answer; 1 MiB at most for one request.
INTERIM: Final = 4
# From both: a piece of a body.
BODY: Final = 5
# From both: further bytes of the other side's body that may be sent; each body begins with `WINDOW`.
CREDIT: Final = 6
# From the client: the answer is not wanted. From the server: it ends early.
CANCEL: Final = 7
# From the server: the last number that it takes, and why. From the client: a number, and why.
GOODBYE: Final = 8
# From the server: items of this client that would begin at once, items of all that wait, and the last request
# counted.
ROOM: Final = 9
# From the client: how many items it wants back that have not begun, the latest first. From the server: how
# many it gave back.
RECALL: Final = 10
# From the server: field lines behind the body of an answer, which ends with them.
TRAILERS: Final = 11
END: Final = 1
LENGTH: Final = 2
TAKES_TRAILERS: Final = 4
"""Flags: the body ends with this frame; the payload begins with the body's length (8 bytes); the answer to
this request may have trailers."""

NUMBER: Final = struct.Struct(">I")
LONG: Final = struct.Struct(">Q")
ROOMS: Final = struct.Struct(">III")
STATUS: Final = struct.Struct(">H")

SLOTS = 128
"""Heads that each side remembers of the other, by number; slot 0 is for a head that is not worth keeping."""
SLOT_BYTES: Final = 2048
"""Most bytes of a head in a slot other than 0."""
MAX_PAYLOAD: Final = 256 * 1024
PIECE_BYTES: Final = 64 * 1024
"""Most bytes of a body in one frame, so that frames behind it do not wait long."""
WINDOW: Final = 256 * 1024
"""Most bytes of one body under way before its reader gives credit for more."""
MAX_OWN: Final = 0xFFFF
MAX_REQUESTS = 4096
"""Most requests under way on one connection."""
MAX_CAPACITY: Final = 0xFFFF
LAST_NUMBER: Final = 0xFFFFFFFF
"""In a goodbye: requests already sent are still accepted, and no more may follow."""

_pack: Final = HEADER.pack


def frame(kind: int, number: int, payload: bytes = b"", *, flags: int = 0, slot: int = 0) -> bytes:
    """Make a frame without own fields."""
    return _pack(len(payload), number, 0, kind, flags, slot) + payload


def credit(number: int, size: int) -> bytes:
    """Make a frame that gives credit for more bytes of a request's, or an answer's, body."""
    return frame(CREDIT, number, NUMBER.pack(size))


def room(free: int, waiting: int, last: int, capacity: int = 0) -> bytes:
    """Make a frame with the number of items that this client can send and that start at once, and the queue.

    Args:
        free: items that would start at once.
        waiting: items of all clients that wait to start.
        last: the last request that these numbers include.
        capacity: items that start at once on an idle server; 0 if unknown.
    """
    numbers = ROOMS.pack(min(free, LAST_NUMBER), min(waiting, LAST_NUMBER), last)
    return frame(ROOM, 0, numbers, slot=min(capacity, MAX_CAPACITY))


def read_room(payload: bytes) -> tuple[int, int, int]:
    """Return `free`, `waiting` and `last` of a room frame.

    Raises:
        ValueError: the payload is unreadable.
    """
    if len(payload) != ROOMS.size:
        raise ValueError(f"expected three numbers of {ROOMS.size} bytes, found {len(payload)}")
    free, waiting, last = ROOMS.unpack(payload)
    return int(free), int(waiting), int(last)


def recall(count: int) -> bytes:
    """Make a frame that asks for `count` items of unstarted requests back; the answer has the real number."""
    return frame(RECALL, 0, NUMBER.pack(count))


def goodbye(last: int, why: str = "") -> bytes:
    """Make a frame with the last request that is accepted, and the reason for the end."""
    return frame(GOODBYE, 0, NUMBER.pack(last) + why.encode("utf-8", "replace")[:500])


def read_number(payload: bytes) -> int:
    """Return the number at the start of a credit's or a goodbye's payload.

    Raises:
        ValueError: the payload is too short.
    """
    if len(payload) < NUMBER.size:
        raise ValueError(f"expected a number of {NUMBER.size} bytes, found {len(payload)}")
    return int(NUMBER.unpack_from(payload)[0])


def read_length(data: bytes, start: int, end: int) -> int:
    """Return the length of a body.

    Args:
        data: the bytes that hold the length.
        start: its offset.
        end: end of the payload.

    Raises:
        ValueError: the length is missing or impossibly large.
    """
    if end - start < LONG.size:
        raise ValueError(f"expected a length of {LONG.size} bytes, found {end - start}")
    length = int(LONG.unpack_from(data, start)[0])
    if length >= 1 << 62:
        raise ValueError(f"expected the length of a body, found {length}")
    return length
