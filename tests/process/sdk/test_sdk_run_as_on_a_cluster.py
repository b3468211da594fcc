"""A class answers under `penstock run` what it answers on a cluster, byte for byte."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.processes.penstock_run import Run
from tests.support.processes.rendered import POD, Rendered

MODULE = """
import penstock


class Cases:
    def __init__(self, suffix):
        self.suffix = suffix
        self.config = None

    def reconfigure(self, config):
        self.config = config

    @penstock.batched
    def predict(self, items, *, times=1):
        special = {
            "own": penstock.Response(409, {"x-own": "1"}, {"detail": "taken"}),
            "text": penstock.Response(200, body=b"plain"),
            "error": ValueError("mine"),
            "nothing": object(),
        }
        if "raise" in items:
            raise RuntimeError("of the batch")
        return [special.get(item, f"{item * times}{self.suffix}") if isinstance(item, str) else item
                for item in items]

    @penstock.batched(columns=True)
    def both(self, a, b=0):
        return [[x, y] for x, y in zip(a, b)]

    @penstock.batched
    def letters(self, items):
        for step in range(max(map(len, items))):
            yield [item[step] if step < len(item) else penstock.END for item in items]

    @penstock.multiplexed(max_models=2)
    def weights(self, model_id):
        return model_id.upper()

    @penstock.batched
    def of_model(self, items):
        model = self.weights(penstock.context().model_id)
        return [[model, item, penstock.context().batch_limit] for item in items]
"""
OURS = {"date", "server-timing"}
"""Fields that differ with the moment."""
EVENTS = {"accept": "text/event-stream"}
LINES = {"accept": "application/x-ndjson"}


def predict(*items: Any, to: str = "/v1/models/cases:predict", headers: Any = (), **members: Any) -> Any:
    return {"method": "POST", "path": to, "headers": dict(headers), "json": {"instances": items, **members}}


def raw(data: bytes, to: str = "/predict", method: str = "POST", **headers: str) -> Any:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return {"method": method, "path": to, "headers": fields, "data": data}


CASES: dict[str, Any] = {
    "one item": predict("a"),
    "several": predict("a", 7, None, 1.5, {"b": "ü"}),
    "no item": predict(),
    "a member for all": predict("a", times=3),
    "an unknown member": predict("a", often=3),
    "as it was spelled": raw(b'{ "instances" :[1.50, 1e3 ] }'),
    "columns": predict({"a": 1, "b": 2}, to="/both"),
    "an argument by default": predict({"a": 1}, to="/both"),
    "an argument too few": predict({"b": 1}, to="/both"),
    "one of several too few": predict({"a": 1}, {"b": 1}, to="/both"),
    "a method by its header": predict({"a": 1}, headers={"x-penstock-method": "both"}),
    "no such method": predict("a", headers={"x-penstock-method": "none"}),
    "an answer of its own": predict("own"),
    "one among several": predict("a", "own"),
    "a text": predict("text"),
    "an exception": predict("error"),
    "a batch that raises": predict("raise"),
    "no JSON": predict("nothing"),
    "a stream": predict("abc", to="/letters", headers=EVENTS),
    "lines": predict("abc", to="/letters", headers=LINES),
    "streams of several": predict("ab", "c", to="/letters", headers=LINES),
    "a stream as a whole": predict("ab", "c", to="/letters"),
    "a stream that raises": predict(7, to="/letters", headers=EVENTS),
    "one of many models": predict(1, to="/of_model", headers={"x-penstock-model-id": "m"}),
    "none of many models": predict(1, to="/of_model"),
    "no object": raw(b"[1]"),
    "broken JSON": raw(b'{"instances": [1,'),
    "no instances": raw(b'{"items": []}'),
    "compressed": raw(gzip.compress(b'{"instances": [1]}'), content_encoding="gzip"),
    "another type": raw(b'{"instances": [1]}', content_type="text/plain"),
    "no time": raw(b'{"instances": [1]}', x_penstock_timeout_ms="0"),
    "a wrong time": raw(b'{"instances": [1]}', x_penstock_timeout_ms="soon"),
    "another verb": raw(b"", method="PUT"),
    "what can be asked": raw(b"", method="GET", to="/openapi.json"),
    "the ready path": raw(b"", method="GET", to="/"),
    "its head": raw(b"", method="HEAD", to="/"),
    "another path": raw(b"", method="GET", to="/other"),
    "the config": raw(b"{}", to="/-/reconfigure"),
}


@pytest.fixture
async def urls(tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    """Where the class is served: by `penstock run`, and by what the operator renders for it."""
    folder = tmp_path
    (folder / "cases.py").write_text(MODULE)
    python = {"image": "i", "target": "cases:Cases", "initKwargs": {"suffix": "!"}}
    run = Run(folder)
    rendered = Rendered(folder, "cases", {"model": {"python": python}}, {"PYTHONPATH": str(folder)})
    await run.start("cases:Cases", "--init-kwargs", '{"suffix": "!"}')
    try:
        await asyncio.gather(run.ready(), rendered.start())
        yield run.url, rendered.url
    finally:
        await asyncio.gather(run.stop(), rendered.stop())


async def asked(session: aiohttp.ClientSession, url: str, case: dict[str, Any]) -> tuple[int, Any, bytes]:
    """The answer to a case: its status, its fields but for those of the moment, its body."""
    more = {name: case[name] for name in ("json", "data") if name in case}
    fields = {"x-request-id": "r-1", "content-type": "application/json", **case["headers"]}
    async with session.request(case["method"], url + case["path"], headers=fields, **more) as answer:
        text = await answer.read()
        body = text.replace(b',"pod":"%b"' % POD.encode(), b"")  # a laptop has none
        cases = {(name.lower(), value) for name, value in answer.headers.items() if name.lower() not in OURS}
        if body != text:
            cases = {
                ("content-length", f"{len(body)}"),
                *[each for each in cases if each[0] != "content-length"],
            }
        return answer.status, sorted(cases), body


async def test_answers_are_the_same_on_a_laptop_and_on_a_cluster(urls: tuple[str, str]) -> None:
    """Status, fields but for date and timing, and body; but for the pod's name in errors."""
    statuses = set()
    async with aiohttp.ClientSession() as session:
        for name, case in CASES.items():
            laptop, cluster = [await asked(session, url, case) for url in urls]
            assert laptop == cluster, name
            statuses.add(laptop[0])
    assert {200, 400, 403, 404, 405, 409, 415, 422, 500, 502} <= statuses
