"""Errors can be found: each has a reason in the metrics, and a log line with the request's id.

A real sidecar before a real model server of the SDK, or before another one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock_sidecar.model.answers import from_model, model_reason
from penstock_wire.headers import NOT_ADMITTED, REASON, REQUEST_ID
from tests.support.http.stream_peer import Script, Scripted, Wire, scripted
from tests.support.processes.ports import free_port
from tests.support.processes.sidecar_process import HELD, Pair, Program, Reply, until

MODEL = """
import penstock

@penstock.batched(columns=True)
def answer(do):
    if "raise" in do:
        raise RuntimeError("no device left")
    return do[:-1] if "few" in do else do
"""


class SdkPair(Pair):
    """A sidecar before a model server of the SDK, which has the address of its sidecar."""

    async def start_model(self) -> None:
        folder = self.settings_path.parent
        folder.joinpath("failing.py").write_text(MODEL)
        env = {"PYTHONPATH": str(folder), "PENSTOCK_BACKEND": "digits", "PENSTOCK_POD": "digits-0"}
        self.model = Program("penstock.serve", "failing:answer", f"--port={free_port()}", env=env)
        self.model_url = "http://" + (await self.model.start()).removeprefix("data=")


@pytest.fixture
async def sdk(tmp_path: Path) -> AsyncIterator[SdkPair]:
    pair = SdkPair(tmp_path)
    try:
        yield await pair.start()
    finally:
        await pair.stop()


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[Pair]:
    pair = Pair(tmp_path, "--access-log=1")
    try:
        yield await pair.start()
    finally:
        await pair.stop()


async def lines(program: Program, message: str, count: int = 1) -> list[dict[str, Any]]:
    """The log lines with this message, once there are so many."""

    async def look() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in program.log if line.startswith("{")]
        lines = [line for line in lines if line["message"] == message]
        return lines if len(lines) >= count else []

    lines: list[dict[str, Any]] = await until(look, details=lambda: program.log)
    return lines


async def reasons(pair: Pair) -> dict[tuple[str, str], float]:
    """`requests_total` by code and reason."""
    text = (await pair.admin_get("/metrics")).body.decode()
    counts = {}
    for line in text.splitlines():
        name, _, rest = line.partition("{")
        if name == "penstock_sidecar_requests_total":
            labels, _, value = rest.partition("} ")
            code, reason = (part.partition("=")[2].strip('"') for part in labels.split(","))
            counts[code, reason] = float(value)
    return counts


async def ask(pair: Pair, *items: Any, request_id: str) -> Reply:
    return await pair.predict(*items, headers={"x-request-id": request_id})


def test_of_a_models_fields_that_are_penstocks_only_the_sdks_reasons_pass():
    """A sidecar's own reason, such as a full queue, would mean something to the router."""
    for said, kept in ((b"model_failed", True), (b"queue_full", False), (b"draining", False), (b"", False)):
        field = (REASON, said)
        passed = from_model((field, (NOT_ADMITTED, b"1"), (b"x-m", b"1"), (REQUEST_ID, b"a,b")))
        assert passed == ((field, (b"x-m", b"1")) if kept else ((b"x-m", b"1"),))
        assert model_reason(500, (field,)) == ("model_failed" if kept else "model_answer")
        assert model_reason(200, (field,)) == ""


@pytest.mark.parametrize(
    ("word", "status", "reason", "words", "message"),
    [
        (
            "few",
            502,
            "bad_answer",
            "answer: expected 2 answers, found 1",
            "the model's answer cannot be used",
        ),
        ("raise", 500, "model_failed", "the model raised RuntimeError", "the model raised an exception"),
    ],
)
async def test_a_model_of_the_sdk_that_fails(
    sdk: SdkPair, word: str, status: int, reason: str, words: str, message: str
) -> None:
    """The client, the metrics and both logs say so, with the request's id, its backend and its pod."""
    reply = await ask(sdk, {"do": word}, {"do": 1}, request_id="r-1")
    assert (reply.status, reply.reason) == (status, reason)
    document = reply.document
    assert (document["request_id"], document["backend"], document["pod"]) == ("r-1", "digits", "digits-0")
    assert await reasons(sdk) == {(str(status), reason): 1.0}
    (line,) = await lines(sdk.sidecar, "a batch failed")
    assert (line["reason"], line["status"], line["request_ids"]) == (reason, status, ["r-1"])
    assert words in line["words"]
    assert not line["words"].startswith("{")
    (line,) = await lines(sdk.model, message)
    assert line["request_id"] == "r-1"


async def test_what_is_wrong_with_a_request_has_its_reason_and_no_line(sdk: SdkPair) -> None:
    reply = await ask(sdk, {"undo": 1}, request_id="r-1")
    assert (reply.status, reply.reason) == (422, "missing_arguments")
    assert (await ask(sdk, {"do": 1}, request_id="r-2")).status == 200
    assert await reasons(sdk) == {("422", "missing_arguments"): 1.0, ("200", ""): 1.0}
    sdk.signal()
    await sdk.sidecar.ended()
    assert not any("a batch failed" in line for line in sdk.sidecar.log)


async def test_no_error_is_without_a_reason(other: Pair) -> None:
    """Neither those of a model server that is not the SDK's, nor those of what passes through."""
    path = "/v1/models/m:predict"
    assert (await other.predict(1, path=f"{path}?status=503")).status == 503
    assert (await other.predict(1, path=f"{path}?status=418")).status == 418
    assert (await other.predict(1, path=f"{path}?reset=1")).status == 502
    assert (await other.ask(path, data='{"instances": [')).status == 400
    counts = await reasons(other)
    assert counts == {
        ("503", "model_answer"): 1.0,
        ("418", "model_answer"): 1.0,
        ("502", "model_unreachable"): 1.0,
        ("400", "bad_json"): 1.0,
    }
    failed = await lines(other.sidecar, "a batch failed", 2)
    assert [line["reason"] for line in failed] == ["model_answer", "model_unreachable"]


async def test_the_access_log_has_every_end_of_a_request_and_nothing_of_its_contents(other: Pair) -> None:
    """The model's answers, our errors, and clients that leave; without query, fields or body."""
    marker = "m4rk3r"
    headers = {"authorization": marker}
    for number, path in enumerate((f"/p?{marker}", f"/p?status=500&{marker}")):
        await other.predict(marker, path=path, headers={**headers, "x-request-id": f"r-{number}"})
    body = f'{{"instances": [{marker}'
    await other.ask(f"/p?{marker}", data=body, headers={**headers, "x-request-id": "r-2"})
    await other.ask(f"/get?{marker}", method="GET", headers={**headers, "x-request-id": "r-3"})
    leaving = asyncio.create_task(other.predict(marker, path=HELD, headers={"x-request-id": "r-4"}))
    await other.until_state(ongoing=1)
    leaving.cancel()
    entries = {line["request_id"]: line for line in await lines(other.sidecar, "request", 5)}
    shown = {name: (line["method"], line["path"], line["status"]) for name, line in entries.items()}
    assert shown == {
        "r-0": ("POST", "/p", 200),
        "r-1": ("POST", "/p", 500),
        "r-2": ("POST", "/p", 400),
        "r-3": ("GET", "/get", 200),
        "r-4": ("POST", "/p", 499),
    }
    assert [entries[f"r-{n}"]["reason"] for n in range(5)] == [
        "",
        "model_answer",
        "bad_json",
        "",
        "client_gone",
    ]
    assert entries["r-0"]["received"] == len(json.dumps({"instances": [marker]}))
    assert 'desc="1", model;dur=' in entries["r-0"]["timing"]
    assert not any(marker in json.dumps(line) for line in entries.values())
    await other.release()


async def test_a_request_that_passes_through_and_gets_no_answer_has_a_line_and_a_reason(
    tmp_path: Path,
) -> None:
    pair = Pair(tmp_path, "--protocol=none")
    try:
        await pair.start()
        reply = await pair.predict(1, path="/p?reset=1", headers={"x-request-id": "r-1"})
        assert (reply.status, reply.reason) == (502, "model_unreachable")
        (line,) = await lines(pair.sidecar, "the model did not answer")
        assert (line["reason"], line["request_id"]) == ("model_unreachable", "r-1")
        assert (await pair.predict(1, path="/p?status=500")).status == 500
        assert await reasons(pair) == {("502", "model_unreachable"): 1.0, ("500", "model_answer"): 1.0}
    finally:
        await pair.stop()


SETTINGS = b"\0\0\x18\4\0\0\0\0\0\0\3\0\0\0\xc8\0\4\0\x10\0\0\0\5\0\0@\0\0\6\1\0\0\0"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


async def eager(wire: Wire) -> None:
    """As grpcio and hyper: their settings come first, whatever the client says."""
    await wire.send(SETTINGS)
    if await wire.reader.readexactly(len(PREFACE)) == PREFACE:
        await wire.gone()


async def silent(wire: Wire) -> None:
    """As Go's net/http: no word to a client of HTTP/1.1."""
    if await wire.reader.readexactly(len(PREFACE)) != PREFACE:
        wire.reset()
        return
    await wire.send(SETTINGS)
    await wire.gone()


async def closing(wire: Wire) -> None:
    """Not of HTTP/2, either."""
    await wire.head()


class ScriptedPair(Pair):
    """A sidecar before a model that speaks raw bytes."""

    peer: Scripted

    async def start_model(self) -> None:
        self.model_url = f"http://127.0.0.1:{self.peer.port}"


@pytest.mark.parametrize(("script", "found"), [(eager, True), (silent, True), (closing, False)])
async def test_a_model_that_speaks_http2_alone_is_said_to(tmp_path: Path, script: Script, found: bool):
    """In /readyz, so in the condition ModelLoaded, which has the same message."""
    async with scripted(Scripted()) as peer:
        peer.scripts = [script]
        pair = ScriptedPair(tmp_path)
        pair.peer = peer
        await pair.start(ready=False)

        async def look() -> bytes:
            body = (await pair.admin_get("/readyz")).body
            return body if b"GET /: " in body else b""

        said = await until(look)
        await pair.session.close()
        await pair.sidecar.stop()
    assert (b"the model speaks HTTP/2 alone, expected HTTP/1.1" in said) == found
