"""A state machine against the dispatcher: whatever arrives, leaves, fails or changes, its promises hold."""

from __future__ import annotations

import asyncio
import collections
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import UNSET

from penstock_sidecar.queue.request import Outcome
from penstock_wire.control.settings import Batching, Fairness, Priority
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import ATTEMPT, get
from penstock_wire.http import ConnectFailed, ConnectionLost, Response, UpstreamTimeout
from tests.support.clocks.fake_loop import FakeLoop, settle
from tests.support.models.scripted_model import Asked, Run, Scripted

# NB: most of what is drawn must go well: where nearly all is refused, too late or fails, hardly a batch of
# several requests is ever answered, and nothing is proven of those. What is drawn twice is twice as likely.
FAULTS = ("ok", "ok", "ok", "refused", "lost", "timeout", "status", "bad", "short", "garbage", "defect")
POLICIES = st.builds(
    Batching,
    max_batch_size=st.sampled_from([4, 6, 6, 2, 1]),
    max_batch_bytes=st.sampled_from([10_000, 10_000, 10_000, 10_000, 50, 12]),
    batch_wait_timeout_ms=st.sampled_from([0, UNSET, UNSET, 300, 2000]),
    max_concurrent_batches=st.sampled_from([1, 1, 2, 3]),
    max_queued_items=st.sampled_from([300, 300, None, 5, 5, 0]),
    latency_objective_ms=st.sampled_from([None, None, None, 900, 3000]),
    on_batch_error=st.sampled_from([None, "Isolate", "Fail"]),
    priority=st.sampled_from([Priority(), Priority(levels=3, default=2)]),
    fairness=st.sampled_from([None, Fairness(header="x-tenant")]),
    batch_key_headers=st.sampled_from([(), (), ("x-tenant",)]),
)


class Watched(Scripted):
    """A model that checks each run against what may be sent at that moment."""

    def __init__(self, batching: Batching, *, tasks: bool) -> None:
        self.tasks = tasks
        super().__init__(base=0.3, item=0.02)
        self.apply(batching)
        self.fault = "ok"
        self.paused = False
        self.cut: list[set[int]] = []
        self.broken: list[str] = []
        self.sent: list[int] = []
        self.passed_on: set[int] = set()
        self.departed: set[int] = set()
        self.deadlines: dict[int, float] = {}
        self.like: dict[int, tuple[str, str]] = {}
        self.behaviour = self.behave

    async def send(self, request: Any, timeout: float) -> Response:
        # NB: collected, not raised: whatever a run raises is an answer to the dispatcher.
        again = get(request.headers, ATTEMPT) is not None
        self.broken += list(self.violations(json.loads(request.body)["instances"], again=again))
        return await super().send(request, timeout)

    async def answer(self, work: Asked) -> Outcome:
        try:
            return await super().answer(work)
        except PenstockError as refused:
            # NB: only `accept` raises, and at once: the queue is still what it saw.
            if refused.reason is Reason.QUEUE_FULL and work.size == 1 and self.crowds_out(work):
                self.broken.append("no room, and others hold more than they should")
            raise

    def crowds_out(self, work: Asked) -> bool:
        """Whether a whole request waits at a less urgent level, or of a share above its part."""
        dispatcher = self.dispatcher
        batching, works = dispatcher.batching, list(dispatcher.queue)
        if any(each.taken for each in works) or not (batching.fairness or batching.priority.levels > 1):
            return False
        levels = {each: each.subqueue.level for each in works}
        if any(level > work.level for level in levels.values()):
            return True
        loads: collections.Counter[bytes] = collections.Counter()
        for each in works:
            if levels[each] == work.level:
                loads[each.share] += each.left
        urgent = sum(each.left for each in works if levels[each] < work.level)
        free = max(0, dispatcher.slots - self.running)
        limit = max(dispatcher.queued, dispatcher.queue_limit + free * batching.max_batch_size)
        part = max(1, (limit - urgent) / len({work.share, *loads}))
        return loads[work.share] + 1 <= part and any(load > part for load in loads.values())

    def violations(self, items: list[Any], *, again: bool) -> Iterator[str]:
        if self.paused:
            yield "sent while the model is reconfigured"
        numbers = {item["n"] for item in items}
        if again:
            # What was cut under an older policy is halved as it is; it uses the slot that its batch holds,
            # though there may be fewer by now.
            if not any(numbers < cut for cut in self.cut):
                yield "a further run of what was no batch"
        else:
            self.cut.append(numbers)
            yield from self.violations_of_a_cut(items)
        for item in items:
            if (item["n"] in self.sent) != again:
                yield "sent twice" if not again else "called a further run at the first"
            if item["n"] in self.departed:
                yield "sent after its client left"
            if self.deadlines[item["of"]] <= self.loop.time():
                yield "sent after its deadline"
            self.sent.append(item["n"])

    def violations_of_a_cut(self, items: list[Any]) -> Iterator[str]:
        batching = self.dispatcher.batching
        if len(items) > batching.max_batch_size:
            yield "over size"
        if self.running >= self.dispatcher.slots:
            yield "over concurrency"
        keys = {self.like[item["of"]] for item in items}
        if len(keys if batching.batch_key_headers else {path for path, _ in keys}) != 1:
            yield "unlike requests in one batch"
        sizes = [len(json.dumps(item)) for item in items]
        if len(items) > 1 and sum(sizes) > batching.max_batch_bytes:
            yield "over bytes"

    def behave(self, run: Run) -> Response | Exception | None:
        if self.fault in ("short", "garbage") and len({item["of"] for item in run.items}) == 1:
            # A request that has its batch to itself gets what the model says, byte for byte.
            self.passed_on.add(run.items[0]["of"])
        right = [{"got": item} for item in run.items]
        bad = any(item["of"] % 3 == 0 for item in run.items)
        return {
            "ok": None,
            "refused": ConnectFailed("refused"),
            "lost": ConnectionLost("lost"),
            "timeout": UpstreamTimeout("slow"),
            "status": Response(status=429, body=b"no"),
            "bad": Response(status=400, body=b"bad") if bad else None,
            "short": Response(status=200, body=json.dumps({"predictions": right[1:]}).encode()),
            "garbage": Response(status=200, body=b"<html>"),
            # Who calls back has errors of upstreams only.
            "defect": RuntimeError("a defect") if self.tasks else ConnectionLost("lost"),
        }[self.fault]


class Machine(RuleBasedStateMachine):
    """Requests come and go before a model that now and then fails."""

    @initialize(batching=POLICIES, tasks=st.booleans())
    def begin(self, batching: Batching, tasks: bool) -> None:
        Asked.twice.clear()  # of an example before, which has failed for it
        self.loop = FakeLoop()
        self.run = self.loop.run_until_complete
        self.model: Watched = self.run(self.make(batching, tasks=tasks))
        self.asked: list[tuple[int, list[int], asyncio.Task[Outcome]]] = []
        self.numbers = 0
        self.cancelled: set[int] = set()

    async def make(self, batching: Batching, *, tasks: bool) -> Watched:
        return Watched(batching, tasks=tasks)

    @rule(
        count=st.sampled_from([1, 1, 1, 2, 3, 9]),
        path=st.sampled_from(["/a", "/a", "/b"]),
        tenants=st.sampled_from(["1", "2", "12", "1111112"]),
        timeout=st.sampled_from([30.0, 30.0, 3.0, 1.0, 0.2]),
        times=st.sampled_from([1, 2, 4, 7]),
        level=st.sampled_from(["1", "3", "x"]),
    )
    def ask(self, count: int, path: str, tenants: str, timeout: float, times: int, level: str) -> None:
        async def send() -> None:
            for number in range(times):
                tenant = tenants[number % len(tenants)]
                of = len(self.asked)
                numbers = list(range(self.numbers, self.numbers + count))
                self.numbers += count
                items = [{"of": of, "n": number} for number in numbers]
                self.model.deadlines[of] = self.loop.time() + timeout
                self.model.like[of] = (path, tenant)
                task = self.model.ask(
                    *items, timeout=timeout, target=path, x_tenant=tenant, x_penstock_priority=level
                )
                self.asked.append((of, numbers, task))
            await settle()

        self.run(send())

    @rule(
        count=st.sampled_from([2, 3, 4]),
        times=st.sampled_from([8, 14]),
        tenants=st.sampled_from(["1", "12"]),
        level=st.sampled_from(["1", "3"]),
        accept=st.sampled_from(["*/*", "*/*", "application/x-ndjson"]),
    )
    def ask_again(self, count: int, times: int, tenants: str, level: str, accept: str) -> None:
        """Callers in two cohorts who ask again as soon as they are answered: slots are held for them."""

        async def caller(number: int) -> None:
            await asyncio.sleep(0.2 * (number % 2))
            tenant = tenants[number % len(tenants)]
            for _ in range(times):
                of, item = len(self.asked), self.numbers
                self.numbers += 1
                self.model.deadlines[of] = self.loop.time() + 30.0
                self.model.like[of] = ("/a", tenant)
                fields = {"x_tenant": tenant, "x_penstock_priority": level, "accept": accept}
                task = self.model.ask({"of": of, "n": item}, target="/a", **fields)
                self.asked.append((of, [item], task))
                await asyncio.wait([task])
                if task.exception() is None and isinstance(task.result(), Response):
                    await self.read(task.result(), {"of": of, "n": item})
                await asyncio.sleep(0.02 + 0.005 * number)

        async def callers() -> None:
            await asyncio.gather(*[caller(number) for number in range(count)])
            await settle()

        self.run(callers())

    async def read(self, answer: Response, item: dict[str, int]) -> None:
        """Read a stream to its end, as its client does; it may end with an error."""
        if answer.stream is None:
            return
        try:
            lines = [json.loads(piece) async for piece in answer.stream]
        except PenstockError:
            return
        if lines != [{"got": item}] and "error" not in lines[-1]:
            self.model.broken.append(f"expected a stream of {item}, found {lines}")

    @rule(seconds=st.sampled_from([0.01, 0.3, 0.8, 5.0]))
    def wait(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))
        # What was cut at this very moment is sent before anything else happens.
        self.run(settle())

    @rule(batching=POLICIES)
    def change(self, batching: Batching) -> None:
        self.model.apply(batching)
        self.run(settle())

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.5, 4.0]))
    def reconfigure(self, seconds: float) -> None:
        """As a change of `userConfig`: nothing is with the model meanwhile, and all goes on behind it."""

        async def change() -> None:
            dispatcher = self.model.dispatcher
            dispatcher.pause()
            async with asyncio.timeout(60):
                await dispatcher.quiet()
            assert (self.model.running, dispatcher.ongoing) == (0, 0)
            self.model.paused = True
            await asyncio.sleep(seconds)
            self.model.paused = False
            dispatcher.resume()
            await settle()

        self.run(change())

    @rule(fault=st.sampled_from(FAULTS))
    def break_or_mend(self, fault: str) -> None:
        self.model.fault = fault

    @precondition(lambda self: any(not task.done() for _, _, task in self.asked))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        of, numbers, task = data.draw(st.sampled_from([each for each in self.asked if not each[2].done()]))
        self.cancelled.add(of)
        self.model.departed |= set(numbers) - set(self.model.sent)
        task.cancel()
        self.run(settle())

    @rule(now=st.sampled_from([False, False, False, True]))
    def refuse_queued(self, now: bool) -> None:
        if not now:
            return
        self.model.dispatcher.refuse_queued(PenstockError(Reason.DRAINING, "leaving", not_admitted=True))
        self.run(settle())

    @invariant()
    def counts_are_what_they_say(self) -> None:
        if not hasattr(self, "model"):
            return
        dispatcher = self.model.dispatcher
        works = list(dispatcher.queue)
        assert dispatcher.queued == sum(work.left for work in works)
        assert dispatcher.queue.bytes == sum(work.bytes_left for work in works)
        assert all(work.queued and not work.done for work in works)
        assert dispatcher.alive
        # Without a wait of the user's, none holds more than the half of what a full batch takes.
        held = dispatcher._cutter.held_until
        if held and dispatcher._slots.free and works:
            assert held <= self.loop.time() + 0.5 * (0.3 + 0.02 * 6) * 1.05
            assert len(dispatcher.queue.lines) == 1
            assert dispatcher._slots.free == 1
        assert Asked.twice == []
        assert self.model.broken == []

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        try:
            self.model.fault = "ok"
            # The last deadline is 30 s away: by then each request was answered and the queue is empty.
            self.run(asyncio.sleep(31))
            dispatcher = self.model.dispatcher
            assert (dispatcher.queued, dispatcher.ongoing, len(dispatcher.queue.lines)) == (0, 0, 0)
            assert self.model.broken == []
            for of, numbers, task in self.asked:
                self.judge(of, numbers, task)
        finally:
            self.run(self.model.close())
            for _, _, task in self.asked:
                if task.done() and not task.cancelled():
                    task.exception()  # seen, or the loop would complain
            self.loop.close()

    def judge(self, of: int, numbers: list[int], task: asyncio.Task[Outcome]) -> None:
        """Whether the request ended as one may."""
        assert task.done(), "not answered"
        sent = set(numbers) & set(self.model.sent)
        if task.cancelled():
            assert of in self.cancelled
            return
        if task.exception() is not None:
            assert isinstance(task.exception(), PenstockError)
            assert not sent, "refused and sent all the same"
            return
        outcome = task.result()
        if isinstance(outcome, PenstockError):
            if outcome.not_admitted and outcome.reason in (Reason.DRAINING, Reason.QUEUE_FULL):
                assert not sent, "called unexecuted and sent"
        elif outcome.status == 200 and outcome.stream is None and of not in self.model.passed_on:
            got = [each["got"] for each in json.loads(outcome.body)["predictions"]]
            assert got == [{"of": of, "n": number} for number in numbers], "somebody else's answer"


Machine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestMachine = pytest.mark.long(Machine.TestCase)
