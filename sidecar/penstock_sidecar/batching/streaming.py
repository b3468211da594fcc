"""Splits the model's one streamed answer to a batch into one answer for each of its clients.

A client's answer begins with the first line that concerns it, so that an error before it has a real status;
later errors travel in-band. Each client has its own buffer: a client that lets it fill up is disconnected,
the others in the batch go on. The model never waits for a client.

A client gets a string value as its text, any other value as a line of NDJSON. The content type is the
model's, else that of the first value: `application/x-ndjson` or `text/plain`. An error is a last line
`{"error": …}` of NDJSON, or an event `error` of `text/event-stream`; in any other answer the connection is
cut, so that no client takes a part for the whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from penstock_sidecar.batching.client_stream import ClientStream, too_slow
from penstock_sidecar.batching.lone_stream import LoneStream
from penstock_sidecar.interfaces import Open
from penstock_sidecar.model.answers import StreamCompleted, from_model
from penstock_sidecar.protocols.item_answers import read_string
from penstock_sidecar.protocols.item_streams import Event, Splitter
from penstock_sidecar.queue.request import Outcome, QueuedRequest, Slice
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import SERVER_TIMING, Headers, get
from penstock_wire.http import (
    AnswerUnreadable,
    Request,
    Response,
    UpstreamAnswer,
    UpstreamError,
    UpstreamTimeout,
)
from penstock_wire.http.body import BodyTooLong, read_whole
from penstock_wire.http.client.pool import MAX_ANSWER_BYTES
from penstock_wire.item_streams import EVENTS, ITEM_STREAMS_TYPE, NDJSON
from penstock_wire.json_slices import NotJSON, members
from penstock_wire.process import log

TEXT = b"text/plain; charset=utf-8"
IDLE_SECONDS = 60.0
"""Maximum silence of the model in a stream before the stream is cut."""


class Watcher(Protocol):
    """Takes the answers for the clients of one batch; all calls come from the loop."""

    def begun(self, index: int, outcome: Response | PenstockError) -> bool:
        """Take the answer for this item: an error, or a response with a stream. Called once for each item.

        Returns:
            Whether a client takes it.
        """
        ...

    def over(self, index: int, reason: Reason | None) -> None:
        """Note that a stream that had begun is over: None = complete, else why not."""
        ...


def media_type(headers: Headers) -> bytes:
    """The media type of an answer, from its header fields."""
    return (get(headers, b"content-type") or b"").partition(b";")[0].strip().lower()


class BatchStreams:
    """The answers to one batch, while the model streams them.

    Args:
        answer: the model's, with status 2xx.
        count: number of items in the batch.
        watcher: takes the clients' answers.
    """

    def __init__(self, answer: UpstreamAnswer, count: int, watcher: Watcher) -> None:
        self._answer = answer
        self._watcher = watcher
        self._splitter = Splitter(count)
        self._clients: dict[int, tuple[ClientStream, bytes]] = {}
        self._reading: asyncio.Task[object] | None = None
        self._some_left = self._all_left = False

    async def run(self) -> None:
        """Read the model's stream to its end; every item has its end when this returns or raises."""
        self._reading = asyncio.current_task()
        why = "the sidecar was stopped"
        try:
            # NB: the model may go on for ever for clients that have left.
            while (self._splitter.open or not self._some_left) and (data := await self._answer.stream.read()):
                self._take(self._splitter.feed(data))
            why = ""
        except UpstreamError as error:
            why = f"the model's stream: {error}"
        except asyncio.CancelledError:
            if not self._all_left or self._reading is None or self._reading.uncancel():
                raise
        finally:
            self._reading = None
            self._take(self._splitter.end(why))
            self._answer.abort()

    def leave(self, index: int) -> None:
        """Drop an item whose client went away, or whose time is over; no-op if its answer is complete."""
        if index not in self._splitter.open:
            return
        self._splitter.drop(index)
        if self._clients.pop(index, None) is not None:
            self._watcher.over(index, Reason.CLIENT_GONE)
        self._stop_if_all_left()

    def drop(self, gone: Callable[[int], bool]) -> None:
        """Drop items whose answer has not begun if no client waits for it.

        Args:
            gone: whether no client waits for an item.
        """
        for index in sorted(self._splitter.open - self._clients.keys()):
            if gone(index):
                self.leave(index)

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            client = self._clients.get(event.item)
            if client is None:
                self._begin(event)
            else:
                self._go_on(event, *client)

    def _begin(self, event: Event) -> None:
        """Handle the first event of an item."""
        index = event.item
        if event.bad:
            self._watcher.begun(index, PenstockError(Reason.BAD_ANSWER, event.bad))
            return
        if event.error is not None:
            self._watcher.begun(index, _as_answer(event.error))
            return
        stream = ClientStream(lambda: self.leave(index))
        media = get(event.headers, b"content-type")
        headers = event.headers
        if media is None:
            media = TEXT if event.data is not None and event.data[:1] == b'"' else NDJSON
            headers = (*headers, (b"content-type", media))
        media = media.partition(b";")[0].strip().lower()
        if not self._watcher.begun(index, Response(event.status, headers, stream=stream)):
            self.leave(index)
            return
        self._clients[index] = (stream, media)
        self._go_on(event, stream, media)

    def _go_on(self, event: Event, stream: ClientStream, media: bytes) -> None:
        index = event.item
        if event.data is not None:
            try:
                fits = stream.put(_value(event.data))
            except NotJSON as error:
                event = Event(index, bad=f"the model's stream: {error}")
                self._splitter.drop(index)
                fits = True
            if not fits:
                self._cut_slow(index, stream)
                return
        if event.bad or event.error is not None:
            reason = Reason.BAD_ANSWER if event.bad else Reason.MODEL_FAILED
            failure = PenstockError(reason, event.bad or "the model ended its answer with an error")
            text = event.error
            if text is None:
                text = msgspec.json.encode({"reason": reason.value, "detail": event.bad})
            if media == NDJSON:
                stream.put(b'{"error":' + text + b"}\n")
                stream.end()
            elif media == EVENTS:
                stream.put(b"event: error\ndata: " + b" ".join(text.splitlines()) + b"\n\n")
                stream.end()
            else:
                stream.cut(failure)
            self._over(index, reason)
        elif event.end:
            stream.end()
            self._over(index, None)

    def _cut_slow(self, index: int, stream: ClientStream) -> None:
        stream.cut(too_slow())
        was_open = index in self._splitter.open
        self._splitter.drop(index)
        self._over(index, Reason.SLOW_READER)
        if was_open:
            self._stop_if_all_left()

    def _stop_if_all_left(self) -> None:
        self._some_left = True
        # NB: closing the connection is the surest way to report that no client waits any more.
        if not self._splitter.open and not self._all_left and self._reading is not None:
            self._all_left = True
            self._reading.cancel()

    def _over(self, index: int, reason: Reason | None) -> None:
        del self._clients[index]
        self._watcher.over(index, reason)


class StreamedSends:
    """Sends batches whose answers may be streams: of requests of one item each, or of one request alone.

    Args:
        open: sends to the model, and returns with the head of its answer.
        cut: called for each stream that is cut after its head, unless its client left.
        clock: the monotonic time in seconds.
    """

    def __init__(self, *, open: Open, cut: Callable[[Reason], None], clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open = open
        self._cut = cut

    async def send(
        self,
        parts: Sequence[Slice],
        settle: Callable[[QueuedRequest, Outcome], None],
        begun: Callable[[Callable[[], None]], None],
        request: Request,
        timeout: float,
    ) -> Response:
        """Send a batch.

        Args:
            parts: its parts of requests.
            settle: gives a request its outcome, unless it has one.
            begun: called when the answer has begun and is a stream; its argument is to be called when clients
                have left before their own answers have begun.
            request: the request of the batch.
            timeout: seconds until the end of an answer that is not a stream, or until each client's part of a
                stream has begun; between two pieces of a stream at least `IDLE_SECONDS`.

        Returns:
            The answer; `StreamCompleted` for a stream that has ended: every request has its outcome.

        Raises:
            UpstreamError: there is no answer.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        sent = self._clock()
        answer = await self._open(request, timeout, max(timeout, IDLE_SECONDS))
        media = media_type(answer.headers) if 200 <= answer.status < 300 else b""
        watcher = _Parts(parts, settle, self._cut, seconds=lambda: self._clock() - sent)
        if media == ITEM_STREAMS_TYPE:
            streams = BatchStreams(answer, len(parts), watcher)

            def drop_departed() -> None:
                streams.drop(lambda index: parts[index].work.done)

            begun(drop_departed)
            drop_departed()  # those that left before the head of the answer came
            # At the deadline, drop all whose answer has not begun; their error is sent elsewhere.
            expiry = loop.call_at(deadline, streams.drop, lambda _: True)
            try:
                await streams.run()
            finally:
                expiry.cancel()
            return StreamCompleted(answer.status, answer.headers)
        if len(parts) == 1 and media in (EVENTS, NDJSON):
            stream = LoneStream(answer)
            begun(lambda: None)  # its client has the beginning, and its stream is closed when it leaves
            if watcher.begun(0, Response(answer.status, answer.headers, stream=stream.client)):
                watcher.over(0, await stream.run())
            answer.abort()
            return StreamCompleted(answer.status, answer.headers)
        return await _whole(answer, deadline, timeout)


async def _whole(answer: UpstreamAnswer, deadline: float, timeout: float) -> Response:
    """Read an answer that is not a stream to its end, within its deadline and size limit.

    Args:
        answer: the beginning of the answer.
        deadline: deadline of its end, by the loop's clock.
        timeout: seconds that it had in all, for the error's text.
    """
    try:
        async with asyncio.timeout_at(deadline):
            body = await read_whole(answer.stream, MAX_ANSWER_BYTES)
    except BodyTooLong as error:
        raise AnswerUnreadable(f"the model answered more than {MAX_ANSWER_BYTES} bytes") from error
    except TimeoutError as error:
        raise UpstreamTimeout(f"no complete answer within {timeout:.3f} s") from error
    finally:
        answer.abort()
    return Response(answer.status, answer.headers, body)


class _Parts:
    """The `Watcher` of a batch's parts."""

    def __init__(
        self,
        parts: Sequence[Slice],
        settle: Callable[[QueuedRequest, Outcome], None],
        cut: Callable[[Reason], None],
        seconds: Callable[[], float],
    ) -> None:
        self._seconds = seconds
        self._parts = parts
        self._settle = settle
        self._cut = cut

    def begun(self, index: int, outcome: Response | PenstockError) -> bool:
        work = self._parts[index].work
        if work.done:
            return False
        if isinstance(outcome, Response):
            # The times up to a client's first line; that of joining the batch is included.
            timing = b'queue;dur=%.3f, batch;desc="%d", model;dur=%.3f' % (
                (work.cut_at - work.arrived) * 1e3,
                len(self._parts),
                self._seconds() * 1e3,
            )
            outcome.headers = (*from_model(outcome.headers), (SERVER_TIMING, timing))
        self._settle(work, outcome)
        return True

    def over(self, index: int, reason: Reason | None) -> None:
        if reason is not None and reason is not Reason.CLIENT_GONE:
            self._cut(reason)
            request_id = self._parts[index].work.request_id.decode()
            log("a stream was cut", level="warning", reason=reason.value, request_id=request_id)


def _value(raw: bytes) -> bytes:
    """The bytes that a client gets for a value."""
    if raw[:1] != b'"':
        return b" ".join(raw.splitlines()) + b"\n"
    return read_string(raw).encode()


def _as_answer(error: bytes) -> Response | PenstockError:
    """Make the answer from a model's error that came first, with the error's status if it is 400 to 599."""
    status = 500
    detail = ""
    try:
        fields = members(error)
        number = fields.get("status", b"500")
        if len(number) == 3 and number.isdigit() and 400 <= int(number) < 600:
            status = int(number)
        detail = read_string(fields["detail"]) if "detail" in fields else ""
    except NotJSON:
        detail = error.decode("utf-8", "replace")[:1000]
    return PenstockError(Reason.MODEL_FAILED, detail or "the model answered with an error", status=status)
