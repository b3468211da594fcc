"""What a router tells the operator, and settings that come with its answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.support.ports import free_port
from tests.support.router_process import RouterProcess, backend, endpoint, until
from tests.support.router_upstream import Answer, Seen, UpstreamServer


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
            and ends["cold"]["held"] == 1
            and last["processorWait"] is not None
            and ends["e"]["backends"].get("b", {}).get("requests") == 3
        )

    await until(complete)
    last = operator.reports[-1]
    assert (last["v"], last["pod"], last["uid"], last["settingsVersion"]) == (1, "router-1", "uid-1", 7)
    assert last["endpoints"]["e"] == {
        "listening": True,
        "error": "",
        "held": 0,
        "oldestHeldMs": 0,
        "backends": {"b": {"requests": 3, "codes": {"200": 3}, "retries": 0, "held": 0}},
        "mirrors": {},
    }
    assert last["endpoints"]["cold"]["backends"]["away"]["held"] == 1
    assert 0 <= last["processorWait"] <= 1
    assert last["endpoints"]["bad"]["listening"] is False
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


async def test_settings_of_an_answer_take_effect_and_the_higher_version_wins(
    upstream: Any, router: Any, tmp_path: Any
) -> None:
    operator = Operator()
    control, server = await upstream(operator), await upstream()
    process = await reporting(router, tmp_path, control)
    await process.start(endpoint("old"), version=5)
    operator.settings = {"v": 1, "version": 6, "endpoints": [endpoint("new", backend("b", server.target))]}
    await process.until_routes(lambda routes: [route["endpoint"] for route in routes] == ["new"])
    await until(lambda: operator.reports[-1]["settingsVersion"] == 6)
    operator.settings = {"v": 1, "version": 6, "endpoints": []}
    process.settle(endpoint("older"), version=4)  # a ConfigMap that arrives late
    count = len(operator.reports)
    await until(lambda: len(operator.reports) > count + 5)
    assert [route["endpoint"] for route in await process.routes()] == ["new"]
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
