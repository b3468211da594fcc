"""Handles: what is sent, what comes back, who gives up, what is refused."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from penstock import END, EndpointNotFound, Handle, UpstreamError, UpstreamTimeout, call_context
from penstock.errors import LoadError
from penstock.handles.init_kwargs import with_handles
from penstock_wire import http
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import get
from penstock_wire.http.server.server import H1Front
from tests.support.processes.handle_calls import awaited, in_thread
from tests.support.processes.ports import free_port

Answer = Callable[[http.Request], Awaitable[http.Response]]
JSON = ((b"content-type", b"application/json"),)
EVENTS = ((b"content-type", b"text/event-stream"),)


@dataclasses.dataclass
class Boxed:
    """An argument with something in it."""

    inner: Any


class Endpoint:
    """A server that notes its requests, and answers each item with itself unless it is given an answer."""

    def __init__(self) -> None:
        self.requests: list[http.Request] = []
        self.gone = asyncio.Event()
        self.began = asyncio.Event()
        self.answer: Answer = self.echo
        self.url = ""

    async def echo(self, request: http.Request) -> http.Response:
        return predictions(json.loads(request.body)["instances"][0])

    async def hang(self, request: http.Request) -> http.Response:
        """Answer when the client is gone."""
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.gone.set()
        raise AssertionError

    async def handle(self, request: http.Request) -> http.Response:
        self.requests.append(request)
        return await self.answer(request)

    def fields(self, name: bytes) -> list[str | None]:
        """The field's value in each request."""
        values = [get(request.headers, name) for request in self.requests]
        return [None if value is None else value.decode() for value in values]

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.body) for request in self.requests]


def predictions(value: Any) -> http.Response:
    return http.Response(200, JSON, json.dumps({"predictions": [value]}).encode())


@pytest.fixture
async def there() -> AsyncIterator[Endpoint]:
    front, endpoint = H1Front(), Endpoint()
    listener = await front.listen("127.0.0.1", 0, endpoint.handle)
    endpoint.url = f"http://127.0.0.1:{listener.address[1]}"
    yield endpoint
    await front.close(0)
    await asyncio.sleep(0)  # a turn of the loop, in which connections end


@pytest.fixture
def handle(there: Endpoint) -> Handle:
    return Handle("there", url=there.url)


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - what was just made


# What is sent


async def test_arguments_become_the_item_and_members_beside_it(there: Endpoint, handle: Handle) -> None:
    assert await handle([1, 2]) == [1, 2]
    assert await handle(a=1, b="x") == {"a": 1, "b": "x"}
    assert await handle() == {}
    assert await handle.embed("text", scale=0.5) == "text"
    assert await handle.options(method="options", shard_key="me", model_id="m")(None) is None
    assert there.bodies == [
        {"instances": [[1, 2]]},
        {"instances": [{"a": 1, "b": "x"}]},
        {"instances": [{}]},
        {"instances": ["text"], "scale": 0.5},
        {"instances": [None]},
    ]
    assert there.fields(b"x-penstock-method") == [None, None, None, "embed", "options"]
    assert there.fields(b"x-penstock-shard-key")[-1] == "me"
    assert there.fields(b"x-penstock-model-id") == [None] * 4 + ["m"]
    assert len(set(there.fields(b"x-request-id"))) == 5
    assert there.fields(b"x-penstock-timeout-ms") == [None] * 5


async def test_deadline_id_and_trace_are_those_of_the_request_that_is_answered(
    there: Endpoint, handle: Handle
) -> None:
    trace = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"
    call_context.begin(
        (
            (b"x-request-id", b"r1"),
            (b"x-penstock-timeout-ms", b"5000"),
            (b"traceparent", trace),
            (b"tracestate", b"a=b"),
            (b"cookie", b"c"),
        )
    )
    await handle.options(timeout=60)(1)
    await handle.options(timeout=1)(1)
    await in_thread(lambda: handle(1).result())
    assert there.fields(b"x-request-id") == ["r1"] * 3
    assert there.fields(b"traceparent") == [trace.decode()] * 3
    assert there.fields(b"tracestate") == ["a=b"] * 3
    assert there.fields(b"cookie") == [None] * 3
    times = [int(text or 0) for text in there.fields(b"x-penstock-timeout-ms")]
    assert [time <= most for time, most in zip(times, (5000, 1000, 5000), strict=True)] == [True] * 3
    assert min(times) > 0


async def test_a_batch_gives_its_calls_an_id_of_their_own(there: Endpoint, handle: Handle) -> None:
    call_context.begin(((b"x-request-id", b"r1,r2"),))
    await handle(1)
    assert there.fields(b"x-request-id") != ["r1,r2"]


async def test_calls_given_as_arguments_are_awaited_at_once(there: Endpoint, handle: Handle) -> None:
    both = asyncio.Event()

    async def answer(request: http.Request) -> http.Response:
        if len(there.requests) == 2:
            both.set()
        await both.wait()  # the two operands, which are under way together
        return await there.echo(request)

    there.answer = answer
    assert await handle(x=handle("a"), y=handle("b"), z=1) == {"x": "a", "y": "b", "z": 1}
    assert await handle(handle(handle(3))) == 3


async def test_an_argument_that_fails_cancels_the_others_that_nobody_else_waits_for(
    there: Endpoint, handle: Handle
) -> None:
    """A call that somebody awaits beside it goes on."""
    go = asyncio.Event()

    async def answer(request: http.Request) -> http.Response:
        item = json.loads(request.body)["instances"][0]
        if item == "awaited":
            await go.wait()
        elif item == "hang":
            return await there.hang(request)
        elif item == "bad":
            await there.began.wait()
            return PenstockError(Reason.BAD_SHAPE, "no").response()
        return await there.echo(request)

    there.answer = answer
    sibling, other = handle("hang"), handle("awaited")
    waiter = asyncio.ensure_future(awaited(other))
    with pytest.raises(UpstreamError, match="no"):
        await handle(x=handle("bad"), y=sibling, z=other)
    await asyncio.wait_for(there.gone.wait(), 5)
    assert sibling.done()
    go.set()
    assert await waiter == "awaited"


async def test_a_call_may_be_awaited_by_several_and_again(there: Endpoint, handle: Handle) -> None:
    first = handle(7)
    assert await asyncio.gather(handle(first), handle(a=first), first) == [7, {"a": 7}, 7]
    assert (await first, first.done(), len(there.requests)) == (7, True, 3)


async def test_handles_are_values(there: Endpoint, handle: Handle) -> None:
    changed = handle.options(timeout=3, stream=True).embed
    assert pickled(changed) == changed != handle
    assert len({handle, pickled(handle), changed}) == 2
    assert repr(changed).endswith(".options(stream=True, timeout=3, method='embed')")
    assert await pickled(handle)(1) == 1


# Blocking code


async def test_blocking_code_waits_for_calls_that_run_at_once(there: Endpoint, handle: Handle) -> None:
    def work() -> Any:
        calls = [handle(number) for number in range(4)]
        return [call.result(10) for call in calls], handle(handle(5)).result()

    assert await in_thread(work) == ([0, 1, 2, 3], 5)


async def test_a_call_of_an_event_loop_can_be_waited_for_in_a_thread_and_awaited_from_one(
    there: Endpoint, handle: Handle
) -> None:
    call = handle(1)
    assert await in_thread(lambda: call.result(10)) == 1
    there.answer = there.hang
    slow = handle(2)
    with pytest.raises(TimeoutError):
        await in_thread(lambda: slow.result(0.01))
    assert not slow.done()
    await in_thread(slow.cancel)
    await asyncio.wait_for(there.gone.wait(), 10)
    there.answer = there.echo
    shared = await in_thread(lambda: handle(3))
    assert await shared == 3
    assert await handle(shared) == 3


async def test_waiting_in_an_event_loop_is_refused_and_awaiting_in_another_too(handle: Handle) -> None:
    call = handle(1)
    with pytest.raises(RuntimeError, match=r"await the call instead of .result\(\)"):
        call.result()
    with pytest.raises(RuntimeError, match="async for"):
        next(handle.options(stream=True)(1))
    await call

    def other_loop() -> str:
        async def awaiting() -> None:
            await call

        with pytest.raises(RuntimeError) as raised:
            asyncio.run(awaiting())
        return str(raised.value)

    assert "in the event loop in which it was made" in await in_thread(other_loop)


def test_an_event_loop_that_ends_closes_its_connections() -> None:
    """Warnings are errors here: an open one would be reported."""

    async def main() -> Any:
        front, endpoint = H1Front(), Endpoint()
        listener = await front.listen("127.0.0.1", 0, endpoint.handle)
        answer = await Handle("x", url=f"http://127.0.0.1:{listener.address[1]}")(1)
        await front.close(0)
        return answer

    assert [asyncio.run(main()) for _ in range(2)] == [1, 1]


# What comes back


async def test_other_answers_than_predictions_are_responses(there: Endpoint, handle: Handle) -> None:
    async def plain(request: http.Request) -> http.Response:
        return http.Response(201, ((b"content-type", b"text/plain"),), b"made")

    there.answer = plain
    answer = await handle(1)
    assert (answer.status, answer.headers["content-type"], answer.body) == (201, "text/plain", b"made")

    async def tolerant(request: http.Request) -> http.Response:
        return http.Response(200, JSON, b'{"predictions":["\\ud800"]}')

    there.answer = tolerant
    assert await handle(1) == "\ud800"


async def test_an_error_answer_raises_with_status_reason_id_and_backend(
    there: Endpoint, handle: Handle
) -> None:
    async def full(request: http.Request) -> http.Response:
        return PenstockError(Reason.QUEUE_FULL, "8 wait").response(
            request_id=(get(request.headers, b"x-request-id") or b"").decode(), backend="b1"
        )

    there.answer = full
    with pytest.raises(UpstreamError, match="there: 503 queue_full: 8 wait") as raised:
        await handle(handle(1))
    error = raised.value
    assert (error.status, error.reason, error.backend, error.endpoint) == (503, "queue_full", "b1", "there")
    assert error.request_id == there.fields(b"x-request-id")[0]
    copied = pickled(error)
    assert (str(copied), copied.status, copied.reason) == (str(error), 503, "queue_full")

    async def foreign(request: http.Request) -> http.Response:
        return http.Response(418, (), b"[1]")

    there.answer = foreign
    with pytest.raises(UpstreamError, match=r"418 without a reason: \[1\]"):
        await handle(1)


class Odd(KeyError):
    """An exception of the model's module, with a constructor that takes more than a message."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        (["elsewhere:Missing", "builtins:KeyError", "builtins:LookupError"], KeyError),
        ([f"{__name__}:Odd"], Odd),
        (["asyncio.exceptions:InvalidStateError"], asyncio.InvalidStateError),
        (["builtins:UnicodeDecodeError"], UnicodeDecodeError),
        (["builtins:OSError"], OSError),
        # None of these is raised.
        (["builtins:ExceptionGroup"], None),
        (["builtins:StopIteration"], None),
        (["builtins:SystemExit"], None),
        (
            ["builtins:dict", "penstock.errors:UnknownModel", "os:system", "json:decoder.JSONDecodeError.x"],
            None,
        ),
        ([7, ["x"], None, ":"], None),
        ("builtins:KeyError", None),
        (None, None),
    ],
)
async def test_an_exception_keeps_its_type_where_the_caller_has_it(
    there: Endpoint, handle: Handle, names: object, kinds: type[Exception] | None
) -> None:
    problem = PenstockError(Reason.MODEL_FAILED, "a reason", extra={"exception": names})

    async def fail(_: http.Request) -> http.Response:
        return problem.response(request_id="r1")

    there.answer = fail
    with pytest.raises(UpstreamError, match="there: 500 model_failed: a reason") as raised:
        await handle(1)
    error = raised.value
    assert [kind for kind in type(error).__mro__[1:] if kind in (UpstreamError, kinds)] == [
        *([] if kinds is None else [UpstreamError]),
        *([] if kinds is None else [kinds]),
    ]
    assert (error.status, error.reason, error.request_id) == (500, "model_failed", "r1")
    copied = pickled(error)
    assert type(copied) is type(error)
    assert (str(copied), copied.args, copied.__dict__) == (str(error), error.args, error.__dict__)


async def test_no_connection_and_a_lost_one_are_told_apart(there: Endpoint) -> None:
    with pytest.raises(UpstreamError, match="cannot connect") as raised:
        await Handle("x", url=f"http://127.0.0.1:{free_port()}")(1)
    assert (raised.value.status, raised.value.reason) == (503, "unreachable")

    async def lose(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(lose, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(UpstreamError) as raised:
        await Handle("x", url=f"http://127.0.0.1:{port}")(1)
    assert (raised.value.status, raised.value.reason) == (502, "connection_lost")
    server.close()


async def test_a_call_without_an_answer_in_time_is_late(there: Endpoint, handle: Handle) -> None:
    there.answer = there.hang
    with pytest.raises(UpstreamTimeout, match="no answer before the deadline") as raised:
        await handle.options(timeout=0.02)(1)
    assert isinstance(raised.value, TimeoutError)
    assert (raised.value.status, raised.value.reason) == (504, "deadline")
    with pytest.raises(UpstreamTimeout):  # while it waits for what it is given
        await handle.options(timeout=0.02)(handle(1))
    call_context.begin(((b"x-penstock-timeout-ms", b"0"),))
    sent = len(there.requests)
    with pytest.raises(UpstreamTimeout):
        await handle(1)
    assert len(there.requests) == sent


# Who gives up


async def test_a_caller_that_is_cancelled_closes_its_calls_downstream(
    there: Endpoint, handle: Handle
) -> None:
    there.answer = there.hang

    async def caller() -> None:
        other = handle(2)
        await handle(handle(1))
        await other

    task = asyncio.create_task(caller())
    await asyncio.wait_for(there.began.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(there.gone.wait(), 10)


async def test_a_call_that_others_wait_for_outlives_one_who_is_cancelled(
    there: Endpoint, handle: Handle
) -> None:
    release = asyncio.Event()

    async def held(request: http.Request) -> http.Response:
        there.began.set()
        await release.wait()
        return await there.echo(request)

    there.answer = held
    shared = handle(1)
    first, other = (asyncio.ensure_future(awaited(shared)) for _ in range(2))
    await asyncio.wait_for(there.began.wait(), 10)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    release.set()
    assert await other == 1


async def test_calls_from_a_thread_end_with_the_request_that_it_answers(
    there: Endpoint, handle: Handle
) -> None:
    there.answer = there.hang
    context = call_context.begin(())
    thread = asyncio.ensure_future(in_thread(lambda: handle(1).result()))
    await asyncio.wait_for(there.began.wait(), 10)
    context.cancel_calls()
    await asyncio.wait_for(there.gone.wait(), 10)
    with pytest.raises(asyncio.CancelledError):
        await thread


# Streams


def pieces(*texts: bytes, then: Callable[[], Awaitable[object]] | None = None) -> Answer:
    async def body() -> AsyncIterator[bytes]:
        for text in texts:
            yield text
        if then is not None:
            await then()

    async def answer(request: http.Request) -> http.Response:
        assert get(request.headers, b"accept") == b"text/event-stream"
        return http.Response(200, EVENTS, stream=body())

    return answer


async def test_a_stream_is_read_piece_by_piece(there: Endpoint, handle: Handle) -> None:
    there.answer = pieces(b'data: {"a": 1}\n\ndata: "', b'x"\n\nda', b"ta: [DONE]\n\n")
    stream = handle.options(stream=True)
    assert [piece async for piece in stream(1)] == [{"a": 1}, "x", "[DONE]"]
    assert await in_thread(lambda: list(stream(1))) == [{"a": 1}, "x", "[DONE]"]
    call = handle(1)
    with pytest.raises(TypeError, match=r"is not a stream: .* handle.options\(stream=True\)"):
        [piece async for piece in call]
    with pytest.raises(TypeError, match="is not a stream"):
        list(call)
    call.cancel()


async def test_a_stream_that_fails_raises_behind_its_pieces(there: Endpoint, handle: Handle) -> None:
    problem = {
        "status": 502,
        "reason": "bad_answer",
        "detail": "3 entries",
        "exception": ["builtins:OSError"],
    }
    there.answer = pieces(b"data: 1\n\nevent: error\ndata: " + json.dumps(problem).encode() + b"\n\n")
    stream = handle.options(stream=True)(1)
    assert await anext(stream) == 1
    with pytest.raises(UpstreamError, match="bad_answer: 3 entries") as raised:
        await anext(stream)
    assert (raised.value.status, raised.value.reason) == (502, "bad_answer")
    assert isinstance(raised.value, OSError)
    assert [piece async for piece in stream] == []

    there.answer = pieces(b"data: 1\n\ndata: ")
    with pytest.raises(UpstreamError, match="within an event"):
        [piece async for piece in handle.options(stream=True)(1)]


@pytest.mark.parametrize("leave", ["close", "let go", "cancel", "thread"])
async def test_a_reader_that_leaves_closes_the_stream_downstream(
    there: Endpoint, handle: Handle, leave: str
) -> None:
    gone = asyncio.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    there.answer = pieces(b"data: 1\n\n", then=wait)
    if leave == "thread":

        def work() -> None:
            stream = handle.options(stream=True)(1)
            assert next(stream) == 1
            stream.close()

        await in_thread(work)
    else:
        stream = handle.options(stream=True)(1)
        assert await anext(stream) == 1
        if leave == "close":
            await stream.aclose()
        elif leave == "let go":
            del stream
        else:
            reading = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
    await asyncio.wait_for(gone.wait(), 10)


async def test_a_method_that_is_no_generator_is_no_stream(there: Endpoint, handle: Handle) -> None:
    with pytest.raises(TypeError, match="a method that is a generator"):
        await anext(handle.options(stream=True)(1))
    with pytest.raises(TypeError, match=r"options\(stream=True\)"):
        list(handle(1))
    with pytest.raises(TypeError, match="cannot be awaited"):
        await handle.options(stream=True)(1)


# What is refused


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda h: h.options(timeot=1),
            "expected options among stream, timeout, shard_key, method, model_id, found timeot",
        ),
        (lambda h: h.options(timeout="1"), "expected a timeout in seconds or None, found '1'"),
        (lambda h: h.options(stream=1), "expected stream to be True or False, found 1"),
        (lambda h: pickle.dumps(h(1)), "cannot be pickled: await it, and pickle its value"),
        (lambda h: pickle.dumps(h.options(stream=True)(1)), "read it, and pickle its pieces"),
        (lambda h: Handle(3), "expected the endpoint's name, found 3"),
    ],
)
def test_what_is_not_a_call_raises_at_once(call: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(TypeError) as raised:
        call(Handle("there", missing_ok=True))
    assert words in str(raised.value)


async def test_a_call_that_cannot_be_made_raises_when_it_is_awaited(there: Endpoint, handle: Handle) -> None:
    good = handle(1)
    calls = {
        handle(1, [good]): "expected values in argument 2, found a call that was not awaited within a list",
        handle([good]): "found a call that was not awaited within a list at $[0]: await it",
        handle(
            a={"b": [good]}
        ): "expected values in a, found a call that was not awaited within a dict at $.b[0]",
        handle(
            handle.options(stream=True)(1)
        ): "expected a value for the item, found a stream: read its pieces",
        handle(1, instances=2): 'no argument of the name "instances"',
        handle(Boxed(good)): "found a call that was not awaited within a Boxed at $.inner: await it first",
    }
    outcomes = await asyncio.gather(good, *calls, return_exceptions=True)
    assert outcomes.pop(0) == 1
    for outcome, words in zip(outcomes, calls.values(), strict=True):
        assert isinstance(outcome, TypeError)
        assert words in str(outcome)
    with pytest.raises(TypeError, match="no argument of the name"):
        await anext(handle.options(stream=True)(1, instances=2))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Handle("No name"),
        lambda: Handle("x", url="https://x"),
        lambda: Handle("x", url="x:80"),
        lambda: Handle("x", url="http://x:99999"),
        lambda: Handle("x", missing_ok=True).options(timeout=0),
        lambda: Handle("x", missing_ok=True).options(shard_key="a\r\nb"),
    ],
)
def test_values_that_cannot_be_used_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        make()


async def test_a_value_without_json_is_a_type_error(there: Endpoint, handle: Handle) -> None:
    with pytest.raises(TypeError, match="expected arguments that have a JSON form"):
        await handle(object())
    with pytest.raises(TypeError, match=r"form: expected a value that has .* at \$\.a, found penstock\.END"):
        await handle(a=END)
    with pytest.raises(TypeError, match=r"at \$\.a, found a Handle: call it, and give the answer"):
        await handle(a=handle)
    assert there.requests == []


async def test_an_endpoint_that_is_not_there_is_a_key_error(
    there: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EndpointNotFound, match="found none of these"):
        Handle("x")
    monkeypatch.setenv("PENSTOCK_ENDPOINTS", json.dumps({"there": there.url}))
    assert await Handle("there")(1) == 1
    with pytest.raises(KeyError) as raised:
        Handle("x")
    assert str(raised.value).startswith(
        "expected one of the endpoints there of PENSTOCK_ENDPOINTS, found 'x'"
    )
    late = Handle("x", missing_ok=True)
    with pytest.raises(EndpointNotFound):
        await late(1)
    with pytest.raises(EndpointNotFound):
        await anext(late.options(stream=True)(1))
    monkeypatch.setenv("PENSTOCK_ENDPOINTS", "[]")
    with pytest.raises(ValueError, match="expected PENSTOCK_ENDPOINTS to be a JSON object"):
        Handle("there")


async def test_in_a_pod_the_clusters_dns_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_NAMESPACE", "models")
    with pytest.raises(EndpointNotFound, match=r"found no Service at x\.models\.svc"):
        Handle("x")
    with pytest.raises(EndpointNotFound, match=r"found no Service at x\.other\.svc"):
        await Handle("x", "other", missing_ok=True)(1)


def test_handles_in_init_kwargs() -> None:
    given = {"a": {"handle": "x"}, "b": [{"handle": "y", "namespace": "n"}], "c": {"handle": "z", "d": 1}}
    assert with_handles(given) == {
        "a": Handle("x", missing_ok=True),
        "b": [Handle("y", "n", missing_ok=True)],
        "c": {"handle": "z", "d": 1},
    }
    with pytest.raises(LoadError, match=r"initKwargs.a\[0\]: .*expected the endpoint's name, found 7"):
        with_handles({"a": [{"handle": 7}]})
