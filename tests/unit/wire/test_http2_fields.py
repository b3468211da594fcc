"""Header blocks: what `hpack` writes is read as it does, and what it refuses is refused."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock_wire.headers import IN_VALUES
from penstock_wire.http2 import call, head
from penstock_wire.http2.fields import FieldReader
from penstock_wire.http2.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, BrokenError

NAMES = st.sampled_from([b":path", b"accept", b"x-a", b"grpc-timeout", b"cookie"])
VALUES = st.one_of(st.binary(max_size=40), st.sampled_from([b"/", b"v" * 900, b"v" * 3000, b""]))
FIELDS = st.lists(st.tuples(NAMES, VALUES, st.booleans()), max_size=8)
BLOCKS = st.lists(st.tuples(FIELDS, st.sampled_from([None, 0, 100, 4096]), st.booleans()), max_size=8)


@given(BLOCKS)
def test_blocks_are_read_as_they_were_written(
    blocks: list[tuple[list[tuple[bytes, bytes, bool]], int, bool]],
) -> None:
    """In their order, with the table as it was left: indexed, never indexed, with Huffman code, resized."""
    encoder, reader = hpack.Encoder(), FieldReader(100_000)
    for fields, size, huffman in blocks:
        if size is not None:
            encoder.header_table_size = size
        wanted = [
            hpack.NeverIndexedHeaderTuple(name, value) if never else hpack.HeaderTuple(name, value)
            for name, value, never in fields
        ]
        assert reader.read(encoder.encode(wanted, huffman=huffman)) == [tuple(field) for field in wanted]


@given(st.binary(max_size=60))
def test_any_other_bytes_are_read_as_hpack_reads_them_or_refused(block: bytes) -> None:
    """One is never read as something else than by others: a request would pass for another."""
    try:
        wanted = [tuple(field) for field in hpack.Decoder().decode(block, raw=True)]
    except hpack.HPACKError:
        wanted = None
    try:
        found = FieldReader(100_000).read(block)
    except BrokenError:
        found = None
    if found is not None:  # an integer above 2^28 is refused here alone
        assert found == wanted


@pytest.mark.parametrize(
    ("block", "code"),
    [
        (b"\x80", COMPRESSION_ERROR),  # the field 0
        (b"\xbe", COMPRESSION_ERROR),  # one that was never added
        (b"\x40\x01a\x05bc", COMPRESSION_ERROR),  # a value that is cut
        (b"\x82\x20", COMPRESSION_ERROR),  # a new size behind a field
        (b"\x3f\xe2\x1f", COMPRESSION_ERROR),  # a table of 4 097 bytes
        (b"\xff\xff\xff\xff\xff\xff", COMPRESSION_ERROR),  # a number without end
        (b"\x40\x01a\x81\x00", COMPRESSION_ERROR),  # padding of zeros
        (b"\x40\x01a\x84\xff\xff\xff\xff", COMPRESSION_ERROR),  # the end of the string as a symbol
        (b"\x40\x01a\x7f\x81\x0e" + b"b" * 1920 + b"\xbe" * 60, ENHANCE_YOUR_CALM),
    ],
)
def test_a_block_that_cannot_be_read_ends_its_connection(block: bytes, code: int) -> None:
    with pytest.raises(BrokenError, match="expected") as caught:
        FieldReader(100_000).read(block)
    assert caught.value.code == code


def test_heads_that_came_before_are_found_again_without_what_differs() -> None:
    """By all other fields: one that differs in them has a head of its own."""
    reader, encoder = head.HeadReader(1000), hpack.Encoder()

    def read(*fields: tuple[str, str]) -> head.Head:
        first = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "a")]
        return reader.read(encoder.encode([*first, *fields]))

    one = read(("x", "1"), ("grpc-timeout", "99m"))
    assert reader.own == ((b"grpc-timeout", b"99m"),)
    assert read(("x", "1"), ("grpc-timeout", "98m")) is one
    assert read(("x", "2"), ("grpc-timeout", "98m")) is not one
    assert one.fields == ((b"host", b"a"), (b"x", b"1"))
    assert read(("cookie", "a=1"), ("cookie", "b=2")).fields[-1] == (b"cookie", b"a=1; b=2")
    too_large = read(("x", "y" * 1000))
    assert too_large.error is not None
    assert too_large.error.status == 431


def test_what_is_remembered_of_blocks_is_bounded_and_counted() -> None:
    """One of thousands of own fields is refused, and leaves nothing behind."""
    reader, encoder = head.HeadReader(100_000), hpack.Encoder()
    first = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "a")]
    block = encoder.encode([*first, ("content-type", "application/grpc"), ("traceparent", "1")])
    reader.read(block)
    block = encoder.encode([*first, ("content-type", "application/grpc"), ("traceparent", "1")])
    before = reader.kept()
    for number in range(3):
        refused = reader.read(block + block[-1:] * (2700 + number)).error
        assert refused is not None
        assert refused.status == 431
    assert (len(reader._starts), reader.kept()) == (0, before)
    one = reader.read(block)
    assert len(reader._starts) == 1
    assert reader.kept() > before
    assert call.Call.is_one(one)
    before, derived = reader.kept(), one.derived
    assert isinstance(derived, call.CallHead)
    for length in range(100):
        derived.sized(length, one)
    reader.grew(one)
    assert reader.read(block) is one
    kept = reader.kept()
    assert 16 * 200 < kept - before < 16 * 1000
    assert reader.read(block) is one
    assert reader.kept() == kept


@pytest.mark.parametrize(("users", "least"), [(40, 1.0), (80, 0.5), (250, 0.15)])
def test_of_more_heads_than_there_is_room_for_many_are_found_again(users: int, least: float) -> None:
    """A gateway sends the calls of its users, each with a token, in turn on one connection."""
    reader, encoder = head.HeadReader(10_000), hpack.Encoder()
    first = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "a")]
    found, rounds = 0, 20
    for turn in range(rounds + 5):
        again = 0
        for user in range(users):
            token = hpack.NeverIndexedHeaderTuple("authorization", f"{user:04}" + "x" * 1000)
            reader.read(encoder.encode([*first, token]))
            again += reader.size == 0
            assert reader.kept() <= 256 * 1024 + 32 * 512
        found += again if turn >= 5 else 0
    assert found >= least * rounds * users


def test_what_is_derived_from_heads_is_within_the_same_bound() -> None:
    """Heads that come once, of which the bodies come later; one that is forgotten counts no longer."""
    reader, encoder = head.HeadReader(10_000), hpack.Encoder()
    first = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "a")]
    heads = [
        reader.read(encoder.encode([*first, ("content-type", "application/grpc"), ("x", f"{number}")]))
        for number in range(100)
    ]
    for one in heads:
        assert call.Call.is_one(one)
        assert isinstance(one.derived, call.CallHead)
        for length in range(16):
            one.derived.sized(length, one)
            reader.grew(one)
            assert reader.kept() <= 256 * 1024
    assert reader.kept() == sum(one.kept for one in heads) > 200 * 1024
    assert reader.give_way()
    heads[0].grown = 100
    reader.grew(heads[0])
    assert reader.kept() == 0


def test_a_head_counts_as_what_it_becomes() -> None:
    """However short its block: a field of one byte takes a tuple. One that is refused leaves no fields."""
    reader, encoder = head.HeadReader(64 * 1024), hpack.Encoder()
    first = [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "a")]
    reader.read(encoder.encode(first))
    assert 500 < reader.size < 2_000
    again = encoder.encode(first)
    reader.read(again)
    assert reader.size == 0
    accept = b"\x93"
    for _ in range(2):  # it is too large to be found again
        assert len(reader.read(again + accept * 150).fields) == 151
        assert reader.size > 150 * 100
    refused = reader.read(again + accept * 3_000)
    assert refused.error is not None
    assert (refused.error.status, refused.fields, refused.error.__traceback__) == (431, (), None)


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from([("x", "1"), ("x", "2"), ("te", "trailers"), ("Bad", "")]), max_size=2),
            st.lists(st.tuples(st.just("grpc-timeout"), st.sampled_from(["1m", "2m", " "])), max_size=2),
            st.sampled_from([None, None, None, 0, 4096]),
            st.booleans(),
            st.sampled_from([None, None, None, None, 0, -1]),
        ),
        min_size=2,
        max_size=12,
    )
)
@example(
    [
        *[([("x", "1")], [], None, True, None)] * 3,
        ([], [], 0, True, None),
        *[([("x", "2")], [], 4096, True, None)] * 2,
    ]
)
def test_a_block_that_begins_as_another_is_read_in_full(
    requests: list[tuple[list[tuple[str, str]], list[tuple[str, str]], int | None, bool, int | None]],
) -> None:
    """Bytes are remembered as long as they mean the same: `hpack` reads each block, a new reader its fields.

    Some blocks are those of an earlier request, whatever has changed the table since.
    """
    reader, decoder, encoder = head.HeadReader(1000), hpack.Decoder(), hpack.Encoder()
    first = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "a")]
    blocks: list[bytes] = []
    for shared, own, size, indexed, again in requests:
        if size is not None:
            encoder.header_table_size = size
        kind = hpack.HeaderTuple if indexed else hpack.NeverIndexedHeaderTuple
        block = encoder.encode([*first, *shared, *[kind(*field) for field in own]])
        if again is not None and blocks:
            block = blocks[again]
        blocks.append(block)
        try:
            fields = decoder.decode(block, raw=True)
        except hpack.HPACKError:
            with pytest.raises(BrokenError):
                reader.read(block)
            return
        plain = head.HeadReader(1000)
        wanted = plain.read(b"".join([head.literal(bytes(name), bytes(value)) for name, value in fields]))
        read = reader.read(block)
        assert (read.fault, read.fields) == (wanted.fault, wanted.fields)
        assert read.fault or reader.own == plain.own


@given(
    st.lists(
        st.tuples(
            NAMES,
            st.text(max_size=300).map(
                lambda text: text.encode().translate(None, bytes(set(range(256)) - set(IN_VALUES)))
            ),
        ),
        max_size=8,
    )
)
def test_written_blocks_are_read_by_hpack(fields: list[tuple[bytes, bytes]]) -> None:
    decoder = hpack.Decoder()
    block = head.NO_TABLE + head.answer_block(404, tuple(fields), b"x-request-id: 1\r\nx-b: 2\r\n")
    read = [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]
    assert read == [(b":status", b"404"), *fields, (b"x-request-id", b"1"), (b"x-b", b"2")]
