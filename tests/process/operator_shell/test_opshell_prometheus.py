"""A query comes to one number, or to words why it does not: of a server that speaks Prometheus' HTTP API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from penstock_operator import config as configuration
from penstock_operator.errors import ConfigError
from penstock_operator.prometheus import MAX_BYTES, NoValue, Prometheus
from tests.support.processes.ports import free_port

ASKED = "sum(rate(errors[1m])) / sum(rate(all[1m]))"


class Server:
    """Answers as it is told, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str], str | None]] = []
        self.status = 200
        self.body: bytes = b""
        self.headers: dict[str, str] = {}
        self.silent = False
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, dict(request.query), request.headers.get("Authorization")))
        if self.silent:
            await asyncio.Event().wait()
        return web.Response(status=self.status, body=self.body, headers=self.headers)

    def says(self, data: Any, status: int = 200) -> None:
        self.status, self.body = status, json.dumps(data).encode()

    def results_in(self, kind: str, result: Any) -> None:
        self.says({"status": "success", "data": {"resultType": kind, "result": result}})


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    there = Server()
    application = web.Application()
    application.router.add_route("*", "/{any:.*}", there.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    there.url = f"http://127.0.0.1:{port}"
    yield there
    await runner.cleanup()


def series(value: str, **labels: str) -> dict[str, Any]:
    return {"metric": labels, "value": [1764000000.123, value]}


@pytest.mark.parametrize(
    ("kind", "result", "number"),
    [
        ("vector", [series("0.0125", job="a")], 0.0125),
        ("vector", [series("0")], 0.0),
        ("scalar", [1764000000, "-3e2"], -300.0),
    ],
)
async def test_a_scalar_or_one_series_is_a_number(
    server: Server, kind: str, result: Any, number: float
) -> None:
    """Below the URL's own path, with the query as it is, and a time for the server, too."""
    server.results_in(kind, result)
    assert await Prometheus(f"{server.url}/prefix/", seconds=4).query(ASKED) == number
    assert server.asked == [("/prefix/api/v1/query", {"query": ASKED, "timeout": "4s"}, None)]


@pytest.mark.parametrize(
    ("kind", "result", "reason"),
    [
        ("vector", [], "expected one series, found none: is the metric there?"),
        ("vector", [series("1", a="1"), series("2", a="2")], "expected one series, found 2: sum or choose"),
        ("vector", [series("NaN")], "expected one number, found NaN: was it divided by zero?"),
        ("scalar", [1, "+Inf"], "expected one number, found +Inf: was it divided by zero?"),
        ("vector", [series("one")], "expected one number, found 'one'"),
        ("vector", [{"metric": {}, "histogram": [1, {}]}], "expected one number, found a histogram"),
        ("matrix", [{"metric": {}, "values": []}], "expected one number, found a result of type matrix"),
        ("string", [1, "1"], "expected one number, found a result of type string"),
        ("vector", [{"metric": {}, "value": 7}], "expected an answer of Prometheus' HTTP API"),
        ("vector", {"a": 1}, "expected an answer of Prometheus' HTTP API"),
    ],
)
async def test_what_is_not_one_number_is_said(server: Server, kind: str, result: Any, reason: str) -> None:
    server.results_in(kind, result)
    answer = await Prometheus(server.url).query(ASKED)
    assert isinstance(answer, NoValue)
    assert answer.reason.startswith(reason)


@pytest.mark.parametrize(
    ("status", "body", "headers", "reason"),
    [
        pytest.param(400, {"status": "error", "error": "parse error"}, {}, ": parse error", id="query"),
        pytest.param(422, {"status": "error", "error": "e" * 9000}, {}, "e" * 199 + "…", id="execution"),
        pytest.param(401, {"status": "error", "error": "secret"}, {}, "HTTP status 401", id="no right"),
        pytest.param(503, "secret", {}, "HTTP status 503", id="starting"),
        pytest.param(400, "secret", {}, "HTTP status 400", id="another server"),
        pytest.param(302, "", {"Location": "/secret"}, "HTTP status 302", id="redirection"),
        pytest.param(200, "[" * 5000, {}, "expected an answer of Prometheus' HTTP API", id="another"),
        pytest.param(200, {"status": "error", "error": "late"}, {}, "found an error: late", id="error"),
        pytest.param(200, "x" * MAX_BYTES, {}, f"of more than {MAX_BYTES} bytes", id="long"),
        pytest.param(200, "a", {"Content-Encoding": "gzip"}, "expected an answer", id="packed"),
    ],
)
async def test_an_answer_without_a_result_is_said_and_nothing_else_of_it(
    server: Server, status: int, body: Any, headers: dict[str, str], reason: str
) -> None:
    server.says(body, status)
    server.headers = headers
    answer = await Prometheus(server.url).query(ASKED)
    assert isinstance(answer, NoValue)
    assert reason in answer.reason
    assert "secret" not in answer.reason
    assert len(answer.reason) < 400
    assert len(server.asked) == 1


async def test_a_server_that_is_not_there_or_silent_is_said(server: Server) -> None:
    """As is where none is configured; whoever waits is let go."""
    server.silent = True
    gone = f"http://127.0.0.1:{free_port()}"
    answers = [await Prometheus(url, seconds=0.3).query(ASKED) for url in (server.url, gone, "")]
    assert [answer.reason.partition(":")[0] for answer in answers if isinstance(answer, NoValue)] == [
        "http",
        "http",
        "no Prometheus is configured",
    ]
    assert f"{server.url}: no answer within 0.3 s" in str(answers[0])
    assert f"{gone} could not be asked" in str(answers[1])


async def test_credentials_are_read_for_each_query(server: Server, tmp_path: Path) -> None:
    """A token is taken where there is one; authorities that cannot be read are said, not left out."""
    server.results_in("scalar", [1, "1"])
    asking = Prometheus(server.url, str(tmp_path))
    await asking.query(ASKED)
    (tmp_path / "token").write_text("one\n")
    await asking.query(ASKED)
    (tmp_path / "token").write_text("two")
    await asking.query(ASKED)
    assert [token for _, _, token in server.asked] == [None, "Bearer one", "Bearer two"]
    (tmp_path / "ca.crt").write_text("none")
    assert "could not be asked" in str(await asking.query(ASKED))


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        (["--prometheus-url", "http://prometheus.monitoring:9090/prefix"], False),
        (["--prometheus-url", "https://p", "--prometheus-credentials", "/c"], False),
        (["--prometheus-url", "prometheus:9090"], True),
        (["--prometheus-url", "http://user:word@prometheus:9090"], True),
        (["--prometheus-url", "http://p?a=b"], True),
        (["--prometheus-url", "http://p", "--prometheus-credentials", "/c"], True),
    ],
)
def test_the_flags_are_checked(arguments: list[str], refused: bool) -> None:
    """No password in a URL that every log and pod spec shows, and no token in plain text."""
    if not refused:
        assert configuration.parse(arguments).prometheus_url == arguments[1]
        return
    with pytest.raises(ConfigError, match="--prometheus-"):
        configuration.parse(arguments)
