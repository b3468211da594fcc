"""Copies of requests: who gets which, what a hostile mirror costs, and what is counted."""

from __future__ import annotations

import asyncio
import io
import json
import random
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client import generate_latest

from penstock_router.holding.hold_queue import Waiter
from penstock_router.holding.release_window import Permit
from penstock_router.mirroring import large_answers, mirrors
from penstock_router.mirroring.pressure import SAMPLE_SECONDS, Pressure
from penstock_router.router import Router, decode_settings
from penstock_wire.control.report import decode_router
from penstock_wire.errors import DocumentError
from penstock_wire.hop.upstream import HopUpstream
from penstock_wire.http import Request
from penstock_wire.http.client.pool import H1Upstream
from penstock_wire.http.server.server import H1Front
from tests.support.http import client_heads
from tests.support.http.router_upstream import Answer, Behave, Seen, UpstreamServer, cut, echo, hang, refuse
from tests.support.processes.ports import free_port
from tests.support.processes.router_process import backend, endpoint, until


class Served:
    """A router in this process, with one endpoint `e` of one backend and its mirrors."""

    def __init__(self) -> None:
        self.short = False
        self.ahead = 0.0
        self.port = free_port()
        self._front = H1Front()
        self._upstream = HopUpstream(H1Upstream())
        self.router = Router(
            front=self._front,
            host="127.0.0.1",
            upstream=self._upstream,
            random_source=random.Random(3),
            clock=lambda: asyncio.get_running_loop().time() + self.ahead,
            pod="router",
            short=lambda: self.short,
        )
        self._ports = asyncio.create_task(self.router.ports.run())
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def settle(self, main: UpstreamServer, *mirrors: dict[str, Any], **fields: Any) -> Served:
        """Take settings, and wait until they are in effect."""
        route = endpoint("e", backend("main", main.target), port=self.port, mirrors=list(mirrors), **fields)
        self.router.apply(decode_settings(json.dumps({"v": 1, "endpoints": [route]}).encode()))
        await until(lambda: self.port in self.router.ports.bound)
        return self

    async def ask(self, body: Any = b"{}", *, method: str = "POST", **more: Any) -> tuple[int, bytes]:
        url = f"http://127.0.0.1:{self.port}/x"
        async with self.session.request(method, url, data=body, **more) as answer:
            return answer.status, await answer.read()

    def totals(self, mirror: str = "new") -> Any:
        """As the report has them."""
        report = decode_router(self.router.report(1, settings_version=1)).endpoints["e"]
        return report.mirrors[mirror]

    async def until(self, look: Callable[[Any], bool], mirror: str = "new") -> Any:
        """Wait until the totals are as wanted."""
        await until(lambda: look(self.totals(mirror)), what=f"wanted totals, not {self.totals(mirror)},")
        return self.totals(mirror)

    async def close(self) -> None:
        await self.session.close()
        self._ports.cancel()
        await asyncio.gather(self._ports, return_exceptions=True)
        await self._front.close(0.0)
        await self._upstream.close()


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    yield served
    await served.close()


def mirror(name: str, *servers: UpstreamServer, **fields: Any) -> dict[str, Any]:
    return {"name": name, "targets": [server.target for server in servers], **fields}


def says(document: Any, status: int = 200) -> Behave:
    async def behave(seen: Seen) -> Answer:
        return Answer(status=status, body=json.dumps(document).encode())

    return behave


async def test_a_copy_is_the_request_marked_and_of_the_least_priority(upstream: Any, served: Served) -> None:
    """Same method, target, body, id and fields; the mark is the router's alone, as the priority is."""
    main, new, old = await upstream(), await upstream(), await upstream()
    await served.settle(
        main,
        mirror("new", new, priorityHeader="x-urgency", priorityLevel=4),
        mirror("old", old, dropHeaders=["Authorization", "cookie"]),
    )
    credentials = {"authorization": "Bearer a", "cookie": "session=a"}
    fields = {"x-urgency": "1", "x-mine": "a", "x-request-id": "r-1", "x-penstock-mirror": "forged"}
    fields |= credentials
    status, body = await served.ask(b'{"instances": [1]}', headers=fields)
    await served.until(lambda totals: totals.codes == {"200": 1})
    await served.until(lambda totals: totals.codes == {"200": 1}, "old")
    (copy,), (other,), (first,) = new.seen, old.seen, main.seen
    assert (status, json.loads(body)["id"]) == (200, "r-1")
    assert (copy.method, copy.target, copy.body, copy.identity) == ("POST", "/x", first.body, "r-1")
    assert (copy.header("x-mine"), copy.values("x-urgency"), copy.values("x-penstock-mirror")) == (
        "a",
        ["4"],
        ["true"],
    )
    assert other.values("x-urgency") == ["1"]
    assert {name: copy.header(name) for name in credentials} == credentials
    assert not any(other.header(name) for name in credentials)
    assert first.values("x-penstock-mirror") == []
    # Handed back, a copy would be over, with an error that is not the mirror's own.
    assert (copy.values("x-penstock-sticky"), first.values("x-penstock-sticky")) == (["1"], [])
    assert int(copy.header("x-penstock-timeout-ms") or 0) == 30_000


async def test_what_any_client_sends_is_copied(upstream: Any, served: Served) -> None:
    """Whatever it writes of its connection."""
    main, new = await upstream(), await upstream()
    await served.settle(main, mirror("new", new))
    for client in client_heads.HEADS:
        assert await client_heads.ask(("127.0.0.1", served.port), client, b'{"instances": [1]}')
    totals = await served.until(
        lambda totals: totals.answered + sum(totals.dropped.values()) == len(client_heads.HEADS)
    )
    assert (totals.codes, totals.dropped) == ({"200": len(client_heads.HEADS)}, {})
    assert {seen.body for seen in new.seen} == {b'{"instances": [1]}'}


async def test_a_share_is_copied_and_each_mirror_draws_by_itself(upstream: Any, served: Served) -> None:
    """Exactly the percentage, within the draw's bound of two; 0 is none."""
    main, new, old, off = [await upstream(says({})) for _ in range(4)]
    await served.settle(
        main, mirror("new", new, percent=30), mirror("old", old, percent=50), mirror("off", off, percent=0)
    )
    for _ in range(100):
        assert (await served.ask())[0] == 200
    await served.until(lambda totals: totals.answered == totals.sent)
    assert abs(served.totals("new").sent - 30) <= 2
    assert abs(served.totals("old").sent - 50) <= 2
    assert (served.totals("off").sent, off.seen) == (0, [])
    both = {seen.identity for seen in new.seen} & {seen.identity for seen in old.seen}
    assert 0 < len(both) < 30


async def test_what_the_router_answers_itself_is_not_drawn(upstream: Any, served: Served) -> None:
    """A probe at every other request would have all of a mirror's half, or none of it."""
    main, new = await upstream(), await upstream()
    own = [{"path": "/x", "body": "ok"}]
    cors = {"origins": ["https://a.example"]}
    await served.settle(main, mirror("new", new, percent=50), static=own, cors=cors)
    preflight = {"origin": "https://a.example", "access-control-request-method": "POST"}
    for _ in range(20):
        assert (await served.ask(b"", method="GET"))[1] == b"ok"
        await served.ask()
        assert (await served.ask(b"", method="OPTIONS", headers=preflight))[0] == 204
    totals = await served.until(lambda totals: totals.codes == {"200": 10})
    assert totals.sent == 10
    assert not totals.dropped


async def test_a_mirror_with_rules_copies_what_matches_one(upstream: Any, served: Served) -> None:
    """The percentage is of what matches; nothing else is drawn or counted; others' rules are their own."""
    main, new, old, every = [await upstream(says({})) for _ in range(4)]
    beta, cookie = {"header": "X-Group", "value": "beta"}, {"cookie": "g", "regex": "be.+"}
    await served.settle(
        main,
        mirror("new", new, percent=50, match=[beta, cookie]),
        mirror("old", old, match=[cookie]),
        mirror("all", every),
    )
    for number in range(60):
        fields = ({"x-group": "beta"}, {"x-group": "alpha"}, {"cookie": "a=b; g=beta"})[number % 3]
        assert (await served.ask(headers=fields))[0] == 200
    await served.ask(b"", method="HEAD")  # matches no rule: not even counted as dropped
    await served.until(lambda totals: totals.answered == 60, "all")
    await served.until(lambda totals: totals.answered == totals.sent)
    await served.until(lambda totals: totals.answered == 20, "old")
    assert abs(served.totals("new").sent - 20) <= 2
    assert {seen.header("x-group") for seen in new.seen} <= {"beta", None}
    assert {seen.header("cookie") for seen in old.seen} == {"a=b; g=beta"}
    assert (served.totals("new").dropped, served.totals("old").dropped) == ({}, {})
    assert served.totals("all").dropped == {"method": 1}


async def test_rules_of_a_mirror_change_at_run_time(upstream: Any, served: Served) -> None:
    """Also for a head that is known; counts and draw go on; an unusable rule copies nothing and is named."""
    main, new = await upstream(says({})), await upstream(says({}))
    asked = {"x-group": "beta"}
    for rules, sent in (
        ([{"header": "x-group", "value": "beta"}], 1),
        ([{"header": "x-group", "value": "alpha"}], 1),
        ([{"header": "x-group", "regex": "("}], 1),
        ([{"header": "x-group", "regex": "("}, {"header": "x-group", "prefix": "be"}], 2),
        ([], 3),
    ):
        await served.settle(main, mirror("new", new, match=rules))
        assert (await served.ask(headers=asked))[0] == 200
        totals = await served.until(lambda totals, sent=sent: totals.answered == sent)  # type: ignore[misc]
        assert (totals.sent, totals.dropped, len(new.seen)) == (sent, {}, sent)
        faults = served.router._endpoints["e"].faults
        assert [fault.partition(" expected")[0] for fault in faults] == (
            ["mirror new: match[0].regex:"] if {"header": "x-group", "regex": "("} in rules else []
        )


async def test_rules_are_tried_once_for_a_head(upstream: Any, served: Served) -> None:
    """Requests with one head share what was decided, but for long heads; what is kept is bounded."""
    main, new = await upstream(), await upstream()
    await served.settle(main, mirror("new", new, match=[{"header": "a", "prefix": "x"}]))
    made = served.router._endpoints["e"].mirrors
    assert made is not None
    request = Request("POST", "/x", ((b"a", b"x"),), b"")
    assert made.of(request) is made.of(request)
    assert [chosen.name for chosen in made.of(request)] == ["new"]
    long = Request("POST", "/x", ((b"b", b"x" * 20_000),), b"")
    assert made.of(long) == []
    for number in range(mirrors.MAX_HEADS + 10):
        assert len(made.of(Request("POST", "/x", ((b"a", b"x%d" % number),), b""))) == 1
    assert 0 < len(made._choices) <= mirrors.MAX_HEADS
    await served.settle(main, mirror("new", new))
    without = served.router._endpoints["e"].mirrors
    assert without is not None
    assert without.of(request) is without.mirrors
    assert not without._choices


async def test_it_is_sent_when_the_answer_has_begun(upstream: Any, served: Served) -> None:
    """While the served backend computes, the mirror has nothing."""
    wait, arrived = asyncio.Event(), asyncio.Event()

    async def slow(seen: Seen) -> Answer:
        arrived.set()
        await wait.wait()
        return Answer()

    main, new = await upstream(slow), await upstream()
    await served.settle(main, mirror("new", new))
    task = asyncio.create_task(served.ask())
    await arrived.wait()
    assert (new.seen, served.totals().sent) == ([], 0)
    wait.set()
    assert (await task)[0] == 200
    await served.until(lambda totals: totals.answered == 1)


async def mirror_huge(seen: Seen) -> Answer:
    return Answer(body=b"x" * 3_000_000)


async def mirror_malformed(seen: Seen) -> Answer:
    return Answer(body=b"", headers=b"content-length: nonsense\r\n")


@pytest.mark.parametrize(
    ("behave", "codes", "skipped"),
    [
        (refuse("queue_full"), {"503": 1}, True),
        (cut, {"0": 1}, True),
        (mirror_huge, {"200": 1}, True),
        (mirror_malformed, {"0": 1}, True),
        (says({}, 500), {"500": 1}, False),
    ],
)
async def test_what_a_mirror_does_is_its_own(
    upstream: Any, served: Served, behave: Behave, codes: dict[str, int], *, skipped: bool
) -> None:
    """One try; its code is counted as the mirror's and nowhere else; the client has the served answer."""
    main, new = await upstream(says({"a": 1})), await upstream(behave)
    await served.settle(main, mirror("new", new, compare={}), retries=3)
    assert await served.ask() == (200, b'{"a": 1}')
    totals = await served.until(lambda totals: totals.codes == codes)
    assert len(new.seen) == totals.sent == 1
    assert totals.compared == (0 if skipped else 1)
    report = decode_router(served.router.report(1, settings_version=1)).endpoints["e"]
    assert report.backends["main"].codes == {"200": 1}
    assert list(report.backends) == ["main"]
    text = generate_latest(served.router.metrics).decode()
    assert 'penstock_router_duration_seconds_count{backend="new"' not in text
    assert re.search(r'penstock_router_mirror_requests_total\{code="\d+",endpoint="e",mirror="new"', text)
    assert ('penstock_router_mirror_compare_skipped_total{endpoint="e",mirror="new"' in text) == skipped


async def test_a_slow_mirror_keeps_no_more_than_its_bound(
    upstream: Any, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies beyond are dropped and counted; a second mirror has all of its own."""
    monkeypatch.setattr(mirrors, "MAX_IN_FLIGHT", 5)
    main, slow, new = await upstream(says({})), await upstream(hang), await upstream(says({}))
    await served.settle(main, mirror("slow", slow), mirror("new", new))
    for _ in range(20):
        assert (await served.ask())[0] == 200
    totals = await served.until(lambda totals: totals.sent == 5, "slow")
    assert totals.dropped == {"in_flight": 15}
    await served.until(lambda totals: totals.answered == 20)


async def test_bytes_under_way_are_bounded(
    upstream: Any, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all mirrors together: the requests, and the answers that are kept for a comparison."""
    monkeypatch.setattr(mirrors, "MAX_BYTES", 25_000)
    main, slow = await upstream(says("x" * 10_000)), await upstream(hang)
    await served.settle(main, mirror("slow", slow, compare={}))
    for _ in range(5):
        await served.ask(b"y" * 2_000)
    totals = await served.until(lambda totals: totals.sent == 2, "slow")
    assert totals.dropped == {"in_flight": 3}


async def test_a_dead_mirror_is_tried_now_and_then(upstream: Any, served: Served) -> None:
    """Nothing is held for it; once it listens, it gets copies again."""
    main, port = await upstream(says({})), free_port()
    await served.settle(
        main, {"name": "new", "targets": [f"127.0.0.1:{port}"]}, {"name": "none", "targets": []}
    )
    for _ in range(30):
        assert (await served.ask())[0] == 200
    totals = await served.until(lambda totals: totals.codes.get("0") == totals.sent)
    assert totals.sent + totals.dropped["no_pod"] == 30
    assert totals.sent < 15
    assert served.totals("none").dropped == {"no_pod": 30}
    report = decode_router(served.router.report(1, settings_version=1)).endpoints["e"]
    assert (report.held, list(report.backends)) == (0, ["main"])
    await upstream(says({}), port)

    async def answered() -> None:
        while not served.totals().answered:
            await served.ask()

    await asyncio.wait_for(answered(), 20)


async def test_a_mirror_with_large_answers_gets_few_copies(
    upstream: Any, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an answer that is too large there is a pause, then one try, until one is whole; others go on."""
    monkeypatch.setattr(large_answers, "FIRST_SECONDS", 1e3)
    monkeypatch.setattr(large_answers, "MOST_SECONDS", 2e3)
    main, new, old = await upstream(says({})), await upstream(mirror_huge), await upstream(says({}))
    await served.settle(main, mirror("new", new), mirror("old", old))
    for tries, pause in ((1, 1e3), (2, 2e3), (3, 2e3)):
        assert (await served.ask())[0] == 200
        await served.until(lambda totals, tries=tries: totals.codes == {"200": tries})  # type: ignore[misc]
        for _ in range(10):
            assert (await served.ask())[0] == 200
        totals = await served.until(
            lambda totals, tries=tries: totals.dropped == {"answer_too_large": 10 * tries}  # type: ignore[misc]
        )
        assert (totals.sent, len(new.seen)) == (tries, tries)
        served.ahead += pause + 1
    new.behave = says({})
    await served.ask()
    await served.until(lambda totals: totals.codes == {"200": 4})
    for _ in range(10):
        await served.ask()
    totals = await served.until(lambda totals: totals.answered == 14)
    assert totals.dropped == {"answer_too_large": 30}
    assert (await served.until(lambda totals: totals.answered == 44, "old")).dropped == {}
    text = generate_latest(served.router.metrics).decode()
    assert 'mirror_dropped_total{endpoint="e",mirror="new",reason="answer_too_large"} 30.0' in text


def test_a_pause_after_large_answers_grows_by_its_tries_alone() -> None:
    """Copies that were under way when it began say nothing; each has one try; a whole answer ends it."""
    known, now = large_answers.LargeAnswers(), 100.0
    pauses = []
    for _ in range(6):
        assert not known.holds_back(now)
        known.sent(now)
        for _ in range(3):  # those that were sent at the same time as the first
            known.too_large(now, now + 0.001)
        known.whole(now)
        over = (each / 16 for each in range(20) if not known.holds_back(now + 0.001 + each / 16))
        pauses.append(next(over))
        now += 0.001 + pauses[-1]
    assert pauses == [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 1]
    known.sent(now)
    assert known.holds_back(now + 0.9)  # its answer has not come: no other try before the pause is over
    assert not known.holds_back(now + 1.0)
    known.whole(now)
    assert not known.holds_back(now)
    known.sent(now)
    assert not known.holds_back(now)
    known.too_large(now, now)
    assert (known.holds_back(now + 0.06), known.holds_back(now + 0.07)) == (True, False)


def logged(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str, str, str]]:
    """What was logged of copies since the last look: message, mirror, reason, and what the first was."""
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    return [
        (line["message"], line["mirror"], line["reason"], line["first"]) for line in lines if "mirror" in line
    ]


async def test_what_cannot_be_copied_is_counted_by_reason(
    upstream: Any, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """Streams, long bodies, other methods, answers that are none of the model's, and pressure."""

    async def behave(seen: Seen) -> Answer:
        if seen.header("x-want") == "stream":
            return Answer(body=b"2\r\nab\r\n0\r\n\r\n", headers=b"transfer-encoding: chunked\r\n")
        if seen.header("x-want") == "long":
            return Answer(body=b"x" * 300_000)
        return Answer()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"a"

    main, new = await upstream(echo), await upstream()
    await served.settle(main, mirror("new", new))
    await served.ask(io.BytesIO(b"x" * 1_100_000))
    await served.ask(pieces())
    await served.ask(b"", method="HEAD")
    await served.ask(headers={"x-penstock-timeout-ms": "never"})
    served.short = True
    await served.ask()
    served.short = False
    main.behave = behave
    await served.ask(headers={"x-want": "long"})
    totals = await served.until(lambda totals: sum(totals.dropped.values()) == 6)
    assert totals.dropped == {"too_large": 2, "stream": 1, "method": 1, "refused": 1, "pressure": 1}
    assert (totals.sent, new.seen) == (0, [])
    assert totals.causes == {
        "too_large": "its body has 1100000 bytes",
        "stream": "its body has no length in its head",
        "method": "its method is HEAD",
        "refused": "the client got 400 bad_request from Penstock, not from a model",
        "pressure": "the router is short of processors",
    }
    assert {reason: first for _, _, reason, first in logged(capsys)} == totals.causes


@pytest.mark.parametrize(
    ("behave", "reason", "cause"),
    [
        (refuse("queue_full"), "queue_full", r"pod 127\.0\.0\.1:\d+ answered 503 queue_full"),
        (cut, "model_unreachable", r"pod 127\.0\.0\.1:\d+: .+"),
    ],
)
async def test_the_first_copy_that_has_no_answer_is_logged_and_reported(
    upstream: Any, served: Served, capsys: pytest.CaptureFixture[str], behave: Behave, reason: str, cause: str
) -> None:
    """Once a mirror and reason, in words; what comes after it is counted."""
    main, new = await upstream(says({})), await upstream(behave)
    await served.settle(main, mirror("new", new))
    for number in range(3):
        await served.ask()
        await served.until(lambda totals, number=number: totals.unanswered == {reason: number + 1})  # type: ignore[misc]
        served.ahead += 60.0  # a pod that could not be reached, or had no room, is tried again
    assert re.fullmatch(cause, served.totals().causes[reason])
    (line,) = logged(capsys)
    assert line == ("copies are not answered", "new", reason, served.totals().causes[reason])


async def test_a_mirror_without_a_pod_says_so_once(
    upstream: Any, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each mirror by itself; one that is taken away and comes back begins anew."""
    main = await upstream(says({}))
    for _ in range(2):
        await served.settle(main, mirror("new"), mirror("old"))
        for _ in range(5):
            await served.ask()
        totals = await served.until(lambda totals: totals.dropped == {"no_pod": 5})
        assert totals.causes == {"no_pod": "no pod of the mirror is ready"}
        said = [(message, name, reason) for message, name, reason, _ in logged(capsys)]
        assert said == [("requests are not copied", name, "no_pod") for name in ("new", "old")]
        await served.settle(main)


async def test_clients_come_before_copies(upstream: Any, served: Served) -> None:
    """While requests of the endpoint are held, nothing is copied."""
    main, new = await upstream(says({})), await upstream()
    await served.settle(main, mirror("new", new))
    held = served.router._endpoints["e"].held
    future: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
    waiter = Waiter(future=future, backend="other", size=0, since=0.0, until=1e9, sequence=1)
    held.join(waiter)
    assert (await served.ask())[0] == 200
    assert served.totals().dropped == {"pressure": 1}
    held.leave(waiter)
    assert (await served.ask())[0] == 200
    await served.until(lambda totals: totals.answered == 1)


async def test_answers_are_compared(upstream: Any, served: Served) -> None:
    """By kind, with the first paths and their types; new rules begin anew; who goes is forgotten."""
    main = await upstream(says({"p": [{"score": 0.5}], "id": "a"}))
    new = await upstream(says({"p": [{"score": 0.7}], "id": "b"}))
    await served.settle(main, mirror("new", new, compare={"ignore": ["$.id"], "tolerance": 0.01}))
    for _ in range(3):
        await served.ask()
    totals = await served.until(lambda totals: totals.compared == 3)
    assert totals.differing == {"value": 3}
    (first,) = totals.first
    assert (first.path, first.kind, first.expected, first.found, first.count) == (
        "$.p[0].score",
        "value",
        "number",
        "number",
        3,
    )
    assert 0 < totals.seconds < 60
    assert 0 < totals.served_seconds < 60
    text = generate_latest(served.router.metrics).decode()
    compared = 'penstock_router_mirror_compared_total{endpoint="e",mirror="new",result='
    assert f'{compared}"value"}} 3.0' in text
    await served.settle(main, mirror("new", new, compare={"ignore": ["$.id"], "tolerance": 0.5}))
    await served.ask()
    totals = await served.until(lambda totals: totals.compared == 1)
    assert (totals.differing, totals.first, totals.sent) == ({}, (), 4)
    await served.settle(main)
    assert "penstock_router_mirror_requests_total{" not in generate_latest(served.router.metrics).decode()
    await served.settle(main, mirror("new", new))
    assert served.totals().sent == 0


async def test_what_comparisons_may_cost_is_bounded(upstream: Any, served: Served) -> None:
    """Pairs beyond the second's budget are not compared, and that is counted."""
    served.router._mirrors._comparisons._clock = lambda: 0.0  # the budget never comes back
    served.router._mirrors._comparisons._since = 0.0
    served.router._mirrors._comparisons._left = 0.0
    main, new = await upstream(says({"a": 1})), await upstream(says({"a": 2}))
    await served.settle(main, mirror("new", new, compare={}))
    await served.ask()
    await served.until(lambda totals: totals.answered == 1)
    assert served.totals().compared == 0
    assert 'skipped_total{endpoint="e",mirror="new",reason="budget"} 1.0' in (
        generate_latest(served.router.metrics).decode()
    )


async def test_hundreds_of_paths_leave_five(upstream: Any, served: Served) -> None:
    """What is kept of differences is bounded, whatever names a mirror's answers have; a place is one path."""
    count = iter(range(1000))

    async def behave(seen: Seen) -> Answer:
        return Answer(body=json.dumps({f"name-{next(count)}": 1}).encode())

    main, new = await upstream(says({})), await upstream(behave)
    await served.settle(main, mirror("new", new, compare={}))
    for _ in range(20):
        await served.ask()
    totals = await served.until(lambda totals: totals.compared == 20)
    assert totals.differing == {"extra": 20}
    assert len(totals.first) == 5


def test_the_thread_is_short_of_processors_when_it_runs_or_waits_all_the_time() -> None:
    """What it used and what it waited for count alike; the last sample holds until there is another."""
    now, used, waited = 0.0, 0.0, 0.0
    pressure = Pressure(clock=lambda: now, used=lambda: used, waited=lambda: waited)
    looks = []
    for used_now, waited_now in ((0.5, 0.1), (0.95, 0.0), (0.2, 0.75), (0.1, 0.1)):
        now, used, waited = now + SAMPLE_SECONDS * 1.01, used + used_now * SAMPLE_SECONDS, waited_now
        looks.append(pressure.short())
    assert looks == [False, True, True, False]


@pytest.mark.parametrize(
    ("mirrors", "message"),
    [
        ([{"name": "main"}], r"endpoint e: mirrors\[0\].name: expected a backend that does not serve"),
        ([{"name": "a"}, {"name": "a"}], r"mirrors\[1\].name: expected a unique name, found 'a'"),
        ([{"name": "a", "percent": 101}], r"endpoints\[0\].mirrors\[0\].percent"),
        ([{"name": "a", "compare": {"ignore": ["usage"]}}], r"expected a path such as \$.usage"),
        ([{"name": "a", "priorityHeader": "a b"}], "expected the name of a header field, found 'a b'"),
        ([{"name": "a", "targets": ["x"]}], r"\$.endpoints\[0\].mirrors\[0\].targets\[0\]"),
    ],
)
def test_settings_that_cannot_be(mirrors: list[dict[str, Any]], message: str) -> None:
    """What was expected, what was found, where."""
    document = {"v": 1, "endpoints": [endpoint("e", backend("main", "127.0.0.1:1"), mirrors=mirrors)]}
    with pytest.raises(DocumentError, match=message):
        decode_settings(json.dumps(document).encode())
