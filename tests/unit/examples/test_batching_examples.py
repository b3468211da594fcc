"""The examples of batching in a process: in FastAPI, and around any model object."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples/batching"


@pytest.fixture
def module() -> Callable[[str], Any]:
    """Imports an example anew."""

    def load(name: str) -> Any:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
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
    example = module("fastapi_app")
    texts = ["a", "bb", "+", "dddd"] * 4
    found = await asyncio.gather(*(get(example.app, "/score", text) for text in texts))
    for text, (status, pieces) in zip(texts, found, strict=True):
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
    app = module("fastapi_app").app
    short, long, gone = await asyncio.gather(
        get(app, "/spell", "ab"), get(app, "/spell", "penstock"), get(app, "/spell", "x" * 500, leave_after=2)
    )
    assert short == (200, [b"a", b"b"])
    assert long == (200, [b"p", b"e", b"n", b"s", b"t", b"o", b"c", b"k"])
    assert len(gone[1]) < 500


def test_calls_from_threads_share_batches_of_any_model(module: Callable[[str], Any]) -> None:
    """By position and by name, with the model's own defaults; who calls it wrongly learns so alone."""
    began, go = threading.Event(), threading.Event()
    batches: list[tuple[list[str], list[str]]] = []

    class Model:
        def run_batch(self, text: list[str], mark: Any = "!") -> list[str]:
            batches.append((text, mark))
            began.set()
            go.wait()
            return [each + end for each, end in zip(text, mark, strict=True)]

    batcher = module("any_model").Batcher(Model(), batch_size=2)
    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(batcher.run, "a")
        began.wait()
        rest = [threads.submit(batcher.run, text="b", mark="?"), threads.submit(batcher.run, "c")]
        with pytest.raises(TypeError, match="missing a required argument: 'text'"):
            batcher.run(mark="?")
        go.set()
        assert [each.result() for each in (first, *rest)] == ["a!", "b?", "c!"]
    assert batches[0] == (["a"], ["!"])
    batcher.stop()
