"""Frames, as docs/wire.md has them: a header of 14 bytes, then a payload. Pure.

A frame belongs to one request by its number, or to the connection (number 0). A client numbers its requests
1, 2, 3, …; no number is used twice, so a late frame is never taken for another request's.
"""

from __future__ import annotations

import struct
from typing import Final

PROTOCOL: Final = b"penstock-hop/1"
"""What the `Upgrade` field asks for."""

HEADER: Final = struct.Struct(">IIHBBH")
"""Bytes of the payload, number, bytes of the payload that are own fields, kind, flags, slot."""
HEADER_BYTES: Final = 14

HEAD: Final = 1
REQUEST: Final = 2
ANSWER: Final = 3
INTERIM: Final = 4
BODY: Final = 5
CREDIT: Final = 6
CANCEL: Final = 7
GOODBYE: Final = 8
ROOM: Final = 9
RECALL: Final = 10
END: Final = 1
LENGTH: Final = 2
"""Flags: the body ends with this frame; the payload begins with the body's length (8 bytes)."""

NUMBER: Final = struct.Struct(">I")
LONG: Final = struct.Struct(">Q")
ROOMS: Final = struct.Struct(">III")
STATUS: Final = struct.Struct(">H")

SLOTS = 128
"""Heads that each side remembers of the other, by number; slot 0 is for one that is not worth it."""
SLOT_BYTES: Final = 2048
"""Of a head in another slot than 0."""
MAX_PAYLOAD: Final = 256 * 1024
PIECE_BYTES: Final = 64 * 1024
"""Of a body in one frame, at most: what waits behind it waits no longer."""
WINDOW: Final = 256 * 1024
"""Bytes of one body that may be under way before its reader gives credit for more."""
MAX_OWN: Final = 0xFFFF
MAX_REQUESTS = 4096
"""Requests under way on one connection."""
MAX_CAPACITY: Final = 0xFFFF
LAST_NUMBER: Final = 0xFFFFFFFF
"""In a goodbye: whatever was sent is still taken, and nothing more is to be sent."""

_pack: Final = HEADER.pack


def frame(kind: int, number: int, payload: bytes = b"", *, flags: int = 0, slot: int = 0) -> bytes:
    """A frame without own fields."""
    return _pack(len(payload), number, 0, kind, flags, slot) + payload


def credit(number: int, size: int) -> bytes:
    """Credit for so many more bytes of a request's, or an answer's, body."""
    return frame(CREDIT, number, NUMBER.pack(size))


def room(free: int, waiting: int, last: int, capacity: int = 0) -> bytes:
    """How many items can start at once that this client may send, and how many wait.

    Args:
        free: items that would begin at once.
        waiting: items of all clients that wait to begin.
        last: the last request that this counts.
        capacity: items that begin at once where none is there; 0 where nobody says.
    """
    numbers = ROOMS.pack(min(free, LAST_NUMBER), min(waiting, LAST_NUMBER), last)
    return frame(ROOM, 0, numbers, slot=min(capacity, MAX_CAPACITY))


def read_room(payload: bytes) -> tuple[int, int, int]:
    """What a room's frame says.

    Raises:
        ValueError: nothing that can be read.
    """
    if len(payload) != ROOMS.size:
        raise ValueError(f"expected three numbers of {ROOMS.size} bytes, found {len(payload)}")
    free, waiting, last = ROOMS.unpack(payload)
    return int(free), int(waiting), int(last)


def recall(count: int) -> bytes:
    """Asks for requests of so many items back that have not begun; the answer says how many came."""
    return frame(RECALL, 0, NUMBER.pack(count))


def goodbye(last: int, why: str = "") -> bytes:
    """The last request that is taken, and why there is an end."""
    return frame(GOODBYE, 0, NUMBER.pack(last) + why.encode("utf-8", "replace")[:500])


def read_number(payload: bytes) -> int:
    """The number that a credit, or a goodbye, begins with.

    Raises:
        ValueError: there is none.
    """
    if len(payload) < NUMBER.size:
        raise ValueError(f"expected a number of {NUMBER.size} bytes, found {len(payload)}")
    return int(NUMBER.unpack_from(payload)[0])


def read_length(data: bytes, start: int, end: int) -> int:
    """The length of a body.

    Args:
        data: where it is.
        start: where it begins.
        end: where the payload ends.

    Raises:
        ValueError: there is none, or it is more than any body has.
    """
    if end - start < LONG.size:
        raise ValueError(f"expected a length of {LONG.size} bytes, found {end - start}")
    length = int(LONG.unpack_from(data, start)[0])
    if length >= 1 << 62:
        raise ValueError(f"expected the length of a body, found {length}")
    return length
