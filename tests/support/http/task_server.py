"""A server that runs a task for each connection, and can lose all of them."""

from __future__ import annotations

import asyncio
from typing import Self


class TaskServer:
    """Listens from `start` to `stop`, also on the same port again; `_connection` is what it does."""

    def __init__(self, port: int = 0) -> None:
        self.host, self.port = "127.0.0.1", port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, port: int | None = None, host: str = "127.0.0.1") -> Self:
        """Listen, on the port as before where none is given."""
        self.host = host
        port = self.port if port is None else port
        self._server = await asyncio.start_server(self._accept, host, port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Stop to listen and lose every connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # A task that was cancelled before its first step closed nothing, and closing takes turns of the loop.
        writers = list(self._writers)
        self._writers.clear()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.create_task(self._connection(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError
