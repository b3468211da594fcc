"""A real router in front of real servers: routes, methods, headers, errors, splits."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

from yarl import URL

from tests.support.http.router_upstream import Answer, Seen, hang
from tests.support.processes.ports import free_port
from tests.support.processes.router_process import backend, endpoint, until
from tests.support.processes.sidecar_process import run


async def test_a_request_goes_through_whole_and_its_answer_comes_back_untouched(
    upstream: Any, router: Any
) -> None:
    async def answer(seen: Seen) -> Answer:
        return Answer(
            status=218,
            body=b'{"predictions": [1e400, 12345678901234567890]}',
            headers=b"x-model: a\r\nx-model: b\r\n",
        )

    server = await upstream(answer)
    process = await router().start(endpoint("e", backend("b", server.target)))
    body = b'{"instances": [ 1.0, NaN ]}'
    reply = await process.ask("/e/v1/x%2Fy?a=%20&b", data=body, headers={"content-type": "application/json"})
    assert (reply.status, reply.body) == (218, b'{"predictions": [1e400, 12345678901234567890]}')
    assert reply.headers.getall("x-model") == ["a", "b"]
    assert reply.headers["x-penstock-backend"] == "b"
    (seen,) = server.seen
    assert (seen.method, seen.target, seen.body) == ("POST", "/v1/x%2Fy?a=%20&b", body)
    assert seen.header("content-type") == "application/json"


async def test_the_request_id_is_made_or_kept_echoed_and_sent_on(upstream: Any, router: Any) -> None:
    server = await upstream()
    process = await router().start(endpoint("e", backend("b", server.target)))
    made = await process.ask()
    kept = await process.ask(headers={"x-request-id": "my-id"})
    replaced = await process.ask(headers={"x-request-id": "x" * 200})
    assert made.headers["x-request-id"] == server.seen[0].identity
    assert len(made.headers["x-request-id"]) == 32
    assert kept.headers["x-request-id"] == server.seen[1].identity == "my-id"
    assert replaced.headers["x-request-id"] == server.seen[2].identity
    assert len(server.seen[2].identity) == 32
    missing = await process.ask("/nobody", headers={"x-request-id": "my-id"})
    assert missing.document["request_id"] == missing.headers["x-request-id"] == "my-id"


async def test_fields_of_ours_are_dropped_at_the_edge_both_ways(upstream: Any, router: Any) -> None:
    async def answer(seen: Seen) -> Answer:
        return Answer(
            headers=b"x-penstock-queue: 3\r\nx-penstock-what: 1\r\nx-request-id: forged\r\nkeep: 1\r\n"
        )

    server = await upstream(answer)
    process = await router().start(endpoint("e", backend("b", server.target)))
    sent = {
        "x-penstock-not-admitted": "1",
        "x-penstock-attempt": "4",
        "x-penstock-drain": "secret",
        "x-penstock-mirror": "1",
        "x-penstock-sticky": "forged",
        "x-penstock-method": "predict",
        "x-penstock-shard-key": "k",
        "x-penstock-priority": "1",
        "te": "trailers",
        "connection": "keep-alive, x-hop",
        "x-hop": "1",
        "x-own": "1",
    }
    reply = await process.ask(headers=sent)
    names = {name for name, _ in server.seen[0].headers}
    assert {name for name in names if name.startswith("x-penstock-")} == {
        "x-penstock-method",
        "x-penstock-shard-key",
        "x-penstock-priority",
        "x-penstock-sticky",
        "x-penstock-timeout-ms",
    }
    assert server.seen[0].values("x-penstock-sticky") == ["1"]
    assert "x-own" in names
    assert not names & {"te", "x-hop"}
    ours = {name.lower() for name in reply.headers if name.lower().startswith("x-penstock-")}
    assert ours == {"x-penstock-backend"}
    assert reply.headers["keep"] == "1"
    assert reply.headers.getall("x-request-id") == [server.seen[0].identity]


async def test_a_request_tells_that_it_came_through_a_router(upstream: Any, router: Any) -> None:
    """RFC 9110 section 7.6.3: behind those that it came through before, in fields of their own."""
    server = await upstream()
    process = await router().start(endpoint("e", backend("b", server.target)))
    await process.ask(headers={"via": "1.0 cdn"})
    await process.ask()
    assert [seen.values("via") for seen in server.seen] == [
        ["1.0 cdn", "1.1 penstock-router"],
        ["1.1 penstock-router"],
    ]


async def test_max_forwards_is_counted_down_and_ends_here(upstream: Any, router: Any) -> None:
    """RFC 9110 section 7.6.2: of OPTIONS and TRACE; other methods do not know it."""
    server = await upstream()
    process = await router().start(endpoint("e", backend("b", server.target), methods=["GET", "OPTIONS"]))
    await process.ask(method="OPTIONS", headers={"max-forwards": "2"})
    await process.ask(method="OPTIONS", headers={"max-forwards": "2a"})
    await process.ask(method="GET", headers={"max-forwards": "0"})
    assert [seen.values("max-forwards") for seen in server.seen] == [["1"], ["2a"], ["0"]]
    last = await process.ask(method="OPTIONS", headers={"max-forwards": "0"})
    assert (last.status, last.body, last.headers["allow"]) == (204, b"", "GET, OPTIONS")
    free = await router().start(endpoint("e", backend("b", server.target)))
    refused = await free.ask(method="TRACE", headers={"max-forwards": "0"})
    assert (refused.status, refused.document["reason"]) == (405, "method_not_allowed")
    assert refused.headers["allow"] == "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
    assert len(server.seen) == 3


async def test_time_is_the_smaller_of_the_clients_and_the_endpoints_and_is_counted_down(
    upstream: Any, router: Any
) -> None:
    server = await upstream()
    process = await router().start(endpoint("e", backend("b", server.target), timeoutMs=50_000))
    for sent in ("20000", "60000", None):
        await process.ask(headers={} if sent is None else {"x-penstock-timeout-ms": sent})
    timeouts = [int(seen.header("x-penstock-timeout-ms") or 0) for seen in server.seen]
    assert 10_000 < timeouts[0] < 20_001
    assert all(30_000 < milliseconds < 50_001 for milliseconds in timeouts[1:])
    refused = await process.ask(headers={"x-penstock-timeout-ms": "abc"})
    assert (refused.status, refused.document["reason"]) == (400, "bad_request")
    assert refused.document["detail"] == "expected x-penstock-timeout-ms in whole milliseconds, found 'abc'"
    assert len(server.seen) == 3


async def test_a_pod_that_does_not_answer_in_time_is_504(upstream: Any, router: Any) -> None:
    server = await upstream(hang)
    process = await router().start(endpoint("e", backend("b", server.target)))
    reply = await process.ask(headers={"x-penstock-timeout-ms": "150"})
    assert (reply.status, reply.document["reason"], reply.document["backend"]) == (504, "deadline", "b")
    assert reply.headers["x-penstock-reason"] == "deadline"


async def test_no_endpoint_wrong_method(upstream: Any, router: Any) -> None:
    server = await upstream()
    process = await router().start(
        endpoint("e", backend("b", server.target), methods=["POST", "PUT"]),
        endpoint("hidden", backend("b", server.target), route=""),
    )
    missing = await process.ask("/hidden")
    assert (missing.status, missing.document["reason"]) == (404, "no_route")
    wrong = await process.ask(method="DELETE")
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST, PUT")
    assert wrong.document["reason"] == "method_not_allowed"
    assert server.seen == []
    assert (await process.ask(method="PUT")).status == 200


async def test_routes_are_listed(upstream: Any, router: Any) -> None:
    server = await upstream()
    port = free_port()
    process = await router().start(
        endpoint(
            "b", backend("m", server.target, weight=9), backend("n", weight=0), port=port, methods=["POST"]
        ),
        endpoint("a", route="/a/x"),
        endpoint("c", route="/a/x"),
    )
    none = {"name": "none", "weight": 1, "readyPods": 0}
    assert await process.routes() == [
        {"route": "/a/x", "methods": [], "endpoint": "a", "port": None, "backends": [none]},
        {
            "route": "/b",
            "methods": ["POST"],
            "endpoint": "b",
            "port": port,
            "backends": [
                {"name": "m", "weight": 9, "readyPods": 1},
                {"name": "n", "weight": 0, "readyPods": 0},
            ],
        },
        {
            "route": None,
            "methods": [],
            "endpoint": "c",
            "port": None,
            "backends": [none],
            "error": "route '/a/x' is taken by endpoint a",
        },
    ]
    assert (await process.ask("/-/routes")).headers["allow"] == "GET, HEAD"


async def test_an_endpoints_own_port_takes_any_host_and_any_path_unstripped(
    upstream: Any, router: Any
) -> None:
    server = await upstream()
    port = free_port()
    process = await router().start(endpoint("e", backend("b", server.target), port=port))
    own = f"http://127.0.0.1:{port}"
    for path in ("/", "/e/x", "/-/routes", "/what?ever"):
        assert (await process.ask(path, base=own, headers={"host": "any.example.com"})).status == 200
    assert [seen.target for seen in server.seen] == ["/", "/e/x", "/-/routes", "/what?ever"]


async def test_of_ten_thousand_requests_each_backend_has_its_share_within_two(
    upstream: Any, router: Any
) -> None:
    weights = {"a": 90, "b": 10, "zero": 0}
    servers = {name: await upstream() for name in weights}
    process = await router().start(
        endpoint(
            "e", *(backend(name, servers[name].target, weight=weight) for name, weight in weights.items())
        )
    )
    counts: Counter[str] = Counter()

    async def client() -> None:
        for _ in range(250):
            reply = await process.ask()
            assert reply.status == 200
            counts[reply.headers["x-penstock-backend"]] += 1

    await asyncio.gather(*(client() for _ in range(40)))
    for name, weight in weights.items():
        assert abs(len(servers[name].seen) - 10_000 * weight / sum(weights.values())) <= 2
        assert counts[name] == len(servers[name].seen)


async def test_a_backend_that_does_not_exist_shares_its_weight_among_the_others(
    upstream: Any, router: Any
) -> None:
    first, second = await upstream(), await upstream()
    process = await router().start(
        endpoint(
            "e", backend("a", first.target, weight=3), backend("b", second.target), backend("gone", weight=96)
        )
    )
    replies = await asyncio.gather(*(process.ask() for _ in range(400)))
    assert {reply.status for reply in replies} == {200}
    assert abs(len(first.seen) - 300) <= 2


async def test_pods_share_and_a_pod_that_tells_of_a_queue_gets_less(upstream: Any, router: Any) -> None:
    async def busy(seen: Seen) -> Answer:
        return Answer(headers=b"x-penstock-queue: 50\r\n")

    first, second = await upstream(), await upstream(busy)
    process = await router().start(endpoint("e", backend("b", first.target, second.target)))
    for _ in range(100):
        assert (await process.ask()).status == 200
    assert len(second.seen) < 10
    assert len(first.seen) > 90


async def test_garbage_settings_change_nothing_and_are_told(upstream: Any, router: Any) -> None:
    server = await upstream()
    process = await router().start(endpoint("e", backend("b", server.target)))
    for garbage in (
        "",
        "endpoints:\n",
        "v: 1\n",
        "{",
        "[]",
        '{"v": 2}',
        '{"v": 1, "endpoints": [{"name": "e", "backends": [{"name": "b", "weight": -1}]}]}',
    ):
        process.path.write_text(garbage)
        process.log.clear()
        await until(lambda: any("settings refused" in line for line in process.log))
        assert any("the settings before" in line for line in process.log)
    assert (await process.ask()).status == 200
    process.path.write_text(
        "endpoints: [{name: y, backends: [{name: b, targets: ['" + server.target + "']}]}]\n"
    )
    await process.until_routes(lambda routes: [route["endpoint"] for route in routes] == ["y"])
    settings = json.loads((await process.ask("/settings", method="GET", base=process.admin)).body)
    assert settings["endpoints"][0]["coldStart"] == {"timeoutMs": 120_000, "maxPending": 1000}
    process.path.write_text("endpoints: []\n")
    await process.until_routes(lambda routes: not routes)


async def test_a_file_by_hand_that_cannot_be_used_ends_the_start(tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    path.write_text("endpoints: [{name: e, targets: ['127.0.0.1:1']}]\n")
    ended = await run("penstock_router", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", f"--settings={path}")
    assert ended.code == 2
    assert ended.out == ""
    assert "$.endpoints[0]: unknown member targets: targets belongs in $.endpoints[].backends[]" in ended.err


async def test_a_router_alone_warns_of_each_backend_that_has_no_targets(upstream: Any, router: Any) -> None:
    """At its start and when the file changes; not of one to which another endpoint gives them."""
    server = await upstream()
    process = await router().start(
        endpoint("e", backend("b", server.target), backend("none")), endpoint("f", backend("b"))
    )

    def warned() -> list[tuple[str, str]]:
        lines = [json.loads(line) for line in process.log if "backend has no targets" in line]
        return [(line["backend"], line["endpoint"]) for line in lines]

    await until(lambda: warned() == [("none", "e")])
    process.settle(endpoint("f", backend("b")))
    await until(lambda: warned() == [("none", "e"), ("b", "f")])


async def test_admin_port(upstream: Any, router: Any) -> None:
    server = await upstream()
    process = await router().start(endpoint("e", backend("b", server.target)))
    await process.ask()
    await process.ask("/nobody")
    for path in ("/livez", "/readyz"):
        assert (await process.ask(path, method="GET", base=process.admin)).status == 200
    assert (await process.ask("/what", method="GET", base=process.admin)).status == 404
    assert (await process.ask("/livez", base=process.admin)).status == 405
    text = await process.metrics()
    assert 'penstock_router_requests_total{backend="b",code="200",endpoint="e",reason=""} 1.0' in text
    assert 'requests_total{backend="",code="404",endpoint="",reason="no_route"} 1.0' in text
    assert 'penstock_router_duration_seconds_count{backend="b",endpoint="e"} 1.0' in text
    process.settle()
    await process.until_routes(lambda routes: routes == [])
    assert 'endpoint="e"' not in await process.metrics()


async def test_ctrl_c_ends_a_router_that_runs_alone_at_once(upstream: Any, router: Any) -> None:
    """Nobody was promised a drain."""
    server = await upstream()
    process = await router("--propagation-delay=600s").start(endpoint("e", backend("b", server.target)))
    assert (await process.ask()).status == 200
    process.signal(signal.SIGINT)
    assert await process.ended() == 0


async def test_each_error_has_a_reason_and_the_access_log_has_each_request(
    upstream: Any, router: Any
) -> None:
    """Of a model's own answer, of one of the SDK's, of ours; no query, no field and no body is logged."""
    answers = {
        "/ok": Answer(),
        "/own": Answer(status=503),
        "/sdk": Answer(status=500, headers=b"x-penstock-reason: model_failed\r\n"),
        "/odd": Answer(status=500, headers=b"x-penstock-reason: made_up\r\n"),
    }

    async def behave(seen: Seen) -> Answer:
        return answers[seen.target.partition("?")[0]]

    server = await upstream(behave)
    process = await router("--access-log=1").start(endpoint("e", backend("b", server.target)))
    for path in answers:
        await process.ask(f"/e{path}?s3cret", data=b"s3cret", headers={"x-request-id": path})
    await process.ask("/nobody?s3cret", headers={"x-request-id": "/nobody"})
    text = await process.metrics()
    for code, reason in (
        ("503", "model_answer"),
        ("500", "model_failed"),
        ("500", "model_answer"),
        ("200", ""),
    ):
        labels = f'backend="b",code="{code}",endpoint="e",reason="{reason}"'
        assert f"penstock_router_requests_total{{{labels}}} 1.0" in text

    def logged() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in process.log]
        answered = [line for line in lines if line["message"] == "request"]
        return answered if len(answered) == 5 else []

    lines = await until(logged)
    assert [(line["request_id"], line["status"], line["reason"]) for line in lines] == [
        ("/ok", 200, ""),
        ("/own", 503, "model_answer"),
        ("/sdk", 500, "model_failed"),
        ("/odd", 500, "model_answer"),
        ("/nobody", 404, "no_route"),
    ]
    assert (lines[0]["endpoint"], lines[0]["backend"], lines[0]["path"]) == ("e", "b", "/ok")
    assert not any("s3cret" in line for line in process.log)


async def test_a_closed_path_is_refused_in_every_spelling_on_both_ways_in(upstream: Any, router: Any) -> None:
    """Where a model takes its userConfig no client gets; a sidecar of an older release would let it pass."""
    server = await upstream()
    port = free_port()
    process = await router().start(
        endpoint("e", backend("b", server.target), port=port, closed=["/-/reconfigure", "/conf"]),
        endpoint("open", backend("b", server.target)),
    )
    for path in ("/-/reconfigure", "/-/reconfigur%65?x", "//-/reconfigure/", "/CONF", "/x/../conf"):
        for base in (process.data + "/e", f"http://127.0.0.1:{port}"):
            url = URL(base + path, encoded=True)
            async with process.session.post(url, json={}) as reply:
                assert (reply.status, (await reply.json(content_type=None))["reason"]) == (403, "forbidden")
    assert server.seen == []
    assert (await process.ask("/e/-/reconfigured")).status == 200
    assert (await process.ask("/open/conf")).status == 200
    process.settle(endpoint("e", backend("b", server.target), port=port))
    await process.until_routes(lambda routes: len(routes) == 1)
    assert (await process.ask("/e/conf")).status == 200
