"""Bodies that are read to their end, and answers on their way to a client."""

from __future__ import annotations

import asyncio
import gc

import pytest

from penstock_wire.http import ClientGone, ConnectionLost, UpstreamAnswer
from penstock_wire.http.answer_stream import AnswerStream
from penstock_wire.http.body import BodyTooLong, read_whole


class Pieces:
    """A `BodyReader` and the `UpstreamAnswer` that it is of; what stands behind the last piece is raised."""

    status, headers, length, tunnel = 200, (), None, None

    def __init__(self, *pieces: bytes | BaseException) -> None:
        self._pieces = list(pieces)
        self.aborted = 0
        self.stream = self

    async def read(self) -> bytes:
        piece = self._pieces.pop(0) if self._pieces else b""
        if isinstance(piece, BaseException):
            raise piece
        return piece

    def whole(self) -> bytes | None:
        return None

    def abort(self) -> None:
        self.aborted += 1

    @property
    def left(self) -> int:
        """Pieces that were not read."""
        return len(self._pieces)


async def test_a_body_is_read_up_to_its_limit_and_hardly_further():
    sizes: list[int] = []
    assert await read_whole(Pieces(b"ab", b"cd"), 4, received=sizes.append) == b"abcd"
    assert sizes == [2, 4]
    body = Pieces(b"ab", b"cd", b"ef")
    with pytest.raises(BodyTooLong, match="at most 3 bytes"):
        await read_whole(body, 3)
    assert body.left == 1


async def test_who_is_told_of_pieces_may_stop_the_reading():
    def refuse(size: int) -> None:
        raise PermissionError(size)

    body = Pieces(b"ab", b"cd")
    with pytest.raises(PermissionError):
        await read_whole(body, 100, received=refuse)
    assert body.left == 1


class Passing:
    """An `AnswerStream` of these pieces, and how it ended."""

    def __init__(self, *pieces: bytes | BaseException) -> None:
        self.answer = Pieces(*pieces)
        self.ends: list[type[Exception] | None] = []
        answer: UpstreamAnswer = self.answer
        self.stream: AnswerStream | None = AnswerStream(
            answer, lambda error: self.ends.append(None if error is None else type(error))
        )

    async def read(self) -> bytes:
        """All of it."""
        assert self.stream is not None
        return b"".join([piece async for piece in self.stream])


async def test_an_end_is_told_once_whoever_asks_further():
    passing = Passing(b"a", b"b")
    assert await passing.read() == b"ab"
    assert passing.stream is not None
    await passing.stream.aclose()
    passing.stream = None
    gc.collect()
    assert passing.ends == [None]


@pytest.mark.parametrize(
    ("raised", "passed_on", "aborted"),
    [
        (ConnectionLost("x"), ConnectionLost, 0),
        (ClientGone("its own body"), ClientGone, 0),
        (asyncio.CancelledError(), ClientGone, 1),
    ],
)
async def test_what_breaks_it_is_raised_and_told_once(
    raised: BaseException, passed_on: type[Exception], aborted: int
):
    passing = Passing(b"a", raised)
    with pytest.raises(type(raised)):
        await passing.read()
    passing.stream = None
    gc.collect()
    assert (passing.ends, passing.answer.aborted) == ([passed_on], aborted)


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "forgotten"])
async def test_a_client_that_leaves_before_the_first_piece_ends_it(closes: bool):
    """Else its slot would be taken for ever."""
    passing = Passing(b"a", b"b")
    assert passing.stream is not None
    if closes:
        await passing.stream.aclose()
    passing.stream = None
    gc.collect()
    assert (passing.ends, passing.answer.aborted) == ([ClientGone], 1)
