"""The examples of batching in a process and of streams: each does what it says."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import penstock
from penstock.testing import serving
from tests.support.pages.example_cases import AROUND_A_BATCH, EXAMPLES
from tests.support.processes.penstock_run import Run


@pytest.fixture
def module() -> Callable[[str], Any]:
    """Imports an example anew."""

    def load(name: str) -> Any:
        spec = importlib.util.spec_from_file_location(name.rpartition("/")[2], EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        return made

    return load


async def get(app: Any, path: str, text: str, *, leave_after: int = 1 << 30) -> tuple[int, list[bytes]]:
    """One request to an ASGI application: status and body, piece by piece.

    The client goes away after so many pieces.
    """
    status = 0
    pieces: list[bytes] = []
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not began.is_set():
            began.set()
            return {"type": "http.request", "body": b""}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)
        if message.get("body"):
            pieces.append(message["body"])
            if len(pieces) >= leave_after:
                gone.set()
                await asyncio.sleep(0)

    began = asyncio.Event()
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "path": path,
        "raw_path": path.encode(), "query_string": f"text={text}".encode(), "headers": [], "scheme": "http",
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "root_path": "",
    }  # fmt: skip
    await app(scope, receive, send)
    return status, pieces


async def test_requests_to_a_fastapi_application_share_batches(module: Callable[[str], Any]) -> None:
    """Each request has its own answer or error, and the model ran in few batches."""
    example = module("batching/fastapi_app")
    texts = ["a", "bb", "+", "dddd"] * 4
    answers = await asyncio.gather(*(get(example.app, "/score", text) for text in texts))
    for text, (status, pieces) in zip(texts, answers, strict=True):
        document = json.loads(b"".join(pieces))
        if text == "+":  # a space
            assert (status, document) == (422, {"detail": "expected a text, found an empty one"})
        else:
            assert (status, document) == (200, {"text": text, "score": len(text)})
    assert len(example.model.batches) <= 3
    assert sum(example.model.batches) == len(texts)


async def test_each_client_of_a_fastapi_application_reads_its_own_stream(
    module: Callable[[str], Any],
) -> None:
    """Also where one of them goes away in the middle."""
    app = module("batching/fastapi_app").app
    short, long, gone = await asyncio.gather(
        get(app, "/spell", "ab"), get(app, "/spell", "penstock"), get(app, "/spell", "x" * 500, leave_after=2)
    )
    assert short == (200, [b"a", b"b"])
    assert long == (200, [b"p", b"e", b"n", b"s", b"t", b"o", b"c", b"k"])
    assert len(gone[1]) < 500


async def test_a_served_class_works_for_each_request_around_a_batch(module: Callable[[str], Any]) -> None:
    """Also after its userConfig has changed how it is batched."""
    kind = module("batching/greeter").Greeter
    async with serving(kind, max_concurrent_batches=64, max_batch_size=1) as greeter:
        requests = [greeter({"name": name}) for name in ("Ann", " Bob ", "")]
        ann, bob, nobody = await asyncio.gather(*requests, return_exceptions=True)
        assert (ann["greeting"], bob["greeting"]) == ("Hello Ann!", "Hello Bob!")
        assert (ann["batches"], bob["batches"]) == (1, 1)
        assert str(nobody) == "expected a name, found an empty one"
        assert (await greeter({"name": "Cy", "loud": True}))["greeting"] == "HELLO CY!"
    made = kind()
    made.reconfigure({"max_batch_size": 2})
    await asyncio.gather(*(made(name) for name in "abcd"))
    assert made.batches == [2, 2]
    with pytest.raises(ValueError, match="expected max_batch_size to be an integer of at least 1, found 0"):
        made.reconfigure({"max_batch_size": 0})


async def test_one_run_writes_for_many_clients(module: Callable[[str], Any]) -> None:
    async def read(stream: Any) -> list[str]:
        return [piece async for piece in stream]

    async with serving(module("streaming/writer").Writer) as writer:
        streams = [writer("A penstock"), writer(""), writer("It")]
        first, none, other = await asyncio.gather(*map(read, streams), return_exceptions=True)
        assert first == other == ["is", "the", "gated", "pipe", "that", "feeds", "a", "turbine"]
        assert str(none) == "expected a text to go on with, found none"
        assert await read(writer("A penstock", words=2)) == ["is", "the"]
        assert [len(batch) for batch in writer.batches] == [3, 1]


async def test_a_served_class_batches_in_its_process_under_penstock_run(tmp_path: Path) -> None:
    """Requests come to it one by one and many at once; its userConfig says how it batches them."""
    settings = tmp_path / "settings.yaml"
    settings.write_text(yaml.safe_dump({"batching": AROUND_A_BATCH, "userConfig": {"max_batch_size": 4}}))
    run = Run(EXAMPLES / "batching")
    try:
        await (await run.start("greeter:Greeter", "--settings", str(settings))).ready()
        people = [{"name": str(number), "loud": number == 7} for number in range(16)]
        greetings = await asyncio.gather(*map(run.ask, people))
        for number, each in enumerate(greetings):
            assert each["greeting"] == ("HELLO 7!" if number == 7 else f"Hello {number}!")
        assert (await run.ask({"name": "Dora"}))["greeting"] == "Hello Dora!"
    finally:
        await run.stop()


async def test_each_client_reads_its_own_stream_under_penstock_run() -> None:
    """One that cannot be written is an error of its own; the lengths may differ."""
    run = Run(EXAMPLES / "streaming")
    try:
        await (await run.start("writer:Writer")).ready()
        write = penstock.Handle("writer", url=run.url).write.options(stream=True)

        async def read(text: str, words: int) -> list[str]:
            return [piece async for piece in write(text, words=words)]

        whole, some, none = await asyncio.gather(
            read("A penstock", 8), read("It", 2), read("", 8), return_exceptions=True
        )
        assert whole == ["is", "the", "gated", "pipe", "that", "feeds", "a", "turbine"]
        assert some == ["is", "the"]
        assert isinstance(none, penstock.UpstreamError)
        assert "expected a text to go on with, found none" in str(none)
    finally:
        await run.stop()
