"""Calls through routers and sidecars: what they inherit, and that they end with their client."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import penstock
from penstock import Handle, call_context
from tests.support.composed import Composed
from tests.support.sidecar_process import until

MODULE = """
import asyncio, pathlib
import penstock


@penstock.backend
class Inner:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    @penstock.batched
    async def hang(self, items):
        (self.folder / "began").touch()
        try:
            await asyncio.Event().wait()
        finally:
            (self.folder / "gone").touch()

    @penstock.batched
    def inherited(self, items):
        context = penstock.context()
        return [[context.request_ids, context.seconds_left, context.headers.get("traceparent", "")[:35]]]

    @penstock.batched
    def fail(self, items):
        return [penstock.Response(409, body={"detail": "taken"}) for item in items]


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
    def blocking(self, methods):
        return [self.inner.options(method=method)(1).result() for method in methods]


"""


@pytest.fixture
async def outer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Handle]:
    (tmp_path / "two_hops.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import two_hops  # type: ignore[import-not-found]

    composed = Composed(tmp_path, tmp_path)
    try:
        await composed.start(two_hops.Outer.bind(two_hops.Inner.bind(str(tmp_path))))
        yield Handle("outer", url=composed.urls["outer"])
    finally:
        await composed.stop()
        del sys.modules["two_hops"]


async def exists(path: Path) -> bool:
    return path.exists()  # noqa: ASYNC240 - it blocks for microseconds


@pytest.mark.parametrize("method", ["__call__", "blocking"])
async def test_a_client_that_leaves_ends_the_call_downstream(
    outer: Handle, tmp_path: Path, method: str
) -> None:
    call = outer.options(method=method)("hang")
    await until(lambda: exists(tmp_path / "began"))
    call.cancel()
    await until(lambda: exists(tmp_path / "gone"))


async def test_id_deadline_and_trace_go_on(outer: Handle) -> None:
    trace = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"
    call_context.begin(
        ((b"x-request-id", b"r1"), (b"x-penstock-timeout-ms", b"9000"), (b"traceparent", trace))
    )
    for answer in (await outer("inherited"), await outer.blocking("inherited")):
        ids, left, parent = answer
        assert (ids, parent) == (["r1"], trace.decode()[:35])
        assert 0 < left < 9
    assert await outer("fail") == [409, "r1"]


async def test_an_error_that_a_method_does_not_catch_is_its_own(outer: Handle) -> None:
    with pytest.raises(penstock.UpstreamError, match="409 without a reason") as raised:
        await outer.blocking("fail")
    assert (raised.value.status, raised.value.reason) == (500, "model_failed")
