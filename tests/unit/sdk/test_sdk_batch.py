"""`@penstock.batch`: calls in a process, batched by the sidecar's queue and rules."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import gc
import pickle
import threading
from collections import UserList
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.in_process.settings import BatchSettings


class Gate:
    """A model that keeps each batch until it is opened, and records what it got."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.open = asyncio.Event()
        self.came = asyncio.Condition()

    async def run(self, items: list[Any]) -> list[Any]:
        """Answer each item with itself."""
        self.batches.append(items)
        async with self.came:
            self.came.notify_all()
        await self.open.wait()
        return items

    async def until(self, count: int) -> None:
        """Wait until so many batches have come."""
        async with self.came:
            await self.came.wait_for(lambda: len(self.batches) >= count)


async def called(function: Callable[[Any], Any], *items: Any) -> list[asyncio.Task[Any]]:
    """Tasks that have made their calls."""
    tasks = [asyncio.create_task(function(item)) for item in items]
    await asyncio.sleep(0)
    return tasks


async def outcomes(function: Callable[[Any], Any], *items: Any) -> list[Any]:
    """What each call got: its answer, or what it raised in words."""
    results = await asyncio.gather(*(function(item) for item in items), return_exceptions=True)
    return [f"{type(each).__name__}: {each}" if isinstance(each, BaseException) else each for each in results]


async def test_late_binding_fills_the_next_batch_while_one_runs() -> None:
    """What came first goes at once; all that comes meanwhile is the next batch, of the size that is set."""
    gate = Gate()
    batched = penstock.batch(max_batch_size=3)(gate.run)
    first = await called(batched, 0)
    await gate.until(1)
    rest = await called(batched, *range(1, 6))
    assert gate.batches == [[0]]
    gate.open.set()
    assert await asyncio.gather(*first, *rest) == [0, 1, 2, 3, 4, 5]
    assert gate.batches == [[0], [1, 2, 3], [4, 5]]


async def test_as_many_batches_at_once_as_are_set_also_while_they_run() -> None:
    gate = Gate()
    batched = penstock.batch(max_batch_size=1, max_concurrent_batches=2)(gate.run)
    tasks = await called(batched, 1, 2, 3, 4)
    await gate.until(2)
    assert gate.batches == [[1], [2]]
    batched.configure(max_concurrent_batches=3)
    await gate.until(3)
    batched.configure(max_batch_size=8)
    gate.open.set()
    assert await asyncio.gather(*tasks) == [1, 2, 3, 4]


@pytest.mark.parametrize("full", [False, True])
async def test_a_part_full_batch_waits_where_it_shall_and_a_full_one_does_not(full: bool) -> None:
    """Waiting ends when the batch is full, or by itself; here the timeout outlasts the test."""
    gate = Gate()
    gate.open.set()
    batched = penstock.batch(max_batch_size=2, batch_wait_timeout=3600)(gate.run)
    (task,) = await called(batched, 1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert gate.batches == []
    if full:
        assert await batched(2) == 2
    else:
        batched.configure(batch_wait_timeout=0)
    assert await task == 1
    assert gate.batches == [[1, 2] if full else [1]]


async def test_the_wait_ends_by_itself() -> None:
    gate = Gate()
    gate.open.set()
    assert await penstock.batch(max_batch_size=2, batch_wait_timeout=0.01)(gate.run)(1) == 1


class Adder:
    """Methods of all kinds; two instances never share a batch."""

    def __init__(self, plus: int) -> None:
        self.plus = plus
        self.batches: list[Any] = []
        self.threads: list[threading.Thread] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Adder)

    __hash__ = None  # type: ignore[assignment]

    @penstock.batch
    async def add(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        return [item + self.plus for item in items]

    @penstock.batch(max_batch_size=8)
    def block(self, items: list[int]) -> list[int]:
        self.threads.append(threading.current_thread())
        return [item + self.plus for item in items]

    @penstock.batch
    async def columns(self, a: list[int], b: list[int], *, c: list[int]) -> list[str]:
        self.batches.append((a, b, c))
        return [f"{x} {y} {z}" for x, y, z in zip(a, b, c, strict=True)]

    @penstock.batch
    async def default(self, item: list[int], other: Any = 7) -> list[Any]:
        return list(zip(item, other, strict=True))

    @staticmethod
    @penstock.batch
    async def free(items: list[int]) -> list[int]:
        return items


async def test_each_instance_has_a_queue_of_its_own() -> None:
    by_one, by_ten = Adder(1), Adder(10)
    sums = await asyncio.gather(by_one.add(1), by_ten.add(1), by_one.add(2), Adder.add(by_one, 3))
    assert sums == [2, 11, 3, 4]
    assert (by_one.batches, by_ten.batches) == ([[1, 2, 3]], [[1]])
    assert await asyncio.gather(Adder.free(1), by_one.free(2)) == [1, 2]
    twin = copy.copy(by_one)
    twin.plus = 100
    assert await twin.add(1) == 101


async def test_an_instance_goes_with_its_queue() -> None:
    """Neither the queue nor its batches keep an instance, and none has the queue of one that is gone."""
    adder = Adder(1)
    number = id(adder)
    adder.add.configure(max_batch_size=5.0)  # type: ignore[typeddict-item] # as of a division
    assert repr(adder.add.settings.max_batch_size) == "5"
    assert await adder.add(1) == 2
    del adder
    await asyncio.sleep(0)  # the batch's task ends
    gc.collect()
    assert number not in Adder.add._instances
    assert Adder(2).add.settings.max_batch_size == 32


async def test_blocking_code_runs_in_a_thread() -> None:
    adder = Adder(1)
    assert await asyncio.gather(adder.block(1), adder.block(2)) == [2, 3]
    assert threading.current_thread() not in adder.threads
    assert len(adder.threads) == 1


async def test_several_parameters_get_a_list_each() -> None:
    """By position and by name; an argument that is left out has the parameter's default."""
    adder = Adder(0)
    sums = await asyncio.gather(adder.columns(1, 2, c=3), adder.columns(b=5, a=4, c=6))
    assert sums == ["1 2 3", "4 5 6"]
    assert adder.batches == [([1, 4], [2, 5], [3, 6])]
    assert await asyncio.gather(adder.default(1), adder.default(2, other=3)) == [(1, 7), (2, 3)]
    with pytest.raises(TypeError, match=r"Adder.columns\(a.*missing a required argument: 'b'"):
        adder.columns(1, c=2)
    with pytest.raises(TypeError, match=r"Adder.add: expected an instance, found none"):
        Adder.add()


@pytest.mark.parametrize("answers", [(1, 2), UserList([1, 2]), np.array([1, 2])])
async def test_answers_may_be_any_sequence_or_array(answers: Any) -> None:
    async def run(items: list[int]) -> Any:
        return answers

    assert await outcomes(penstock.batch(run), 0, 0) == [1, 2]


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([], "expected 1 answers, found 0"),
        ([1, 2, 3, 4], "expected 1 answers, found 4"),
        ({1: 2, 3: 4}, "expected a list of 1 answers, found dict"),
        ("ab", "expected a list of 1 answers, found str"),
        (None, "expected a list of 1 answers, found NoneType"),
        (np.array(3), "expected a list of 1 answers, found one value"),
        ([penstock.END], "expected penstock.END in what a generator yields, found it as answer 0"),
    ],
)
async def test_wrong_answers_are_the_error_of_the_call_that_causes_them(answers: Any, said: str) -> None:
    @penstock.batch
    async def wrong(items: list[int]) -> Any:
        return answers if 7 in items else items

    results = await outcomes(wrong, 1, 7, 2)
    assert (results[0], results[2]) == (1, 2)
    assert results[1].startswith("AnswerError: ")
    assert results[1].endswith(f"wrong: {said}")


async def test_an_exception_in_a_slot_is_that_callers_alone() -> None:
    runs: list[list[int]] = []

    @penstock.batch
    async def odd(items: list[int]) -> list[Any]:
        runs.append(items)
        return [ValueError(f"even: {item}") if item % 2 == 0 else item for item in items]

    assert await outcomes(odd, 1, 2, 3) == [1, "ValueError: even: 2", 3]
    assert runs == [[1, 2, 3]]


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("error", [ValueError, StopIteration, SystemExit, asyncio.CancelledError])
async def test_who_makes_a_batch_raise_is_found_and_the_others_have_their_answers(
    blocking: bool, error: type[BaseException]
) -> None:
    """Also what raises a StopIteration, which no future and no thread can carry, or what is no Exception."""
    runs: list[list[int]] = []

    def check(items: list[int]) -> list[int]:
        runs.append(items)
        if 5 in items:
            raise error(f"bad in {len(items)}")
        return items

    async def check_later(items: list[int]) -> list[int]:
        return check(items)

    batched = penstock.batch(check if blocking else check_later)
    results = await outcomes(batched, *range(8))
    assert results[:5] + results[6:] == [0, 1, 2, 3, 4, 6, 7]
    assert results[5].startswith(
        "ValueError: bad in 1" if error is ValueError else ("RuntimeError: ", "Panic: ")
    )
    assert runs[0] == list(range(8))
    assert [5] in runs


async def test_without_isolation_a_batch_runs_once() -> None:
    runs = 0

    @penstock.batch(isolate=False)
    async def bad(items: list[int]) -> list[int]:
        nonlocal runs
        runs += 1
        raise KeyError("all")

    assert await outcomes(bad, 1, 2) == ["KeyError: 'all'"] * 2
    assert runs == 1


async def test_where_bad_calls_keep_coming_batches_get_smaller() -> None:
    """As in the sidecar: many bad calls among good ones do not cost a search of a whole batch each time."""
    runs: list[int] = []

    @penstock.batch(max_batch_size=32)
    async def check(items: list[int]) -> list[int]:
        runs.append(len(items))
        if any(item % 4 == 0 for item in items):
            raise ValueError("bad")
        return items

    for _ in range(4):
        results = await outcomes(check, *range(64))
        assert [each for each in results if isinstance(each, int)] == [i for i in range(64) if i % 4]
    runs.clear()
    await outcomes(check, *range(64))
    assert max(runs) < 8


async def test_who_leaves_the_queue_is_not_run() -> None:
    gate = Gate()
    batched = penstock.batch(max_batch_size=2)(gate.run)
    running = await called(batched, 0)
    await gate.until(1)
    tasks = await called(batched, 1, 2, 3)
    tasks[1].cancel()
    gate.open.set()
    assert await asyncio.gather(*running, tasks[0], tasks[2]) == [0, 1, 3]
    assert gate.batches == [[0], [1, 3]]


@pytest.mark.parametrize("all_leave", [False, True])
async def test_a_batch_is_cancelled_when_all_its_callers_have_left(all_leave: bool) -> None:
    """Then its slot is free at once; while one waits the batch goes on."""
    gate = Gate()
    batched = penstock.batch(gate.run)
    tasks = await called(batched, 1, 2)
    await gate.until(1)
    for task in tasks if all_leave else tasks[:1]:
        task.cancel()
    await asyncio.wait(tasks if all_leave else tasks[:1])
    after = await called(batched, 3)
    if all_leave:
        await gate.until(2)
    gate.open.set()
    assert await after[0] == 3
    assert gate.batches == [[1, 2], [3]]
    assert all_leave or await tasks[1] == 2


async def test_a_thread_keeps_its_slot_until_it_ends() -> None:
    """It cannot be stopped, so the next batch waits for it though nobody does."""
    began, go = threading.Event(), threading.Event()
    batches: list[list[int]] = []

    @penstock.batch
    def slow(items: list[int]) -> list[int]:
        batches.append(items)
        began.set()
        go.wait()
        return items

    (task,) = await called(slow, 1)
    await asyncio.to_thread(began.wait)
    task.cancel()
    (after,) = await called(slow, 2)
    for _ in range(5):
        await asyncio.sleep(0)
    assert batches == [[1]]
    go.set()
    assert await after == 2


@pytest.mark.parametrize("where", ["in the queue", "with its batch"])
async def test_a_call_that_is_not_answered_in_time_says_where_it_was(where: str) -> None:
    gate = Gate()
    batched = penstock.batch(max_batch_size=1)(gate.run)
    ahead = await called(batched, 0) if where == "in the queue" else []
    if ahead:
        await gate.until(1)
    batched.configure(timeout=0.02)
    with pytest.raises(penstock.DeadlineExceeded, match=f"the deadline passed after [0-9.]+ s {where}"):
        await batched(1)
    batched.configure(timeout=None)
    gate.open.set()
    assert [await task for task in ahead] == [0] * len(ahead)
    assert await batched(2) == 2


async def test_a_call_that_would_be_late_gives_way_to_those_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the sidecar: the head of the queue holds nobody up where its answer would come too late."""
    clock = [1000.0]
    monkeypatch.setattr("penstock.in_process.batcher.time.monotonic", lambda: clock[0])
    gate = Gate()

    @penstock.batch(max_batch_size=2)
    async def run(items: list[int]) -> list[int]:
        results = await gate.run(items)
        clock[0] += 1.0  # what a batch takes
        return results

    gate.open.set()
    await run(-1)
    gate.open.clear()
    tasks = await called(run, 0)
    await gate.until(2)
    run.configure(timeout=1.5)
    tasks += await called(run, 1)
    clock[0] += 0.2
    run.configure(timeout=100)
    tasks += await called(run, 2, 3)
    gate.open.set()
    late = (await asyncio.gather(*tasks, return_exceptions=True))[1]
    assert isinstance(late, penstock.DeadlineExceeded)
    assert "its batch takes 1." in str(late)
    assert gate.batches == [[-1], [0], [2, 3]]


async def test_a_batch_does_not_run_in_the_context_of_one_of_its_callers() -> None:
    """What one caller has set for itself is not seen by the code that works for others as well."""
    name = contextvars.ContextVar("name", default="nobody")
    seen: list[str] = []

    @penstock.batch
    async def look(items: list[int]) -> list[int]:
        seen.append(name.get())
        return items

    async def caller(item: int) -> int:
        name.set(f"caller {item}")
        await look(item)
        return int(name.get().removeprefix("caller "))

    assert await asyncio.gather(caller(1), caller(2)) == [1, 2]
    assert seen == ["nobody"]


@penstock.batch
async def module_level(items: list[int]) -> list[int]:
    """Echo."""
    return items


def test_it_works_in_one_loop_after_another_and_pickles_by_name() -> None:
    for _ in range(2):
        assert asyncio.run(outcomes(module_level, 1, 2)) == [1, 2]
    assert len(module_level._own._batchers) == 1
    assert pickle.loads(pickle.dumps(penstock.END)) is penstock.END  # noqa: S301 - our own bytes
    assert module_level.__doc__ == "Echo."
    assert copy.deepcopy(module_level) is module_level
    adder = Adder(1)
    assert adder.add.__reduce__() == (getattr, (adder, "add"))


@penstock.batch
async def streamed(items: list[int]) -> AsyncIterator[list[int]]:
    """Echo, in one piece."""
    yield items


async def test_a_stream_is_neither_pickled_nor_copied() -> None:
    stream = streamed(1)
    for act in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="a stream cannot be pickled: read it, and pickle its pieces"):
            act(stream)
    assert [piece async for piece in stream] == [1]


async def test_what_ends_the_loop_ends_its_callers_too() -> None:
    """A batch that is cancelled from outside leaves no caller waiting."""

    @penstock.batch
    async def cancelled(items: list[int]) -> list[int]:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return items

    with pytest.raises(asyncio.CancelledError):
        await cancelled(1)


async def test_settings_change_for_one_instance_or_for_all() -> None:
    first, second = Adder(1), Adder(2)
    first.add.configure(max_batch_size=3)
    assert (first.add.settings.max_batch_size, second.add.settings.max_batch_size) == (3, 32)
    Adder.add.configure(batch_wait_timeout=0.5)
    assert first.add.settings == BatchSettings(max_batch_size=3, batch_wait_timeout=0.5)
    assert second.add.settings == Adder(3).add.settings == BatchSettings(batch_wait_timeout=0.5)
    Adder.add.configure(batch_wait_timeout=0)


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        (
            {"max_batch_size": 0},
            ValueError,
            "max_batch_size to be an integer of at least 1, found 0",
        ),
        ({"max_batch_size": 2.5}, TypeError, "max_batch_size to be an integer of at least 1, found 2.5"),
        ({"max_batch_size": True}, TypeError, "found True"),
        ({"max_concurrent_batches": 65}, ValueError, "expected .* an integer from 1 to 64, found 65"),
        ({"batch_wait_timeout": -1}, ValueError, "batch_wait_timeout to be 0 or more seconds, found -1"),
        ({"batch_wait_timeout": float("nan")}, ValueError, "found nan"),
        ({"batch_wait_timeout": "5ms"}, TypeError, "found '5ms'"),
        ({"timeout": 0}, ValueError, "expected timeout to be more than 0 seconds, found 0"),
        ({"isolate": 1}, TypeError, "expected isolate to be True or False, found 1"),
        ({"max_batchsize": 3}, TypeError, "found max_batchsize: did you mean max_batch_size"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=f"penstock.batch: .*{said}"):
        penstock.batch(**settings)
    with pytest.raises(error, match=said):
        module_level.configure(**settings)


def test_what_cannot_be_batched_is_refused_where_it_stands() -> None:
    def nothing() -> list[int]:
        return [1]

    with pytest.raises(TypeError, match="expected a function or a method, found <class 'int'>"):
        penstock.batch(int)
    with pytest.raises(TypeError, match=r"a parameter for each list and no \*args, found .*nothing\(\)"):
        penstock.batch(nothing)
    with pytest.raises(TypeError, match=r"no \*args, found .*<lambda>\(\*a\)"):
        penstock.batch(lambda *a: a)

    class Slotted:
        __slots__ = ()

        @penstock.batch
        async def run(self, items: list[int]) -> list[int]:
            return items

    with pytest.raises(TypeError, match='found Slotted; add "__weakref__" to its __slots__'):
        Slotted().run  # noqa: B018 - the access is what is refused
