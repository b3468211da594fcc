"""What a router tells the operator, and settings that come with its answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock_router.series import BUCKETS, Series
from penstock_wire.control.report import FIRST_BYTE_BUCKETS, FIRST_BYTE_SECONDS
from penstock_wire.http import Request
from tests.support.clocks import fake_loop
from tests.support.http.router_upstream import Answer, Behave, Seen, UpstreamServer, cut, echo, hang, refuse
from tests.support.processes.ports import free_port
from tests.support.processes.router_process import RouterProcess, backend, endpoint, until
from tests.support.worlds.router_world import World

PLAIN = {
    "requests": 3,
    "codes": {"200": 3},
    "retries": 0,
    "held": 0,
    "errors": 0,
    "refused": {},
    "reasons": {},
}

FULL = {"queue_full": 2}


class Operator:
    """Answers reports; `settings` go with the next answers."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] | None = None
        self.next_ms = 200
        self.reports: list[dict[str, Any]] = []
        self.seen: list[Seen] = []

    async def __call__(self, seen: Seen) -> Answer:
        self.seen.append(seen)
        self.reports.append(json.loads(seen.body))
        answer = {"v": 1, "nextReportMs": self.next_ms, "settings": self.settings}
        return Answer(body=json.dumps(answer).encode(), headers=b"content-type: application/json\r\n")


def answering(status: int, reason: str = "") -> Behave:
    """Answer as a model does, or a sidecar after it."""
    headers = f"x-penstock-reason: {reason}\r\n".encode() if reason else b""

    async def behave(seen: Seen) -> Answer:
        return Answer(status, headers=headers)

    return behave


async def reporting(router: Any, tmp_path: Any, control: UpstreamServer) -> RouterProcess:
    (tmp_path / "token").write_text("tok")
    process: RouterProcess = router(
        f"--report-to=http://{control.target}",
        f"--token-file={tmp_path / 'token'}",
        env={"PENSTOCK_POD": "router-1", "PENSTOCK_POD_UID": "uid-1"},
    )
    return process


async def test_a_report_has_what_the_operator_needs(upstream: Any, router: Any, tmp_path: Any) -> None:
    operator = Operator()
    control, server = await upstream(operator), await upstream()
    port, taken = free_port(), control.port
    process = await reporting(router, tmp_path, control)
    await process.start(
        endpoint("e", backend("b", server.target), port=port),
        endpoint("bad", backend("b", server.target), port=taken),
        endpoint("cold", backend("away", f"127.0.0.1:{free_port()}")),
        version=7,
    )
    for _ in range(3):
        assert (await process.ask()).status == 200
    held = asyncio.create_task(process.ask("/cold"))

    def complete() -> bool:
        last = operator.reports[-1] if operator.reports else {}
        ends = last.get("endpoints", {})
        return (
            last.get("state") == "ready"
            and ends["cold"].get("held") == 1
            and last["processorWait"] is not None
            and ends["e"]["backends"].get("b", {}).get("requests") == 3
        )

    await until(complete)
    last = operator.reports[-1]
    assert (last["v"], last["pod"], last["uid"]) == (1, "router-1", "uid-1")
    assert (last["settingsVersion"], last["settingsDigest"]) == (0, "")  # a file's settings are not told
    seconds = last["endpoints"]["e"]["backends"]["b"]["seconds"]
    assert last["endpoints"]["e"] == {
        "listening": True,
        "backends": {"b": {**PLAIN, "seconds": seconds}},
    }
    assert sum(seconds) == 3
    assert last["endpoints"]["cold"]["backends"]["away"]["held"] == 1
    assert 0 <= last["processorWait"] <= 1
    assert "listening" not in last["endpoints"]["bad"]
    assert last["endpoints"]["bad"]["error"].startswith(f"port {taken} cannot be bound")
    assert last["endpoints"]["cold"]["listening"] is True
    assert operator.seen[0].target == "/reports/router"
    assert operator.seen[0].header("authorization") == "Bearer tok"
    sequences = [report["seq"] for report in operator.reports]
    assert sequences == sorted(set(sequences))
    held.cancel()


async def test_the_first_held_request_is_reported_at_once(upstream: Any, router: Any, tmp_path: Any) -> None:
    operator = Operator()
    operator.next_ms = 3_600_000
    control = await upstream(operator)
    process = await reporting(router, tmp_path, control)
    await process.start(endpoint("cold", backend("none")), version=1)
    held = asyncio.create_task(process.ask("/cold"))
    await until(
        lambda: bool(operator.reports) and operator.reports[-1]["endpoints"].get("cold", {}).get("held") == 1
    )
    held.cancel()


async def test_settings_of_an_answer_overrule_the_file_whatever_their_versions(
    upstream: Any, router: Any, tmp_path: Any
) -> None:
    operator = Operator()
    control, server = await upstream(operator), await upstream()
    process = await reporting(router, tmp_path, control)
    await process.start(endpoint("old"), version=5)
    operator.settings = {"v": 1, "version": 6, "endpoints": [endpoint("new", backend("b", server.target))]}
    await process.until_routes(lambda routes: [route["endpoint"] for route in routes] == ["new"])
    await until(lambda: operator.reports[-1]["settingsVersion"] == 6)
    process.settle(endpoint("stranger"), version=2**53 - 1)
    count = len(operator.reports)
    await until(lambda: len(operator.reports) > count + 5)
    assert [route["endpoint"] for route in await process.routes()] == ["new"]
    operator.settings = operator.settings | {"version": 2}
    await until(lambda: operator.reports[-1]["settingsVersion"] == 2)
    operator.settings = {"v": 1, "endpoints": []}
    await until(lambda: any("expected a version, found none" in line for line in process.log))
    assert (await process.ask("/new/x")).status == 200


async def test_requests_flow_with_the_operator_gone(upstream: Any, router: Any, tmp_path: Any) -> None:
    control, server = await upstream(Operator()), await upstream()
    process = await reporting(router, tmp_path, control)
    await process.start(endpoint("e", backend("b", server.target)), version=1)
    await control.stop()
    await until(lambda: any("report failed" in line for line in process.log))
    assert (await process.ask()).status == 200


async def counted(
    operator: Operator, wanted: dict[str, int], name: str = "e", backend: str = "b"
) -> dict[str, Any]:
    """The totals of a backend, as soon as so many of its requests are over, by status."""

    def totals() -> dict[str, Any]:
        ends = operator.reports[-1]["endpoints"] if operator.reports else {}
        counters: dict[str, Any] = ends.get(name, {}).get("backends", {}).get(backend, {})
        return counters if counters.get("codes") == wanted else {}

    return await until(totals, what=f"{wanted} of {backend}")


@pytest.mark.parametrize(
    ("behave", "wanted", "errors", "refused", "reasons"),
    [
        pytest.param(echo, {"200": 2}, 0, {}, {}, id="answers"),
        pytest.param(answering(404), {"404": 2}, 0, {}, {}, id="the client's fault"),
        pytest.param(answering(429), {"429": 2}, 0, {}, {}, id="the model's own 429"),
        pytest.param(answering(500), {"500": 2}, 2, {}, {"model_answer": 2}, id="the model's error"),
        pytest.param(
            answering(500, "model_failed"), {"500": 2}, 2, {}, {"model_failed": 2}, id="the SDK's error"
        ),
        pytest.param(
            answering(502, "batch_failed"), {"502": 2}, 2, {}, {"batch_failed": 2}, id="its batch's error"
        ),
        pytest.param(refuse("queue_full"), {"503": 2}, 2, FULL, FULL, id="refusals"),
        pytest.param(refuse("queue_full", status=429), {"429": 2}, 2, FULL, FULL, id="with 429"),
        pytest.param(
            cut, {"502": 2}, 2, {"model_unreachable": 2}, {"model_unreachable": 2}, id="lost connections"
        ),
    ],
)
async def test_answers_are_told_from_errors_and_refusals(
    upstream: Any,
    router: Any,
    tmp_path: Any,
    behave: Any,
    wanted: dict[str, int],
    errors: int,
    refused: dict[str, int],
    reasons: dict[str, int],
) -> None:
    """Once each, also where a refused one was tried again; copies for a mirror count nowhere."""
    operator = Operator()
    control, server, mirror = await upstream(operator), await upstream(behave), await upstream()
    process = await reporting(router, tmp_path, control)
    route = endpoint(
        "e",
        backend("b", server.target),
        mirrors=[{"name": "copies", "targets": [mirror.target]}],
        coldStart={"timeoutMs": 1},
    )
    await process.start(route, version=1)
    for _ in range(2):
        await process.ask()
    totals = await counted(operator, wanted)
    assert (totals["errors"], totals["refused"], sum(totals["seconds"])) == (errors, refused, 2)
    assert totals["reasons"] == reasons
    assert list(operator.reports[-1]["endpoints"]["e"]["backends"]) == ["b"]


async def test_who_chooses_a_backend_by_rule_or_key_is_not_of_the_draw(
    upstream: Any, router: Any, tmp_path: Any
) -> None:
    """Answers say which backend each key leads to; the router's own first cookie is chance."""
    operator = Operator()
    control, server, other = await upstream(operator), await upstream(), await upstream(answering(500))
    process = await reporting(router, tmp_path, control)
    ruled = backend("ruled", other.target, weight=0) | {"match": [{"header": "x-to", "value": "it"}]}
    sticky = {"sessionAffinity": {"cookie": {"name": "own"}}}
    plain = endpoint("plain", backend("b", server.target))
    await process.start(endpoint("e", backend("b", server.target), ruled, **sticky), plain, version=1)
    for fields in ({}, {"cookie": "own=k"}, {"x-penstock-shard-key": "k"}, {"x-to": "it"}):
        await process.ask(headers=fields)
    await process.ask("/plain", headers={"x-penstock-model-id": "k"})
    assert sum((await counted(operator, {"200": 3}))["seconds"]) == 1
    assert (await counted(operator, {"200": 1}, name="plain"))["seconds"] == []
    totals = await counted(operator, {"500": 1}, backend="ruled")
    assert (totals["errors"], totals["seconds"], totals["reasons"]) == (0, [], {"model_answer": 1})


@pytest.mark.parametrize(
    ("behave", "fields", "status", "counts"),
    [
        pytest.param(
            refuse("deadline", status=504), {"x-penstock-timeout-ms": "900"}, 504, (0, 1), id="time"
        ),
        pytest.param(hang, {"x-penstock-timeout-ms": "1"}, 504, (0, 1), id="time, at the router"),
        pytest.param(refuse("deadline", status=504), {}, 504, (1, 1), id="the endpoint's time"),
        pytest.param(
            answering(508, "call_cycle"), {"x-penstock-call-chain": "a/b"}, 508, (0, 0), id="chain of calls"
        ),
        pytest.param(answering(508, "call_cycle"), {}, 508, (1, 1), id="the model's own cycle"),
    ],
)
async def test_what_a_client_decides_is_no_error_of_a_version(
    upstream: Any,
    router: Any,
    tmp_path: Any,
    behave: Any,
    fields: dict[str, str],
    status: int,
    counts: tuple[int, int],
) -> None:
    """What its client had no time for counts as an answer that took longer than this time."""
    operator = Operator()
    control, server = await upstream(operator), await upstream(behave)
    process = await reporting(router, tmp_path, control)
    await process.start(endpoint("e", backend("b", server.target), retries=0), version=1)
    await process.ask(headers=fields)
    totals = await counted(operator, {str(status): 1})
    assert (totals["errors"], sum(totals["seconds"])) == counts
    if fields.get("x-penstock-timeout-ms") == "900":
        assert FIRST_BYTE_SECONDS[totals["seconds"].index(1)] == 1.0


async def body() -> AsyncIterator[bytes]:
    """Of unknown length."""
    yield b"{}"


@pytest.mark.parametrize("data", [None, body], ids=["whole", "stream"])
async def test_who_was_never_asked_has_the_requests_that_were_drawn_for_it(
    upstream: Any, router: Any, tmp_path: Any, data: Any
) -> None:
    """A backend that is missing refuses all that it gets, though none of its pods ever did."""
    operator = Operator()
    control = await upstream(operator)
    process = await reporting(router, tmp_path, control)
    await process.start(endpoint("e", backend("b"), onMissing="Fail"), version=1)
    assert (await process.ask(data=data and data())).status == 503
    totals = await counted(operator, {})
    assert totals["requests"] == 0
    assert (totals["errors"], totals["refused"]) == (1, {"backend_missing": 1})
    assert sum(totals["seconds"]) == 1


async def test_time_counts_up_to_the_head_of_an_answer_or_until_its_client_leaves(
    upstream: Any, router: Any, tmp_path: Any
) -> None:
    """A stream counts when it begins; a slow answer in the bucket of its time."""
    operator, begun = Operator(), asyncio.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b" /x " in await reader.readline():
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
            begun.set()
            await reader.read()
        writer.close()  # what a router asks a pod first

    streamer = await asyncio.start_server(stream, "127.0.0.1", 0)
    port = streamer.sockets[0].getsockname()[1]
    control, slow = await upstream(operator), await upstream(hang)
    process = await reporting(router, tmp_path, control)
    routes = [endpoint("e", backend("b", f"127.0.0.1:{port}")), endpoint("s", backend("slow", slow.target))]
    await process.start(*routes, version=1)
    asking = [asyncio.create_task(process.ask(path)) for path in ("/e/x", "/s/x")]
    await begun.wait()
    await until(lambda: slow.running)
    asking[1].cancel()
    left = await counted(operator, {"499": 1}, name="s", backend="slow")
    assert (left["errors"], sum(left["seconds"])) == (0, 1)

    def first() -> list[int]:
        seconds: list[int] = (
            operator.reports[-1]["endpoints"]["e"]["backends"].get("b", {}).get("seconds", [])
        )
        return seconds

    assert sum(await until(first)) == 1
    assert operator.reports[-1]["endpoints"]["e"]["backends"]["b"]["requests"] == 0
    asking[0].cancel()
    ended = await counted(operator, {"200": 1})
    assert sum(ended["seconds"]) == 1
    streamer.close()
    await streamer.wait_closed()


def test_the_time_in_which_a_client_sends_a_body_is_not_its_versions() -> None:
    """Two pieces that come 5 s apart, and an answer 0.3 s after them."""

    class Slow:
        left = 2

        async def read(self) -> bytes:
            if not self.left:
                return b""
            self.left -= 1
            await asyncio.sleep(5)
            return b"x"

    async def main() -> list[int]:
        world = World("a", seconds=0.29)
        request = Request("POST", "/", (), b"")
        request.stream = Slow()
        await world.send(request)
        return world.state.series("b").first

    first = fake_loop.run(main())
    assert (sum(first), FIRST_BYTE_SECONDS[first.index(1)]) == (1, 0.3)


def test_buckets_are_by_upper_bound_and_the_metrics_are_made_of_them() -> None:
    """A time that is a bound is within it; what took longer than all of them is in the last."""
    series = Series("e", "b")
    for seconds in (0.0, 0.001, 0.0011, 0.21, 0.41, 120.0, 121.0):
        series.answered(200, "", seconds, drawn=True)
    seconds = series.totals(0).seconds
    assert len(seconds) == FIRST_BYTE_BUCKETS
    assert {FIRST_BYTE_SECONDS[place] for place, count in enumerate(seconds[:-1]) if count} == {
        0.001,
        0.0015,
        0.3,
        0.5,
        120.0,
    }
    assert seconds[-1] == 1
    assert dict(series.cumulative()) == dict(
        zip(map(str, BUCKETS), [2, 3, 3, 3, 3, 3, 3, 3, 5, 5, 5, 5, 5, 5, 5, 6], strict=True)
    ) | {"+Inf": 7}
    assert set(BUCKETS) <= set(FIRST_BYTE_SECONDS)
