"""Item streams: one answer that holds a stream for each item of a batch, in lines."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_sidecar.protocols import item_streams
from penstock_sidecar.protocols.item_streams import Event, Splitter


def lines(*documents: Any) -> bytes:
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


STREAM = lines(
    {"i": 0, "data": "a"},
    {"i": 2, "status": 201, "headers": {"x-a": "1"}},
    {"i": 1, "error": {"detail": "no"}},
    [{"data": 1}, None, {"data": [2]}],
    {"i": 0, "end": True},
    {"i": 0, "data": "late"},
    {"i": 2, "end": True},
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_lines_are_read_however_they_are_cut(cuts: list[int]):
    splitter = Splitter(3)
    bounds = [0, *sorted(cuts), len(STREAM)]
    events = [event for low, high in itertools.pairwise(bounds) for event in splitter.feed(STREAM[low:high])]
    assert events == [
        Event(0, data=b'"a"'),
        Event(2, status=201, headers=((b"x-a", b"1"),)),
        Event(1, error=b'{"detail": "no"}'),
        Event(0, data=b"1"),
        Event(2, data=b"[2]"),
        Event(0, end=True),
        Event(2, end=True),
    ]
    assert splitter.end() == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"x\n", "not JSON"),
        (b"1\n", "expected a JSON object"),
        (b'{"i":2,"data":1}\n', "i from 0 to 1, found 2"),
        (b'{"i":-1,"data":1}\n', "found -1"),
        (b'{"data":1}\n', "found nothing"),
        (b"[{}]\n", "expected 2 parts, found 1"),
        (b'[{"data":1},{"data":2},{"data":3}]\n', "at most 2 elements"),
        (b'{"i":"0","data":1}\n', 'found "0"'),
        (b'[1,{"data":2}]\n', "expected a JSON object"),
    ],
)
def test_a_line_that_cannot_be_read_ends_all(line: bytes, words: str):
    splitter = Splitter(2)
    events = splitter.feed(lines({"i": 1, "data": 1}) + line + lines({"i": 0, "data": 1}))
    assert events[0] == Event(1, data=b"1")
    assert [event.item for event in events[1:]] == [0, 1]
    assert all(words in event.bad for event in events[1:])
    assert not splitter.open


@pytest.mark.parametrize(
    "line", [{"i": 0}, {"i": 0, "end": False}, {"i": 0, "status": 7}, {"i": 0, "data": 1, "headers": 1}]
)
def test_a_line_that_says_nothing_concerns_its_own_item(line: Any):
    splitter = Splitter(2)
    (event, other) = splitter.feed(lines(line, {"i": 1, "data": 1}))
    assert event.item == 0
    assert event.bad
    assert other == Event(1, data=b"1")


def test_the_end_cuts_what_is_not_complete():
    splitter = Splitter(3)
    splitter.feed(lines({"i": 0, "end": True}, {"i": 1, "data": 1}))
    splitter.drop(2)
    assert splitter.end() == [Event(1, bad="the stream ended before the end of this answer")]
    assert Splitter(1).end("lost") == [Event(0, bad="lost")]


def test_a_last_line_needs_no_newline():
    splitter = Splitter(1)
    assert splitter.feed(b'{"i":0,"data":1,"end":true}') == []
    assert splitter.end() == [Event(0, data=b"1", end=True)]


def test_a_line_without_an_end_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(item_streams, "MAX_LINE", 100)
    splitter = Splitter(1)
    assert splitter.feed(b" " * 60) == []
    (event,) = splitter.feed(b" " * 60)
    assert "longer than 100 bytes" in event.bad
