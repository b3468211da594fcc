"""`@penstock.batch` on a generator: each caller reads a stream of its own."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import penstock
from penstock.in_process import stream as stream_module

END = penstock.END


async def read(stream: Any) -> list[Any]:
    """All pieces, the last one in words where the stream raised."""
    pieces = []
    try:
        async for piece in stream:
            pieces.append(piece)
    except Exception as error:
        pieces.append(f"{type(error).__name__}: {error}")
    return pieces


async def read_all(function: Any, *items: Any) -> list[list[Any]]:
    """What each of these callers reads."""
    return await asyncio.gather(*(read(stream) for stream in [function(item) for item in items]))


def count(items: list[int]) -> Iterator[list[Any]]:
    """Each gets as many pieces as it asks for."""
    for step in range(max(items)):
        yield [step if step < item else END for item in items]


async def count_later(items: list[int]) -> AsyncIterator[list[Any]]:
    """As `count`, on the loop."""
    for step in count(items):
        yield step


@functools.wraps(count)
def wrapped(items: list[int]) -> Any:
    return count(items)


@functools.wraps(count_later)
def wrapped_later(items: list[int]) -> Any:
    return count_later(items)


@pytest.mark.parametrize("function", [count, count_later, wrapped, wrapped_later])
async def test_each_caller_reads_its_own_pieces(function: Any) -> None:
    """One run for all of them; who has `END` is ready, whatever stands in its slot later."""
    batched = penstock.batch(function)
    assert await read_all(batched, 1, 3, 2) == [[0], [0, 1, 2], [0, 1]]
    # Calls are made when they are written, so their batch forms also where they are read in turn.
    streams = [batched(2), batched(1)]
    assert [await read(stream) for stream in streams] == [[0, 1], [0]]


@pytest.mark.parametrize("end", [StopIteration, StopAsyncIteration, StopIteration(3)])
async def test_what_ends_a_stream_in_ray_serve_ends_it_here(end: Any) -> None:
    """It is never a piece."""

    @penstock.batch
    def generate(items: list[int]) -> Iterator[list[Any]]:
        yield items
        yield [end if item == 1 else item for item in items]
        yield [end, "more"]

    assert await read_all(generate, 1, 2) == [[1], [2, 2, "more"]]


async def test_all_pieces_come_as_they_are_made_and_none_is_one_of_them() -> None:
    made = asyncio.Queue[Any]()

    @penstock.batch
    async def generate(items: list[int]) -> AsyncIterator[list[Any]]:
        while (step := await made.get()) is not None:
            yield [step]

    stream = generate(0)
    for piece in ("a", 0, [None]):
        made.put_nowait(piece)
        assert await anext(stream) == piece
    made.put_nowait(None)
    assert await read(stream) == []
    assert await read(stream) == []


async def test_an_exception_in_a_slot_ends_that_stream_alone() -> None:
    @penstock.batch
    async def generate(items: list[int]) -> AsyncIterator[list[Any]]:
        yield ["a", "b"]
        yield [ValueError("mine"), "c"]
        yield ["ignored", "d"]

    assert await read_all(generate, 0, 0) == [["a", "ValueError: mine"], ["b", "c", "d"]]


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (["x"], "expected 2 entries in each step, found 1"),
        ("xy", "expected a list of 2 entries in each step, found str"),
    ],
)
async def test_a_step_of_the_wrong_length_is_an_error_in_each_open_stream(step: Any, said: str) -> None:
    """Those that have ended keep what they have."""

    @penstock.batch
    async def generate(items: list[int]) -> AsyncIterator[Any]:
        yield ["a", END]
        yield step

    first, second = await read_all(generate, 0, 0)
    assert second == []
    assert first[0] == "a"
    assert first[1].startswith("AnswerError: ")
    assert first[1].endswith(f"generate: {said}")


async def test_an_exception_is_in_band_once_a_stream_has_begun_and_searched_for_before() -> None:
    runs: list[list[str]] = []

    @penstock.batch
    async def generate(items: list[str]) -> AsyncIterator[list[str]]:
        runs.append(items)
        if "bad" in items:
            raise ValueError("first")
        yield items
        if "later" in items:
            raise KeyError("later")

    assert await read_all(generate, "a", "bad") == [["a"], ["ValueError: first"]]
    assert runs == [["a", "bad"], ["a"], ["bad"]]
    assert await read_all(generate, "a", "later") == [
        ["a", "KeyError: 'later'"],
        ["later", "KeyError: 'later'"],
    ]


async def endless(items: list[int]) -> AsyncIterator[list[int]]:
    """Never ends by itself."""
    step = 0
    while True:
        yield [step] * len(items)
        step += 1
        await asyncio.sleep(0)


@pytest.mark.parametrize("how", ["cancelled", "closed", "let go"])
async def test_a_reader_that_leaves_harms_nobody_and_the_last_one_ends_the_batch(how: str) -> None:
    closed = asyncio.Event()

    @penstock.batch
    async def generate(items: list[int]) -> AsyncIterator[list[int]]:
        try:
            async for step in endless(items):
                yield step
        finally:
            closed.set()

    stays, leaves = generate(0), generate(0)

    async def leave(stream: Any) -> None:
        await anext(stream)
        if how == "closed":
            await stream.aclose()
            assert await read(stream) == []
        elif how == "cancelled":
            task = asyncio.ensure_future(read(stream))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait((task,))

    await leave(leaves)
    del leaves
    gc.collect()
    assert [await anext(stays) for _ in range(3)] == [0, 1, 2]
    assert not closed.is_set()
    await leave(stays)
    del stays
    gc.collect()
    await closed.wait()


async def test_who_reads_too_slowly_is_cut_off_and_the_others_read_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_module, "MAX_UNREAD", 10)
    generate = penstock.batch(endless)
    fast, slow = generate(0), generate(0)
    assert [await anext(fast) for _ in range(20)] == list(range(20))
    assert (await read(slow))[0].startswith("SlowReader: expected at most 10 pieces unread, ")
    await fast.aclose()


async def test_a_blocking_generator_is_closed_in_its_thread_when_nobody_reads() -> None:
    closed_in: list[threading.Thread] = []
    closed = threading.Event()

    @penstock.batch
    def generate(items: list[int]) -> Iterator[list[int]]:
        try:
            while True:
                yield items
        finally:
            closed_in.append(threading.current_thread())
            closed.set()

    stream = generate(1)
    assert await anext(stream) == 1
    await stream.aclose()
    await asyncio.to_thread(closed.wait)
    assert closed_in[0] is not threading.current_thread()
    assert await anext(generate(2)) == 2


async def test_a_stream_has_one_reader_at_a_time() -> None:
    gate = asyncio.Event()

    @penstock.batch
    async def generate(items: list[int]) -> AsyncIterator[list[int]]:
        await gate.wait()
        yield items

    stream = generate(1)
    task = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="expected one reader of a stream at a time, found two"):
        await anext(stream)
    gate.set()
    assert await task == 1


async def test_a_deadline_is_for_the_first_piece() -> None:
    gate = asyncio.Event()

    @penstock.batch(timeout=0.02)
    async def generate(items: list[str]) -> AsyncIterator[list[Any]]:
        yield [item if item == "now" else END if item == "none" else None for item in items]
        await gate.wait()
        yield items

    @penstock.batch(timeout=0.02)
    async def never(items: list[str]) -> AsyncIterator[list[Any]]:
        await asyncio.Event().wait()
        yield items

    begun = generate("now")
    assert await anext(begun) == "now"
    (late,) = await read(never("x"))
    assert late.startswith("DeadlineExceeded: the deadline passed after 0.0")
    gate.set()
    assert await read(begun) == ["now"]


async def test_a_batch_whose_callers_leave_before_it_starts_frees_its_slot() -> None:
    runs: list[list[int]] = []

    @penstock.batch
    async def generate(items: list[int]) -> AsyncIterator[list[int]]:
        runs.append(items)
        yield items

    stream = generate(1)
    await asyncio.sleep(0)  # cut, and not begun
    await stream.aclose()
    assert await read(generate(2)) == [2]
    assert runs == [[2]]
