"""Item streams: splits one answer that holds a stream for each item of a batch into events by item.

The answer is NDJSON in pieces of any size. A line is `{"i": 3, "data": …}`, `{"i": 3, "end": true}` or
`{"i": 3, "error": {…}}`; the first line of an `i` can have `status` and `headers`. Or it is an array with one
element for each item of the batch, in order: null, or the same object without `i`.

A line that cannot be read, or names an item that does not exist, ends all answers that are not complete: the
model's numbering of the items cannot be trusted then. A line for an item that has ended is dropped.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock_sidecar.protocols.item_answers import read_head
from penstock_wire.headers import Headers
from penstock_wire.json_slices import NotJSON, elements, members

MAX_LINE = 16 * 2**20
"""Maximum bytes of a line."""


class Event(NamedTuple):
    """The part of a line that concerns one item.

    Args:
        item: the item's place in the batch.
        data: a raw JSON value, None for none.
        end: the item's answer is complete.
        error: the model's error, a raw JSON value: the answer ends with it.
        bad: why the answer cannot be used any more.
        status: status of the answer.
        headers: fields of the answer.
    """

    item: int
    data: bytes | None = None
    end: bool = False
    error: bytes | None = None
    bad: str = ""
    status: int = 200
    headers: Headers = ()


class Splitter:
    """Splits one batch's stream into events.

    Args:
        count: number of items in the batch.
    """

    def __init__(self, count: int) -> None:
        self._open = set(range(count))
        self._count = count
        self._pieces: list[bytes] = []
        self._waiting = 0

    @property
    def open(self) -> frozenset[int]:
        """The items whose answers are not complete."""
        return frozenset(self._open)

    def feed(self, data: bytes) -> list[Event]:
        """Take the next bytes; returns the events that they complete."""
        first, newline, rest = data.partition(b"\n")
        self._pieces.append(first)
        self._waiting += len(first)
        events: list[Event] = []
        if newline:
            lines = [b"".join(self._pieces), *rest.split(b"\n")]
            self._pieces = [lines.pop()]
            self._waiting = len(self._pieces[0])
            for line in lines:
                events += self._line(line)
        if self._waiting > MAX_LINE:
            events += self._fail(f"a line is longer than {MAX_LINE} bytes")
        if not self._open:
            self._pieces = []
            self._waiting = 0
        return events

    def end(self, why: str = "") -> list[Event]:
        """End the stream: items whose answers are not complete are cut.

        Args:
            why: why it ended, if that was not a regular end.
        """
        events = self._line(b"".join(self._pieces)) if not why else []
        self._pieces = []
        return events + self._fail(why or "the stream ended before the end of this answer")

    def drop(self, index: int) -> None:
        """Drop an item: no client waits for it any more."""
        self._open.discard(index)

    def _fail(self, why: str) -> list[Event]:
        failed = [Event(item, bad=why) for item in sorted(self._open)]
        self._open.clear()
        return failed

    def _line(self, line: bytes) -> list[Event]:
        line = line.strip()
        if not line or not self._open:
            return []
        try:
            if line[:1] != b"[":
                fields = members(line)
                return self._event(self._index(fields), fields)
            parts = elements(line, self._count)
            if len(parts) != self._count:
                raise NotJSON(f"expected {self._count} parts, found {len(parts)}")
            read = [(index, members(part)) for index, part in enumerate(parts) if part != b"null"]
        except NotJSON as error:
            return self._fail(f"the model's stream: {error}")
        return [event for index, fields in read for event in self._event(index, fields)]

    def _index(self, fields: dict[str, bytes]) -> int:
        raw = fields.get("i", b"nothing")
        if not raw.isdigit() or len(raw) > 9 or int(raw) >= self._count:
            shown = raw[:40].decode("utf-8", "replace")
            raise NotJSON(f"expected i from 0 to {self._count - 1}, found {shown}")
        return int(raw)

    def _event(self, index: int, fields: dict[str, bytes]) -> list[Event]:
        if index not in self._open:
            return []
        error = fields.get("error")
        end = fields.get("end") == b"true"
        try:
            if error is None and not end and "data" not in fields and "status" not in fields:
                raise NotJSON("expected data, end or error, found " + (", ".join(sorted(fields)) or "none"))
            status, headers = read_head(fields)
        except NotJSON as problem:
            self._open.discard(index)
            return [Event(index, bad=f"the model's stream: {problem}")]
        if end or error is not None:
            self._open.discard(index)
        return [Event(index, fields.get("data"), end, error, "", status, headers)]
