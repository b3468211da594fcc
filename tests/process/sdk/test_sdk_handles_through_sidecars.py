"""Calls through routers and sidecars: what they inherit, and that they end with their client."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import penstock
from penstock import Handle, call_context
from tests.support.processes.composed import Composed
from tests.support.processes.sidecar_process import until

MODULE = """
import asyncio, pathlib
import penstock


class Missing(KeyError):
    pass


@penstock.backend
class Inner:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    @penstock.batched
    async def hang(self, items):
        (self.folder / "hangs").touch()
        try:
            while not (self.folder / "open").exists():
                await asyncio.sleep(0.01)
            return items
        finally:
            (self.folder / "hangs").unlink()

    @penstock.batched
    def block(self, items):
        return items

    @penstock.batched
    async def count(self, items):
        try:
            while True:
                yield items
                await asyncio.sleep(0.01)
        finally:
            (self.folder / "gone").touch()

    @penstock.batched
    async def inherited(self, items):
        context = penstock.context()
        trace = context.headers.get("traceparent", "")[:35]
        return [[context.request_ids, context.seconds_left, trace, context.batch_limit]]

    @penstock.multiplexed(max_models=2)
    async def weights(self, model_id):
        return model_id.upper()

    @penstock.batched
    async def predict(self, items):
        model = await self.weights(penstock.context().model_id)
        return [model + item for item in items]

    @penstock.batched
    async def fail(self, items):
        return [penstock.Response(409, body={"detail": "taken"}) for item in items]

    @penstock.batched
    def look_up(self, items):
        raise Missing(items[0])


@penstock.backend
class Outer:
    def __init__(self, inner):
        self.inner = inner

    async def __call__(self, method):
        try:
            return await getattr(self.inner, method)(1)
        except penstock.UpstreamError as error:
            return [error.status, error.request_id]

    @penstock.batched
    async def stream(self, items):
        async for piece in self.inner.options(stream=True).count(items[0]):
            yield [piece]


@penstock.backend
class Blocking:
    def __init__(self, inner, outer):
        self.inner = inner

    def __call__(self, method):
        return self.inner.options(method=method)(1).result()


inner = Inner.bind(str(pathlib.Path(__file__).parent))
app = Blocking.bind(inner, Outer.bind(inner))
"""


GIVEN_UP_SECONDS = 15
"""Less than the 30 s after which an endpoint gives a call up by itself."""


@pytest.fixture
async def composed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Composed]:
    (tmp_path / "two_hops.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import two_hops  # type: ignore[import-not-found]

    processes = Composed(tmp_path, tmp_path)
    try:
        await processes.start(two_hops.app)
        yield processes
    finally:
        await processes.stop()
        del sys.modules["two_hops"]


@pytest.fixture
def outer(composed: Composed) -> Handle:
    return Handle("outer", url=composed.urls["outer"])


async def is_gone(path: Path) -> bool:
    return not await exists(path)


async def exists(path: Path) -> bool:
    return path.exists()  # noqa: ASYNC240 - it blocks for microseconds


async def test_a_call_that_is_given_up_leaves_the_queue_downstream(
    composed: Composed, tmp_path: Path
) -> None:
    inner = Handle("inner", url=composed.urls["inner"])
    ahead = inner.hang(1)
    await until(lambda: exists(tmp_path / "hangs"), seconds=GIVEN_UP_SECONDS)  # or all three may be one batch

    async def waiting(count: int) -> bool:
        return await composed.queued("inner") == count

    behind = [inner.hang(2), inner.hang(3)]
    await until(lambda: waiting(2), seconds=GIVEN_UP_SECONDS)
    behind[0].cancel()
    await until(lambda: waiting(1), seconds=GIVEN_UP_SECONDS)
    (tmp_path / "open").touch()
    assert (await ahead, await behind[1]) == (1, 3)


async def test_a_call_that_is_given_up_ends_with_the_model_two_hops_down(
    composed: Composed, outer: Handle, tmp_path: Path
) -> None:
    """Alone in its batch, and as the last of one, beside methods that block; the place is free at once."""
    inner = Handle("inner", url=composed.urls["inner"])
    for client, arguments in ((outer, ("hang",)), (inner.hang, (1,))):
        call = client(*arguments)
        await until(lambda: exists(tmp_path / "hangs"), seconds=GIVEN_UP_SECONDS)
        call.cancel()
        await until(lambda: is_gone(tmp_path / "hangs"), seconds=GIVEN_UP_SECONDS)
    assert await inner.inherited(1)


async def test_each_of_many_models_gets_its_own_requests(composed: Composed) -> None:
    """Also alone in a batch, and the class's default method."""
    inner = Handle("inner", url=composed.urls["inner"])
    by_model = {model_id: inner.options(model_id=model_id) for model_id in "abc"}
    assert await by_model["a"]("1") == "A1"
    calls = [by_model[model_id](number) for number in "123" for model_id in "abc"]
    assert [await call for call in calls] == [f"{each}{number}" for number in "123" for each in "ABC"]


async def test_a_reader_that_leaves_ends_a_stream_through_two_hops(outer: Handle, tmp_path: Path) -> None:
    stream = outer.options(stream=True).stream(7)
    assert await anext(stream) == 7
    await stream.aclose()
    await until(lambda: exists(tmp_path / "gone"), seconds=GIVEN_UP_SECONDS)


async def test_id_deadline_and_trace_go_on_and_errors_come_back(composed: Composed, outer: Handle) -> None:
    trace = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"
    call_context.begin(
        ((b"x-request-id", b"r1"), (b"x-penstock-timeout-ms", b"9000"), (b"traceparent", trace))
    )
    blocking = Handle("blocking", url=composed.urls["blocking"])
    for answer in (await outer("inherited"), await blocking("inherited")):
        ids, left, parent, limit = answer
        assert (ids, parent, limit) == (["r1"], trace.decode()[:35], 32)
        assert 0 < left < 9
    assert await outer("fail") == [409, "r1"]
    with pytest.raises(penstock.UpstreamError, match="409 without a reason") as raised:
        await blocking("fail")  # which does not catch it
    assert (raised.value.status, raised.value.reason, raised.value.request_id) == (500, "model_failed", "r1")
    with pytest.raises(KeyError) as missing:  # of a batch, two hops down
        await blocking("look_up")
    assert isinstance(missing.value, penstock.UpstreamError)
    assert isinstance(missing.value, sys.modules["two_hops"].Missing)
