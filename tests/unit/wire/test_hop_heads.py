"""Heads on the hop: what is written is read as it was, and the two ends' tables never differ."""

from __future__ import annotations

import string
from collections.abc import Callable

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_wire.hop import frames, heads
from penstock_wire.http import Request, Response, UpstreamError
from penstock_wire.http.client.head import encode_head
from penstock_wire.http.server import head as server_head
from penstock_wire.http.server import limits

NAMES = st.text(string.ascii_lowercase + string.digits + "-_", min_size=1, max_size=12).map(str.encode)
VALUES = (
    st.binary(max_size=20)
    .map(lambda raw: bytes(byte for byte in raw if byte == 9 or 32 <= byte != 127).strip(b" \t"))
    .filter(lambda value: value == value.strip(b" \t"))
)
FIELDS = st.lists(st.tuples(NAMES.filter(lambda name: name not in heads.NOT_SENT), VALUES), max_size=8).map(
    tuple
)


@given(FIELDS)
def test_lines_are_read_as_they_were_written(fields: tuple[tuple[bytes, bytes], ...]) -> None:
    assert tuple(heads.read_lines(heads.write_lines(fields))) == fields


@given(st.sampled_from(["GET", "POST", "DELETE"]), FIELDS)
def test_a_request_s_head_is_read_as_it_was_written(
    method: str, fields: tuple[tuple[bytes, bytes], ...]
) -> None:
    """With a host, which it gets where it has none."""
    fields = tuple(field for field in fields if field[0] != b"host")
    block = heads.write_request(method, "/a%2Fb?c=\xe9", fields, "h:1")
    head = heads.read_request(block, limits.MAX_HEAD_BYTES)
    assert head.error is None
    assert (head.method, head.target) == (method, "/a%2Fb?c=\xe9")
    assert head.fields == (*fields, (b"host", b"h:1"))


@given(st.integers(200, 599), FIELDS)
def test_an_answer_s_head_is_read_as_it_was_written(
    status: int, fields: tuple[tuple[bytes, bytes], ...]
) -> None:
    head = heads.read_answer(heads.write_answer(status, fields))
    assert (head.status, head.fields) == (status, fields)


@given(st.binary(max_size=60))
def test_no_bytes_are_read_as_lines_that_would_be_written_otherwise(block: bytes) -> None:
    """One spelling: what is taken is the same fields when it is written again."""
    try:
        fields = tuple(heads.read_lines(block))
    except ValueError:
        return
    kept = tuple(field for field in fields if field[0] not in heads.NOT_SENT)
    assert tuple(heads.read_lines(heads.write_lines(kept))) == kept


@given(st.lists(st.integers(0, 7), min_size=40, max_size=100))
def test_the_peer_s_table_has_in_each_slot_what_the_sender_means(sent: list[int]) -> None:
    """Whatever heads come, in whatever order: a slot means the head that was sent there last."""
    with pytest.MonkeyPatch.context() as few:
        few.setattr(frames, "SLOTS", 4)
        table = heads.SlotTable()
        peer: dict[int, int] = {}
        for key in sent:
            slot = table.find(key)
            if slot < 0:
                slot = table.put(key, frames.SLOT_BYTES + 1 if key == 0 else 100)
                peer[slot] = key
            assert 0 <= slot < 4
            assert not (slot and key == 0)
            assert peer[slot] == key


def test_a_head_that_comes_again_is_sent_no_third_time() -> None:
    """The second time it gets a slot of its own."""
    table = heads.SlotTable()
    written = 0
    for _ in range(10):
        for key in range(50):
            if table.find(key) < 0:
                table.put(key, 100)
                written += 1
    assert written <= 100


@pytest.mark.parametrize("own", sorted(heads.OWN))
def test_own_fields_are_kept_apart_in_order(own: bytes) -> None:
    fields = ((b"a", b"1"), (own, b"2"), (b"b", b"3"), (own, b"4"))
    assert heads.split(fields) == (((b"a", b"1"), (b"b", b"3")), ((own, b"2"), (own, b"4")))


ID, QUEUED = b"x-request-id: a-1\r\n", b"x-penstock-queue: 12\r\n"
TIMING = b"server-timing: queue;dur=0.1, model;dur=2\r\n"


@pytest.mark.parametrize(
    "block", [ID + QUEUED, TIMING + ID + QUEUED, ID + b"x-penstock-queue: 123456789012\r\n"]
)
def test_the_lines_of_nearly_each_answer_are_passed_on_unread(block: bytes) -> None:
    """They say what reading them says."""
    assert heads.are_usual(block)
    answer = Response(200)
    answer.lines = block
    assert answer.fields == heads.read_answer_lines(block)


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\r\n",
        b"12\r\n",
        QUEUED,
        TIMING + QUEUED,
        ID + TIMING + QUEUED,
        QUEUED + ID,
        TIMING + TIMING + ID + QUEUED,
        ID + ID + QUEUED,
        ID + QUEUED + QUEUED,
        ID + b"x-penstock-queue: \r\n",
        ID + b"x-penstock-queue: 1a\r\n",
        ID + b"x-penstock-queue: 12",
        ID + b"x-penstock-queue: 12\n",
        ID + b"\r\n" + QUEUED,
        b"set-cookie: a\r\n" + ID + QUEUED,
        b"server-timing: a\nset-cookie: b\r\n" + ID + QUEUED,
        b"server-timing: a\r" + ID + QUEUED,
        b"server-timing: a\0\r\n" + ID + QUEUED,
        b"server-timing: \x80\r\n" + ID + QUEUED,
        TIMING + b"x-request-id: a\nx-b: c\r\n" + QUEUED,
        b"x-request-id: a\r\nset-cookie: b\r\n" + QUEUED,
    ],
)
def test_all_other_lines_of_an_answer_are_read(block: bytes) -> None:
    """So that none is passed on that could be taken for another."""
    assert not heads.are_usual(block)


def test_a_hop_and_http_1_1_take_the_same_bytes_in_a_value() -> None:
    """RFC 9110 section 5.5: HTAB, what is visible, and obs-text; what one of them refuses, all refuse."""
    for byte in range(256):
        value = b"a%bz" % bytes([byte])
        headers = ((b"x-a", value),)
        message = b"GET / HTTP/1.1\r\nhost: a\r\nx-a: %b\r\n\r\n" % value
        tries: list[tuple[Callable[..., object], *tuple[object, ...]]] = [
            (heads.write_lines, headers),
            (heads.read_lines, b"x-a: %b\r\n" % value),
            (server_head.AnswerHead().beginning, 200, headers),
            (server_head.interim_head, 103, headers),
            (encode_head, Request("GET", "/", headers, b""), "host"),
            (httptools.HttpRequestParser(object()).feed_data, message),
        ]
        for number, (act, *arguments) in enumerate(tries):
            try:
                act(*arguments)
                taken = True
            except (ValueError, UpstreamError, httptools.HttpParserError):
                taken = False
            assert taken == (byte == 9 or (byte >= 32 and byte != 127)), (number, byte)
