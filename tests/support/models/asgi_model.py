"""An ASGI application as the model of a sidecar under test: predictions wait behind a gate, and are recorded.

`python -m tests.support.models.asgi_model FILE` serves `app` of a Python file with uvicorn and prints
`ready HOST:PORT`. `GET /-/runs` shows what ran and what the gate holds, `POST /-/gate?open=0` keeps
predictions waiting, as in `protocol_models`.
"""

from __future__ import annotations

import asyncio
import json
import runpy
import socket
import sys
from typing import Any

import uvicorn


class Gated:
    """The application behind a gate."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._gate = asyncio.Event()
        self._gate.set()
        self._runs: list[int] = []
        self._held: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request (ASGI)."""
        path, query = scope["path"], scope["query_string"]
        if scope["method"] == "POST" and not path.startswith("/-/"):
            await self._predict(scope, receive, send)
            return
        if path == "/-/gate":
            self._turn(is_open=query == b"open=1")
        document = json.dumps({"runs": self._runs, "held": self._held}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": document})

    async def _predict(self, scope: Any, receive: Any, send: Any) -> None:
        self._held.append(scope["path"])
        await self._gate.wait()
        whole = await _whole(receive)
        self._runs.append(len(json.loads(whole["body"])["instances"]))
        messages = [whole]

        async def again() -> Any:
            return messages.pop() if messages else await receive()

        await self._app(scope, again, send)

    def _turn(self, *, is_open: bool) -> None:
        if is_open:
            self._gate.set()
        else:
            self._gate.clear()
            self._held.clear()


async def _whole(receive: Any) -> dict[str, Any]:
    message: dict[str, Any] = await receive()
    while message.get("more_body"):
        more = await receive()
        message = {**more, "body": message["body"] + more["body"]}
    return message


async def main() -> None:
    """Serve until killed."""
    app = Gated(runpy.run_path(sys.argv[1])["app"])
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"ready 127.0.0.1:{listener.getsockname()[1]}", flush=True)
    await uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off")).serve([listener])


if __name__ == "__main__":
    asyncio.run(main())
