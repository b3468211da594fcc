"""`penstock.Batcher`: calls from threads share batches of any model."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import penstock
from penstock import AnswerError, Batcher

THREADS = 16


class Gate:
    """A model whose first batch waits, so that what is called meanwhile shares the next batches."""

    def __init__(self, run_batch: Callable[..., Any]) -> None:
        self._run_batch = run_batch
        self.batches: list[Any] = []
        self.began = threading.Event()
        self.open = threading.Event()

    def run_batch(self, text: list[Any], **others: list[Any]) -> Any:
        self.batches.append((text, others) if others else text)
        self.began.set()
        assert self.open.wait(30)
        return self._run_batch(text, **others)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(THREADS) as pool:
        yield pool


def begin(
    threads: ThreadPoolExecutor, batcher: Batcher, model: Gate, *calls: tuple[Any, dict[str, Any]]
) -> list[Future[Any]]:
    """Make the first call and wait until it is with the model, then the others in their order."""
    made = []
    for number, (item, named) in enumerate(calls):
        made.append(threads.submit(batcher.run, item, **named))
        assert model.began.wait(30)
        while len(batcher._queue) < number:
            time.sleep(0)
    return made


def outcome(call: Future[Any]) -> Any:
    error = call.exception(30)
    return call.result() if error is None else f"{type(error).__name__}: {error}"


def test_calls_that_come_while_the_model_runs_share_the_next_batch(threads: ThreadPoolExecutor) -> None:
    """In their order, at most `batch_size`; by position and by name, with the model's own defaults."""
    batches: list[Any] = []

    class Model:
        def run(self, text: str, mark: str = "!", *, times: int = 0) -> str:
            raise AssertionError

        def run_batch(self, text: list[str], mark: list[str], **others: list[int]) -> list[str]:
            batches.append(text)
            began.set()
            assert go.wait(30)
            return [a + b * c for a, b, c in zip(text, mark, others["times"], strict=True)]

    began, go = threading.Event(), threading.Event()
    batcher = Batcher(Model(), batch_size=2)
    calls = [threads.submit(batcher.run, "a")]
    began.wait(30)
    for more in ({"times": 1}, {"times": 2, "mark": "?"}, {}):
        calls.append(threads.submit(batcher.run, text="b", **more))
        while len(batcher._queue) < len(calls) - 1:
            time.sleep(0)
    with pytest.raises(TypeError, match="missing a required argument: 'text'"):
        batcher.run(mark="?")
    go.set()
    assert [outcome(call) for call in calls] == ["a", "b!", "b??", "b"]
    assert batches == [["a"], ["b", "b"], ["b"]]


def test_calls_from_many_threads_get_their_own_answers(threads: ThreadPoolExecutor) -> None:
    """None is lost or mixed up, also of bad ones: whoever leads, and however calls come."""

    class Model:
        def run_batch(self, number: list[int]) -> list[int]:
            sizes.append(len(number))
            time.sleep(0)  # lets other threads call
            if any(each % 7 == 3 for each in number):
                raise ValueError(number)
            return [each * 2 for each in number]

    sizes: list[int] = []
    batcher = Batcher(Model(), batch_size=5)

    def many(first: int) -> list[Any]:
        answers: list[Any] = []
        for number in range(first, 800, THREADS):
            try:
                answers.append(batcher.run(number))
            except ValueError as error:
                answers.append(error.args)
        return answers

    for first, answers in enumerate(threads.map(many, range(THREADS))):
        expected = [([number],) if number % 7 == 3 else number * 2 for number in range(first, 800, THREADS)]
        assert answers == expected
    assert 1 < max(sizes) <= 5


def test_a_model_that_has_only_run_is_called_for_each(threads: ThreadPoolExecutor) -> None:
    """An exception is that of its own call."""

    class Model:
        def run(self, text: str, *, mark: str = "!") -> str:
            if not text:
                raise ValueError("no text")
            return text + mark

    batcher = Batcher(Model(), batch_size=8)
    calls = [threads.submit(batcher.run, *args, **named) for args, named in [
        (("a",), {}), (("",), {}), ((), {"text": "b", "mark": "?"}),
    ]]  # fmt: skip
    assert [outcome(call) for call in calls] == ["a!", "ValueError: no text", "b?"]


def test_what_a_batch_has_once_is_equal_for_all_its_calls(threads: ThreadPoolExecutor) -> None:
    """A keyword-only parameter of `run_batch`; values whose `==` has no truth share a batch with none."""

    class Unclear:
        def __eq__(self, other: object) -> bool:
            raise ValueError("the truth of an array is ambiguous")

    class Model(Gate):
        def run_batch(self, text: list[str], *, heat: Any = 0.0) -> list[Any]:
            self.batches.append(("".join(text), heat))
            return super().run_batch(text)

    model = Model(lambda text: text)
    batcher = Batcher(model, batch_size=8)
    one, other = Unclear(), Unclear()
    heats = [0.0, 0.5, 0.0, 0.5, 1, True, one, other, one]
    calls = begin(
        threads, batcher, model, *(("abcdefghi"[n], {"heat": heat}) for n, heat in enumerate(heats))
    )
    model.open.set()
    assert [outcome(call) for call in calls] == list("abcdefghi")
    batches = [each for each in model.batches if isinstance(each, tuple)]
    assert [text for text, _ in batches] == ["a", "bd", "c", "e", "f", "gi", "h"]


def test_calls_with_other_names_of_arguments_share_no_batch(threads: ThreadPoolExecutor) -> None:
    """Where `run_batch` takes any names and no `run` has defaults for them."""
    model = Gate(lambda text, **_: text)
    batcher = Batcher(model, batch_size=8)
    calls = begin(threads, batcher, model, ("a", {}), ("b", {"k": 1}), ("c", {}), ("d", {"k": 2}))
    model.open.set()
    assert [outcome(call) for call in calls] == ["a", "b", "c", "d"]
    assert model.batches == [["a"], (["b", "d"], {"k": [1, 2]}), ["c"]]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda text: [ValueError("mine") if each == "c" else each for each in text], "ValueError: mine"),
        (lambda text: [SystemExit(3) if each == "c" else each for each in text], "Panic: SystemExit: 3"),
        (
            lambda text: [each for each in text if each != "c"],
            "AnswerError: run_batch: expected 1 answers, found 0",
        ),
        (
            lambda text: text if "c" not in text else next(iter(())),
            "RuntimeError: the batch raised StopIteration",
        ),
    ],
)
def test_a_bad_call_fails_alone(
    threads: ThreadPoolExecutor, answer: Callable[[Any], Any], expected: str
) -> None:
    """However it fails: as an answer, by the wrong number of answers, by an exception of the batch."""
    model = Gate(answer)
    batcher = Batcher(model, batch_size=8)
    calls = begin(threads, batcher, model, *((text, {}) for text in "abcde"))
    model.open.set()
    assert [outcome(call) for call in calls] == ["a", "b", expected, "d", "e"]
    assert model.batches[:2] == [["a"], ["b", "c", "d", "e"]]


def test_a_batcher_that_is_stopped_begins_no_batch(threads: ThreadPoolExecutor) -> None:
    """Calls that wait, and later ones, are interrupted; what runs is answered, and `stop` waits for that."""
    model = Gate(lambda text: text)
    batcher = Batcher(model, batch_size=1)
    calls = begin(threads, batcher, model, ("a", {}), ("b", {}), ("c", {}))
    stopped = threads.submit(batcher.stop)
    for call in calls[1:]:
        with pytest.raises(InterruptedError, match="was stopped before this call's batch began"):
            call.result(30)
    assert not stopped.done()
    model.open.set()
    stopped.result(30)
    assert outcome(calls[0]) == "a"
    with pytest.raises(InterruptedError, match="found a stopped one"):
        batcher.run("d")
    batcher.stop()


def test_a_model_may_stop_its_batcher_and_may_not_wait_for_itself() -> None:
    class Model:
        def run(self, text: str) -> str:
            with pytest.raises(RuntimeError, match="found one that waits for itself"):
                batcher.run("b")
            batcher.stop()
            return text

    batcher = Batcher(Model(), batch_size=2)
    assert batcher.run("a") == "a"


def test_calls_outlive_an_interrupt_in_the_thread_that_leads(threads: ThreadPoolExecutor) -> None:
    """Those of its batch raise, the others go on."""

    def interrupted(text: list[str]) -> list[str]:
        if "c" in text:
            raise KeyboardInterrupt
        return text

    model = Gate(interrupted)
    batcher = Batcher(model, batch_size=2)
    calls = begin(threads, batcher, model, *((text, {}) for text in "abcde"))
    model.open.set()
    assert calls[0].result(30) == "a"
    with pytest.raises(KeyboardInterrupt):
        calls[1].result(30)
    with pytest.raises(InterruptedError, match="was interrupted in its thread"):
        calls[2].result(30)
    assert [outcome(call) for call in calls[3:]] == ["d", "e"]


def test_a_part_full_batch_may_wait_for_more(threads: ThreadPoolExecutor) -> None:
    """It goes when it is full, when its time is over, and not at all if the batcher is stopped."""

    class Model:
        def run_batch(self, *, text: list[str]) -> list[int]:  # none is beside it, so it gets a list
            return [len(text) for _ in text]

    assert Batcher(Model(), 2, batch_collect_delay_s=0.01).run(text="a") == 1
    batcher = Batcher(Model(), 2, batch_collect_delay_s=3600)
    assert [outcome(call) for call in [threads.submit(batcher.run, text=text) for text in "ab"]] == [2, 2]
    alone = threads.submit(batcher.run, text="a")
    while batcher._came is None:
        time.sleep(0)
    batcher.stop()
    with pytest.raises(InterruptedError):
        alone.result(30)


def test_it_has_no_thread_of_its_own_and_nothing_is_left_of_it() -> None:
    class Model:
        def run(self, text: str) -> str:
            return threading.current_thread().name

    model = Model()
    before = threading.enumerate()
    batcher, gone = Batcher(model, batch_size=2), weakref.ref(model)
    assert batcher.run("a") == threading.current_thread().name
    assert threading.enumerate() == before
    del batcher, model
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Batcher("name", 3), "a model with run_batch or run as the first argument, found str"),
        (
            lambda: Batcher(Coroutine(), 3),
            "expected a blocking run that returns its answers, found a coroutine",
        ),
        (lambda: Batcher(Generator(), 3), "found a coroutine function or a generator: @penstock.batch takes"),
        (lambda: Batcher(Open(), 3), r"expected run without \*args"),
        (lambda: Batcher(Gate(list), "3"), "max_batch_size to be an integer of at least 1, found '3'"),
    ],
)
def test_what_is_not_a_model_is_refused(make: Callable[[], Batcher], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        make()


class Coroutine:
    async def run(self, text: str) -> str:
        return text


class Generator:
    def run(self, text: str) -> Iterator[str]:
        yield text


class Open:
    def run(self, *texts: str) -> str:
        return texts[0]


def test_a_wrong_number_of_answers_has_the_error_of_the_package() -> None:
    model = Gate(lambda text: [*text, 1])
    model.open.set()
    with pytest.raises(AnswerError, match="run_batch: expected 1 answers, found 2"):
        penstock.Batcher(model, batch_size=2).run("a")
