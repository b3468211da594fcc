"""A model that streams, for tests, as a program: `python -m tests.support.models.stream_model [--port N]`.

`GET /sse?n=3` sends an event for each `POST /-/go`, `POST /sink` reports how many bytes
it read, `POST /echo` answers each piece as it comes, `GET /big?mb=100` sends as fast as it is taken,
`GET /cut` breaks off, `GET /hang` never answers, `GET /ws` echoes WebSocket messages (`close:4001` closes
with that code), `/show` returns the request. `GET /-/seen` reports how many requests are ongoing, how many
clients left early, and how much `/big` has sent.
"""

from __future__ import annotations

import argparse
import asyncio
import signal

import uvloop
from aiohttp import WSMsgType, web


class Model:
    """The handlers and what they have seen."""

    def __init__(self) -> None:
        self.ongoing = 0
        self.left = 0
        self.sent = 0
        self.most = 0
        self.go = asyncio.Semaphore(0)

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=0, middlewares=[self.count])
        app.router.add_get("/", self.ready)
        app.router.add_get("/-/seen", self.seen)
        app.router.add_post("/-/go", self.go_on)
        app.router.add_get("/sse", self.sse, allow_head=False)
        app.router.add_post("/sink", self.sink)
        app.router.add_post("/echo", self.echo)
        app.router.add_get("/big", self.big)
        app.router.add_get("/cut", self.cut)
        app.router.add_get("/hang", self.hang)
        app.router.add_get("/ws", self.websocket)
        app.router.add_route("*", "/show", self.show)
        return app

    @web.middleware
    async def count(self, request: web.Request, handler: web.Handler) -> web.StreamResponse:
        """Count what is ongoing and who left."""
        if request.path in ("/", "/-/seen", "/-/go"):
            return await handler(request)
        self.ongoing += 1
        self.most = max(self.most, self.ongoing)
        try:
            return await handler(request)
        except (asyncio.CancelledError, ConnectionError):
            self.left += 1
            raise
        finally:
            self.ongoing -= 1

    async def ready(self, _: web.Request) -> web.StreamResponse:
        """It is ready."""
        return web.Response()

    async def seen(self, _: web.Request) -> web.StreamResponse:
        """The requests that it has received."""
        return web.json_response(
            {"ongoing": self.ongoing, "left": self.left, "sent": self.sent, "most": self.most}
        )

    async def go_on(self, _: web.Request) -> web.StreamResponse:
        """Let one event go."""
        self.go.release()
        return web.Response()

    async def sse(self, request: web.Request) -> web.StreamResponse:
        """Send events, one for each `POST /-/go`."""
        answer = web.StreamResponse(headers={"content-type": "text/event-stream", "x-model": "m7"})
        await answer.prepare(request)
        for number in range(int(request.query["n"])):
            await self.go.acquire()
            await answer.write(b"data: %d\n\n" % number)
        return answer

    async def sink(self, request: web.Request) -> web.StreamResponse:
        """Read the body."""
        size = 0
        async for piece in request.content.iter_any():
            size += len(piece)
        return web.json_response({"bytes": size, "length": request.headers.get("content-length")})

    async def echo(self, request: web.Request) -> web.StreamResponse:
        """The body, piece by piece, from before its first one."""
        answer = web.StreamResponse()
        await answer.prepare(request)
        async for piece in request.content.iter_any():
            await answer.write(piece)
        return answer

    async def big(self, request: web.Request) -> web.StreamResponse:
        """A large body of known length."""
        count = int(request.query["mb"])
        answer = web.StreamResponse(headers={"content-length": str(count << 20)})
        await answer.prepare(request)
        if request.method == "HEAD":
            return answer  # NB: aiohttp sends a body here too, which is read as the next answer on a bad day
        for _ in range(count):
            await answer.write(bytes(1 << 20))
            self.sent += 1 << 20
        return answer

    async def cut(self, request: web.Request) -> web.StreamResponse:
        """Half a body."""
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"half")
        await self.go.acquire()
        assert request.transport is not None
        request.transport.abort()
        return answer

    async def hang(self, _: web.Request) -> web.StreamResponse:
        """No answer."""
        await asyncio.sleep(3600)
        return web.Response()

    async def show(self, request: web.Request) -> web.StreamResponse:
        """The request, as a document."""
        return web.json_response(
            {
                "method": request.method,
                "target": request.raw_path,
                "headers": [[name, value] for name, value in request.headers.items()],
                "body": (await request.read()).decode(),
            },
            status=int(request.query.get("status", "200")),
            headers={"x-model": "m7", "x-penstock-queue": "77", "server-timing": "gpu;dur=1"},
        )

    async def websocket(self, request: web.Request) -> web.StreamResponse:
        """Echo messages."""
        answer = web.WebSocketResponse(protocols=("chat",))
        await answer.prepare(request)
        async for message in answer:
            if message.type is WSMsgType.TEXT and message.data.startswith("close:"):
                await answer.close(code=int(message.data[6:]), message=b"as asked")
            elif message.type is WSMsgType.TEXT:
                await answer.send_str(message.data)
            elif message.type is WSMsgType.BINARY:
                await answer.send_bytes(message.data)
        if answer.close_code == 1006:
            self.left += 1
        return answer


async def serve(port: int) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    runner = web.AppRunner(Model().app(), handler_cancellation=True, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, shutdown_timeout=0.1)
    await site.start()
    host, bound = runner.addresses[0][:2]
    print(f"ready {host}:{bound}", flush=True)
    await stop.wait()
    await runner.cleanup()


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    uvloop.run(serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
