"""Calls that go round in a circle end with an error that has the circle, in a process and across several."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import CallCycle, Handle, call_chain, call_context
from penstock.testing import serving
from penstock_wire.call_chain import MAX_BYTES, chain_field, deepest, read_chain
from tests.support.processes.composed import Composed

MODULE = '''
import pathlib
import penstock


@penstock.backend
class Ping:
    """Calls on with one less, and at 0 answers; below 0 it never does."""

    def __init__(self, folder):
        # By itself: what is bound in a circle is refused before anything runs.
        self.pong, self.folder = penstock.Handle("pong", missing_ok=True), pathlib.Path(folder)

    async def __call__(self, left):
        with (self.folder / "calls").open("a") as calls:
            calls.write("x")
        return left if left == 0 else await self.pong(left - 1)


@penstock.backend(spec={"batching": {"maxConcurrentBatches": 64}})
class Pong:
    def __init__(self, ping):
        self.ping = ping

    @penstock.batched
    async def predict(self, lefts):
        return [await self.ping(left) for left in lefts]

    @penstock.batched
    async def stream(self, lefts):
        yield [await self.ping(left) for left in lefts]


app = Pong.bind(Ping.bind(str(pathlib.Path(__file__).parent)))
'''
ROUNDS = call_chain.MAX_REPEATS // 2


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "circle.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import circle  # type: ignore[import-not-found]

    yield circle.app
    del sys.modules["circle"]


@pytest.fixture(params=["in one process", "across processes"])
async def ping(
    request: pytest.FixtureRequest, app: Any, tmp_path: Path
) -> AsyncIterator[tuple[Handle, Handle]]:
    if request.param == "in one process":
        async with serving(app):
            yield Handle("ping"), Handle("pong")
        return
    processes = Composed(tmp_path, tmp_path)
    try:
        await processes.start(app)
        yield (
            Handle("ping", url=processes.urls["ping"]),
            Handle("pong", url=processes.urls["pong"]),
        )
    finally:
        await processes.stop()


async def test_a_circle_ends_with_its_chain_and_recursion_that_ends_does_not(
    ping: tuple[Handle, Handle], tmp_path: Path
) -> None:
    """The error is the same at its caller as where it was found, and each request makes few calls."""
    first, second = ping
    assert await first(ROUNDS) == 0
    circle = " → ".join(["ping", "pong"] * (ROUNDS + 1))
    calls = tmp_path / "calls"
    calls.unlink()
    with pytest.raises(
        CallCycle, match=f"found one that comes back for the 9th time .*: {circle} → ping"
    ) as end:
        await first(-1)
    assert (end.value.status, end.value.reason) == (508, "call_cycle")
    assert len(calls.read_text()) == ROUNDS + 1
    with pytest.raises(CallCycle, match="pong → ping → pong"):
        async for _ in second.options(stream=True).stream(-1):
            pass
    # A batch of several is searched: each has the error of its own circle, or its answer.
    answers = await asyncio.gather(*[second(left) for left in (1, -1, 2)], return_exceptions=True)
    assert answers[::2] == [0, 0]
    assert isinstance(answers[1], CallCycle)


async def test_calls_of_a_batch_in_process_go_on_with_the_longest_chain_of_their_callers() -> None:
    @penstock.batch
    async def chains(items: list[int]) -> list[tuple[str, ...]]:
        return [read_chain(call_chain.inherited()) for _ in items]

    async def call(*chain: str) -> tuple[str, ...]:
        if chain:
            call_context.begin(((b"x-penstock-call-chain", chain_field(chain)),))
        return await chains(0)

    assert await asyncio.gather(call("a"), call("b", "a"), call()) == [("b", "a")] * 3
    assert await asyncio.create_task(call()) == ()


async def test_a_clients_chain_ends_no_call_of_its_neighbours_in_process() -> None:
    """A chain near its limit is for itself alone, and a part of a batch that runs again has its own chain."""
    runs: list[tuple[list[int], tuple[str, ...]]] = []

    @penstock.batch
    async def chains(items: list[int]) -> list[int]:
        chain = call_chain.inherited()
        runs.append((items, read_chain(chain)))
        call_chain.longer(chain, "next", "")
        if len(items) > 1 and 3 in items:
            raise ValueError("a bad item")
        return items

    async def call(item: int, *chain: str) -> int:
        if chain:
            call_context.begin(((b"x-penstock-call-chain", chain_field(chain)),))
        return await chains(item)

    forged = ["a"] * (call_chain.MAX_REPEATS + 2)
    calls = [call(0, "b"), call(1, *forged), call(2), call(3, "c", "b"), call(4, *forged)]
    zero, one, *others = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(one, CallCycle)
    assert isinstance(others.pop(), CallCycle)
    assert [zero, *others] == [0, 2, 3]
    assert runs[0] == ([0, 2, 3], ("c", "b"))
    assert ([0, 2], ("b",)) in runs
    assert ([3], ("c", "b")) in runs
    assert all(set(items) <= {1, 4} for items, chain in runs if chain == tuple(forged))


@pytest.mark.parametrize(
    ("chain", "endpoint", "found"),
    [
        ("a, b", "c", None),
        ("a, b, a", "b", None),
        (", ".join(["a"] * call_chain.MAX_REPEATS), "a", None),
        (", ".join(["a"] * (call_chain.MAX_REPEATS + 1)), "a", "comes back for the 9th time"),
        (", ".join(f"a{number}" for number in range(31)), "b", None),
        (", ".join(f"a{number}" for number in range(32)), "b", "found one of 33: a0 → a1"),
        ("no chain; of, ours!", "c", None),
    ],
)
def test_a_chain_may_come_back_a_few_times(chain: str, endpoint: str, found: str | None) -> None:
    if found is not None:
        with pytest.raises(CallCycle, match=found):
            call_chain.longer(chain.encode(), endpoint, "")
        return
    before = chain.split(", ") if "!" not in chain else []
    assert read_chain(call_chain.longer(chain.encode(), endpoint, "")) == (*before, endpoint)


def test_the_namespace_is_part_of_an_endpoints_name() -> None:
    assert call_chain.longer(b"a.x", "a", "y") == b"a.x, a.y"


def test_of_several_chains_the_deepest_counts_and_what_is_none_is_ignored() -> None:
    assert deepest([b"a", b"c, b", b"a, b"]) == b"c, b"
    # A client's nonsense takes no other's chain away, which would never end then.
    assert deepest([b"a, b", b"A,,,,,", b"a," * MAX_BYTES]) == b"a, b"
    assert [read_chain(field) for field in (None, b"", b"a,", b"a" * (MAX_BYTES + 1), "ä".encode())] == [
        ()
    ] * 5
