"""A streamed batch: each client has its own stream, and none of them harms another."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from penstock_sidecar.batching import client_stream, streaming
from penstock_sidecar.batching.lone_stream import LoneStream
from penstock_sidecar.batching.streaming import BatchStreams, StreamedSends
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import Headers
from penstock_wire.http import (
    AnswerUnreadable,
    ConnectionLost,
    Request,
    Response,
    UpstreamAnswer,
    UpstreamTimeout,
)
from tests.support.clocks.waiting import SECONDS
from tests.support.models.model_stream import ModelStream

NDJSON = (b"content-type", b"application/x-ndjson")


class Clients:
    """What the clients of a batch got."""

    def __init__(self, count: int) -> None:
        self.answer = ModelStream(NDJSON)
        self.outcomes: dict[int, Response | PenstockError] = {}
        self.ends: dict[int, Reason | None] = {}
        self.gone: set[int] = set()
        model: UpstreamAnswer = self.answer
        self.streams = BatchStreams(model, count, self)
        self.task = asyncio.create_task(self.streams.run())

    def begun(self, index: int, outcome: Response | PenstockError) -> bool:
        assert index not in self.outcomes
        if index in self.gone:
            return False
        self.outcomes[index] = outcome
        return True

    def over(self, index: int, reason: Reason | None) -> None:
        assert index not in self.ends
        self.ends[index] = reason

    async def settle(self) -> None:
        """Let what was said arrive."""
        for _ in range(self.answer.pieces.qsize() + 3):
            await asyncio.sleep(0)

    def head(self, index: int) -> Response:
        outcome = self.outcomes[index]
        assert isinstance(outcome, Response)
        return outcome

    async def text(self, index: int) -> bytes:
        stream = self.head(index).stream
        assert stream is not None
        return b"".join([piece async for piece in stream])


async def finish(clients: Clients) -> None:
    clients.answer.end()
    await asyncio.wait_for(clients.task, SECONDS)
    assert clients.answer.aborted


async def test_each_client_has_its_own_stream():
    clients = Clients(3)
    clients.answer.say({"i": 1, "data": {"t": 1}}, {"i": 0, "data": "a\n"})
    await clients.settle()
    assert set(clients.outcomes) == {0, 1}  # the head waits for the first line
    said = {"i": 2, "status": 201, "headers": {"content-type": "text/event-stream"}, "data": "data: x\n\n"}
    clients.answer.say(said, {"i": 0, "data": "ü"}, [{"end": True}, {"data": [2]}, None])
    clients.answer.say({"i": 1, "end": True}, {"i": 2, "end": True})
    await finish(clients)
    assert clients.head(0).headers == ((b"content-type", b"text/plain; charset=utf-8"),)
    assert await clients.text(0) == "a\nü".encode()
    assert clients.head(1).headers == (NDJSON,)
    assert await clients.text(1) == b'{"t": 1}\n[2]\n'
    assert clients.head(2).status == 201
    assert await clients.text(2) == b"data: x\n\n"
    assert clients.ends == {0: None, 1: None, 2: None}


async def test_an_error_before_the_first_value_is_a_status():
    clients = Clients(3)
    clients.answer.say(
        {"i": 0, "error": {"status": 429, "detail": "busy"}}, {"i": 1, "error": "why not"}, {"i": 2}
    )
    await finish(clients)
    outcomes = [clients.outcomes[index] for index in range(3)]
    assert [(each.reason, each.status) for each in outcomes if isinstance(each, PenstockError)] == [
        (Reason.MODEL_FAILED, 429), (Reason.MODEL_FAILED, 500), (Reason.BAD_ANSWER, 502)
    ]  # fmt: skip
    assert not clients.ends


async def test_a_later_error_is_in_band():
    clients = Clients(3)
    clients.answer.say({"i": 0, "data": 1}, {"i": 1, "data": "x"})
    clients.answer.say({"i": 2, "headers": {"content-type": "text/event-stream"}, "data": "data: 1\n\n"})
    clients.answer.say(*[{"i": index, "error": {"detail": "no"}} for index in range(3)])
    await finish(clients)
    assert await clients.text(0) == b'1\n{"error":{"detail": "no"}}\n'
    with pytest.raises(PenstockError):  # cut: nothing in plain text says that it is an error
        await clients.text(1)
    assert await clients.text(2) == b'data: 1\n\nevent: error\ndata: {"detail": "no"}\n\n'
    assert set(clients.ends.values()) == {Reason.MODEL_FAILED}


@pytest.mark.parametrize("lost", [True, False])
async def test_a_stream_that_ends_early_is_no_complete_answer(lost: bool):
    clients = Clients(3)
    clients.answer.say({"i": 0, "data": 1}, {"i": 1, "data": "x"})
    clients.answer.pieces.put_nowait(ConnectionLost("lost") if lost else b"")
    await asyncio.wait_for(clients.task, SECONDS)
    assert json.loads((await clients.text(0)).splitlines()[1])["error"]["reason"] == "bad_answer"
    with pytest.raises(PenstockError):
        await clients.text(1)
    outcome = clients.outcomes[2]
    assert isinstance(outcome, PenstockError)
    assert outcome.reason == Reason.BAD_ANSWER


async def test_a_slow_reader_is_cut_and_its_mates_go_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client_stream, "MAX_BUFFER", 100)
    clients = Clients(2)
    for _ in range(10):
        clients.answer.say({"i": 0, "data": "x" * 30}, {"i": 1, "data": 1})
    clients.answer.say({"i": 1, "end": True})
    await finish(clients)
    with pytest.raises(PenstockError) as caught:
        await clients.text(0)
    assert caught.value.reason == Reason.SLOW_READER
    assert await clients.text(1) == b"1\n" * 10
    assert clients.ends == {0: Reason.SLOW_READER, 1: None}


async def test_a_client_that_left_gets_nothing_more_and_its_mates_go_on():
    clients = Clients(3)
    clients.answer.say({"i": 0, "data": 1}, {"i": 1, "data": 1})
    await clients.settle()
    stream: Any = clients.head(0).stream
    await stream.aclose()
    await stream.aclose()
    clients.streams.leave(2)  # before its first line
    clients.answer.say({"i": 0, "data": 2}, {"i": 2, "data": 2}, {"i": 1, "end": True})
    await finish(clients)
    assert await clients.text(1) == b"1\n"
    assert set(clients.outcomes) == {0, 1}
    assert clients.ends == {0: Reason.CLIENT_GONE, 1: None}


async def test_a_client_that_left_before_its_head_is_noticed_at_its_first_line():
    clients = Clients(2)
    clients.gone.add(0)
    clients.answer.say({"i": 0, "data": 1}, {"i": 0, "data": 2}, {"i": 1, "data": 1}, {"i": 1, "end": True})
    await finish(clients)
    assert await clients.text(1) == b"1\n"
    assert clients.ends == {1: None}


async def test_when_all_have_left_the_models_connection_is_closed():
    clients = Clients(2)
    clients.answer.say({"i": 0, "data": 1})
    await clients.settle()
    clients.streams.leave(0)
    clients.streams.leave(1)
    # NB: not `wait_for`, whose cancellation would end it, too.
    ended, _ = await asyncio.wait({clients.task}, timeout=5)
    assert ended
    assert clients.answer.aborted
    assert not clients.task.cancelled()


async def test_when_all_have_left_before_the_stream_is_read_nothing_is_waited_for():
    clients = Clients(2)
    clients.streams.leave(0)
    clients.streams.leave(1)
    await asyncio.wait_for(clients.task, SECONDS)
    assert clients.answer.aborted
    assert clients.outcomes == {}


async def test_a_stop_ends_all():
    clients = Clients(2)
    clients.answer.say({"i": 0, "data": 1})
    await clients.settle()
    clients.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await clients.task
    assert b'"bad_answer"' in await clients.text(0)
    assert isinstance(clients.outcomes[1], PenstockError)


async def test_at_the_deadline_those_who_have_no_head_are_given_up_and_the_others_go_on():
    clients = Clients(2)
    clients.answer.say({"i": 0, "data": 1})
    await clients.settle()
    clients.streams.drop(lambda _: True)
    clients.answer.say({"i": 1, "data": 2}, {"i": 0, "end": True})
    await finish(clients)
    assert list(clients.outcomes) == [0]
    assert clients.ends == {0: None}


async def test_a_stream_that_says_nothing_of_anybody_ends_at_the_deadline():
    """Blank lines renew no time: the model's slot is free again when the last client's time is over."""
    clients = Clients(2)
    clients.answer.pieces.put_nowait(b"\n")
    await clients.settle()
    clients.streams.drop(lambda _: True)
    await asyncio.wait_for(clients.task, SECONDS)
    assert clients.answer.aborted
    assert clients.outcomes == {}


async def test_a_stream_is_over_with_the_last_client_that_stayed():
    """The model may go on for ever for one who has left."""
    clients = Clients(2)
    clients.answer.say({"i": 0, "data": 1}, {"i": 1, "data": 1})
    await clients.settle()
    clients.streams.leave(0)
    clients.answer.say({"i": 0, "data": 2}, {"i": 1, "end": True}, {"i": 0, "data": 3})
    await asyncio.wait_for(clients.task, SECONDS)
    assert clients.answer.aborted
    assert clients.ends == {0: Reason.CLIENT_GONE, 1: None}


async def read(stream: LoneStream) -> list[bytes | PenstockError]:
    """What the client of a lone stream gets."""
    pieces: list[bytes | PenstockError] = []
    try:
        async for piece in stream.client:
            pieces.append(piece)
    except PenstockError as error:
        pieces.append(error)
    return pieces


async def test_a_lone_stream_passes_as_it_comes():
    answer = ModelStream(NDJSON)
    stream = LoneStream(answer)
    task = asyncio.create_task(stream.run())
    answer.pieces.put_nowait(b"any \xff")
    assert await anext(stream.client) == b"any \xff"
    answer.end()
    assert (await read(stream), await task, answer.aborted) == ([], None, True)


@pytest.mark.parametrize("why", [Reason.SLOW_READER, Reason.BAD_ANSWER])
async def test_a_lone_stream_that_is_cut_is_no_complete_answer(why: Reason, monkeypatch: pytest.MonkeyPatch):
    """Where its client leaves too much unread, and where the model's own breaks off."""
    monkeypatch.setattr(client_stream, "MAX_BUFFER", 100)
    answer = ModelStream(NDJSON)
    stream = LoneStream(answer)
    for _ in range(2):
        answer.pieces.put_nowait(b"x" * 60 if why is Reason.SLOW_READER else ConnectionLost("lost"))
    assert await asyncio.wait_for(stream.run(), SECONDS) is why
    (error,) = await read(stream)
    assert isinstance(error, PenstockError)
    assert (error.reason, answer.aborted) == (why, True)


@pytest.mark.parametrize("left", [True, False])
async def test_a_lone_stream_ends_with_its_client_and_with_the_process(left: bool):
    answer = ModelStream(NDJSON)
    stream = LoneStream(answer)
    task = asyncio.create_task(stream.run())
    await asyncio.sleep(0)
    if left:
        await stream.client.aclose()
        assert await task is Reason.CLIENT_GONE
    else:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert isinstance((await read(stream))[0], PenstockError)
    assert answer.aborted


class Dripping:
    """An answer of which there is always more; its own fields say whether it is a stream."""

    def __init__(self, piece: bytes, *headers: tuple[bytes, bytes]) -> None:
        self.status = 200
        self.headers: Headers = headers
        self.length = None
        self.tunnel = None
        self.trailers = None
        self.stream = self
        self.aborted = False
        self._piece = piece

    async def read(self) -> bytes:
        await asyncio.sleep(0.001)
        return self._piece

    def whole(self) -> bytes | None:
        return None

    def abort(self) -> None:
        self.aborted = True


async def send(answer: Dripping, timeout: float) -> Response:
    async def begin(request: Request, timeout: float, idle: float) -> UpstreamAnswer:
        return answer

    sends = StreamedSends(open=begin, cut=lambda reason: None, clock=asyncio.get_running_loop().time)
    request = Request("POST", "/", (), b"")
    return await sends.send([], lambda work, outcome: None, lambda drop: None, request, timeout)


async def test_an_answer_that_is_no_stream_has_its_time_as_a_whole():
    """However it drips: the slot is free again at the deadline."""
    answer = Dripping(b"x")
    with pytest.raises(UpstreamTimeout):
        await asyncio.wait_for(send(answer, 0.05), 20)
    assert answer.aborted


async def test_an_answer_that_is_no_stream_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streaming, "MAX_ANSWER_BYTES", 1000)
    answer = Dripping(b"x" * 300)
    with pytest.raises(AnswerUnreadable):
        await asyncio.wait_for(send(answer, 60), 20)
    assert answer.aborted
