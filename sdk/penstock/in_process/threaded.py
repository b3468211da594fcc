"""`Batcher`: batches the calls of threads around any model object, without a thread or event loop of its own.

Of the callers that wait, the first one leads: it takes a batch from the queue, runs it in its own thread,
wakes the callers of its batch, and then the first of those that came meanwhile, which leads next.
"""

from __future__ import annotations

import contextvars
import inspect
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.answer_list import listed
from penstock.in_process.call import raisable
from penstock.in_process.settings import BatchSettings
from penstock.in_process.state import BatchState, RunningBatch, show
from penstock.steps import yields
from penstock.user_code import USER_CODE
from penstock_sidecar.batching.bisection import Bisection
from penstock_sidecar.estimators.hold_policy import HoldPolicy

Parameter = inspect.Parameter
_NONE: Mapping[str, Any] = {}


class _Call:
    """One caller's arguments, and its outcome: `answer` or `error`, once it is `done`.

    `leads`: it is to run the next batch. `woken`: a lock that is released when it is done, or is to lead.
    """

    __slots__ = ("answer", "done", "error", "leads", "lists", "shared", "since", "woken")

    def __init__(self, lists: dict[str, Any], shared: Mapping[str, Any]) -> None:
        self.lists = lists
        self.shared = shared
        self.since = time.monotonic()
        self.leads = self.done = False
        self.answer: Any = None
        self.error: Exception | None = None
        self.woken: Any = None

    def end(self, answer: Any) -> None:
        """Set its outcome, and wake its caller; an exception object is raised there."""
        if isinstance(answer, BaseException):
            self.error = raisable(answer)
        else:
            self.answer = answer
        self.done = True
        if self.woken is not None:
            self.woken.release()


class Batcher:
    """Gathers calls from threads into calls of `model.run_batch`, or runs `model.run` for each of a batch.

    ::

        batcher = penstock.Batcher(model, batch_size=32)
        answer = batcher.run(text="a penstock")  # in as many threads as there are

    One batch runs at a time, in the thread of one of its callers. While it runs, calls wait, and the next
    batch has those that came meanwhile. `run_batch` gets a list for each argument; a keyword-only parameter
    beside these gets one value: calls that differ in it share no batch, nor do calls with other names of
    arguments. What a caller leaves out has the default of `run`, or of `run_batch` if the model has no `run`.
    If a batch raises, parts of it are run again until each call has its own outcome. An exception object
    among the answers is raised at its caller.

    Args:
        model: has a blocking `run_batch`, or a blocking `run`, or both.
        batch_size: calls of a batch at most.
        batch_collect_delay_s: seconds that a part-full batch may wait for more calls.

    Raises:
        TypeError: the model has neither, or one that does not block; or a number has another type.
        ValueError: a number is out of its range.
    """

    def __init__(self, model: Any, batch_size: int, batch_collect_delay_s: float | None = None) -> None:
        settings = BatchSettings(max_batch_size=batch_size, batch_wait_timeout=batch_collect_delay_s or 0.0)
        self._size = settings.max_batch_size
        self._wait = settings.batch_wait_timeout
        self._one: Any = getattr(model, "run", None)
        self._many: Any = getattr(model, "run_batch", None)
        if self._one is None and self._many is None:
            raise TypeError(
                "penstock.Batcher: expected a model with run_batch or run as the first argument, found "
                f"{type(model).__name__}"
            )
        called = [_parameters(each) for each in (self._one, self._many) if each is not None]
        self._signature = inspect.Signature(called[0])
        plain = [each.name for each in called[0] if each.kind is not Parameter.VAR_KEYWORD]
        self._names = dict.fromkeys(plain).keys()
        self._by_position = [each.name for each in called[-1] if each.kind is Parameter.POSITIONAL_ONLY]
        once = [each.name for each in called[-1] if each.kind is Parameter.KEYWORD_ONLY]
        self._once = once if self._many is not None and len(once) < len(called[-1]) else []
        self._differ = bool(self._once) or len(plain) < len(called[0])
        self._begin()
        _batchers.add(self)
        self._totals = show(f"{type(model).__module__}.{type(model).__qualname__}", self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._running = threading.Lock()  # held while a batch runs
        self._queue: deque[_Call] = deque()
        self._policy = HoldPolicy(self._wait)
        self._leader = 0  # the thread that runs a batch
        self._batch: list[_Call] = []
        self._began = 0.0
        self._busy = self._stopped = False
        self._out = 0  # callers who were just answered
        self._came: Any = None  # a lock that the next call releases: its leader waits for more

    def run(self, *args: Any, **named: Any) -> Any:
        """Make one call, in some batch, and wait for its answer.

        Args:
            args: arguments by position.
            named: arguments by name.

        Raises:
            InterruptedError: the batcher was stopped before the call's batch began.
            TypeError: the arguments do not fit the signature.
            Exception: the exception that the model raised for it.
        """
        call = self._bind(args, named)
        with self._lock:
            if self._stopped:
                raise InterruptedError("expected a batcher that runs, found a stopped one")
            if self._busy:
                if self._leader == threading.get_ident():
                    raise RuntimeError(
                        "expected a call from outside of the model, found one that waits for itself"
                    )
                call.woken = threading.Lock()
                call.woken.acquire()
            else:
                self._busy = call.leads = True
            if self._wait:
                self._policy.joined(call.since, first=not self._queue)
                self._notify()
            self._queue.append(call)
        try:
            if not call.leads:
                call.woken.acquire()
            if not call.done:
                self._lead(call)
        except BaseException:  # a KeyboardInterrupt, in the main thread
            with self._lock:
                if call in self._queue:
                    self._queue.remove(call)
                    if call.leads:
                        self._pass_on()
            raise
        if call.error is not None:
            raise call.error
        return call.answer

    def stop(self) -> None:
        """Let no batch begin any more: calls that wait, and later ones, raise InterruptedError.

        A batch that runs is answered, and this waits for its end, unless the model itself calls it.
        """
        with self._lock:
            self._stopped = True
            left = [call for call in self._queue if not call.leads]
            self._queue = deque(call for call in self._queue if call.leads)
            self._notify()
        for call in left:
            call.end(_stopped())
        if self._leader != threading.get_ident():
            with self._running:
                pass

    @property
    def state(self) -> BatchState:
        """What its calls do now: how many wait, and the batch under way, for debugging."""
        with self._lock:
            now, queue, batch = time.monotonic(), self._queue, self._batch
            waits = now - queue[0].since if queue else 0.0
            running = RunningBatch(items=len(batch), seconds=now - self._began, runs_in=self._leader)
            return BatchState(waiting=len(queue), seconds=waits, batches=(running,) if batch else ())

    def _bind(self, args: tuple[Any, ...], named: dict[str, Any]) -> _Call:
        """Make a call of a caller's arguments (raises TypeError)."""
        if args or named.keys() != self._names:
            bound = self._signature.bind(*args, **named)
            bound.apply_defaults()
            named = {}
            for name, value in bound.arguments.items():
                if name in self._names:
                    named[name] = value
                else:  # the arguments of a `**parameter`
                    named |= value
        shared = {name: named.pop(name) for name in self._once if name in named} if self._once else _NONE
        return _Call(named, shared)

    def _lead(self, call: _Call) -> None:
        """Run the batch that begins with a call."""
        self._gather(call)
        with self._running:
            batch = self._cut()
            try:
                # NB: in a new context: a caller's own context variables must not affect the other calls.
                if batch:
                    contextvars.Context().run(self._answer, batch)
            finally:
                for each in batch:
                    if not each.done:  # a KeyboardInterrupt
                        each.end(InterruptedError("the batch of this call was interrupted in its thread"))
                with self._lock:
                    self._leader = 0
                    self._batch = []
                    self._out = len(batch) - 1
                    self._pass_on()

    def _gather(self, call: _Call) -> None:
        """Let calls come that are about to, or wait for more if the user wants that."""
        queue = self._queue
        if not self._wait:
            # Callers who were just answered wait for the interpreter, and call again once they have it.
            before = 0 if self._out else len(queue)
            while before < len(queue) < self._size:
                before = len(queue)
                time.sleep(0)
            return
        while True:
            with self._lock:
                now = time.monotonic()
                until = min(call.since + self._wait, self._policy.quiet)
                if self._stopped or now >= until or len(queue) >= self._size:
                    self._policy.waited(now, len(queue))
                    return
                came = self._came = threading.Lock()
                came.acquire()
            came.acquire(timeout=until - now)

    def _cut(self) -> list[_Call]:
        """Take a batch from the queue: its first call, which leads, and those that can share it."""
        with self._lock:
            self._came = None
            self._leader = threading.get_ident()
            queue = self._queue
            first = queue.popleft()
            if self._stopped:
                first.end(_stopped())
                return []
            batch, others = [first], deque[_Call]()
            while queue and len(batch) < self._size:
                each = queue.popleft()
                (batch if not self._differ or _can_share(first, each) else others).append(each)
            queue.extendleft(reversed(others))
            self._batch, self._began = batch, time.monotonic()
            return batch

    def _pass_on(self) -> None:
        """Let the first call of the queue lead."""
        if self._queue:
            call = self._queue[0]
            call.leads = True
            call.woken.release()
        else:
            self._busy = False

    def _notify(self) -> None:
        """Wake a leader that waits for more calls."""
        if self._came is not None:
            self._came.release()
            self._came = None

    # One batch

    def _answer(self, batch: Sequence[_Call]) -> None:
        """Run a batch, and parts of it again if it raises, until each call has its outcome."""
        error = self._attempt(batch)
        if error is None:
            return
        if len(batch) == 1:
            batch[0].end(error)
            return
        search = Bisection(len(batch))
        while (span := search.next(len(batch))) is not None:
            some = batch[slice(*span)]
            error = self._attempt(some)
            if error is None:
                search.passed()
                continue
            if len(some) == 1:
                some[0].end(error)
            search.failed(alone=len(some) == 1)

    def _attempt(self, calls: Sequence[_Call]) -> Exception | None:
        """Run once; returns the exception if it raises, else all calls have their outcomes."""
        began = time.monotonic()
        try:
            answers = self._answers(calls)
        except Exception as error:
            self._totals.failed += 1
            return error
        self._totals.ran(len(calls), time.monotonic() - began)
        for call, answer in zip(calls, answers, strict=True):
            call.end(answer)
        return None

    def _answers(self, calls: Sequence[_Call]) -> list[Any]:
        if self._many is None:
            return [self._answer_of(call) for call in calls]
        lists = {name: [call.lists[name] for call in calls] for name in calls[0].lists}
        first = [lists.pop(name) for name in self._by_position]
        with USER_CODE:
            result = self._many(*first, **lists, **calls[0].shared)
        return listed(result, len(calls), "run_batch")

    def _answer_of(self, call: _Call) -> Any:
        """The answer of a model that has only `run`; what it raises is the outcome of this call alone."""
        lists = dict(call.lists)
        first = [lists.pop(name) for name in self._by_position]
        try:
            with USER_CODE:
                return self._one(*first, **lists)
        except Exception as error:
            return error


def _stopped() -> InterruptedError:
    return InterruptedError("the batcher was stopped before this call's batch began")


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a model's method.

    Raises:
        TypeError: it has no name for each, or does not block.
    """
    if inspect.iscoroutinefunction(function) or yields(function):
        raise TypeError(
            f"penstock.Batcher: expected a blocking {function.__name__} that returns its answers, found a "
            "coroutine function or a generator: @penstock.batch takes both"
        )
    parameters = list(inspect.signature(function).parameters.values())
    if any(each.kind is Parameter.VAR_POSITIONAL for each in parameters):
        raise TypeError(f"penstock.Batcher: expected {function.__name__} without *args, found one with them")
    return parameters


def _can_share(first: _Call, other: _Call) -> bool:
    """Whether two calls have the same names of arguments, and equal values of those that a batch has once."""
    if first.lists.keys() != other.lists.keys() or first.shared.keys() != other.shared.keys():
        return False
    try:
        return all(
            value is other.shared[name]
            or (type(value) is type(other.shared[name]) and bool(value == other.shared[name]))
            for name, value in first.shared.items()
        )
    except Exception:  # of a value's `==`, such as that of arrays
        return False


_batchers: weakref.WeakSet[Batcher] = weakref.WeakSet()


def _forget_callers() -> None:
    """Forget the calls of the parent process in a forked one: their threads are not there."""
    for batcher in _batchers:
        batcher._begin()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_forget_callers)
