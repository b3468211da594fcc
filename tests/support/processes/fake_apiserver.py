"""As much of an apiserver as lists and watches EndpointSlices: versions, chunks, bookmarks, 410, cuts."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

from penstock_router.pods.endpoint_slices import BY_CONTROLLER, OURS, SERVICE_LABEL
from penstock_wire.contract import BACKEND_LABEL, SIDECAR_PORT
from tests.support.http.task_server import TaskServer
from tests.support.processes.ports import free_port


def endpoint_slice(name: str, backend: str, *endpoints: dict[str, Any]) -> dict[str, Any]:
    """A slice of a backend's Service."""
    labels = {**OURS, **BY_CONTROLLER, BACKEND_LABEL: backend, SERVICE_LABEL: f"{backend}-backend"}
    return {
        "metadata": {"name": name, "namespace": "demo", "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": SIDECAR_PORT, "protocol": "TCP"}],
        "endpoints": list(endpoints),
    }


def endpoint_of(address: str = "127.0.0.1", pod: str = "", **conditions: bool) -> dict[str, Any]:
    """One endpoint of a slice, ready unless said otherwise."""
    name = pod or f"pod-{address}"
    return {
        "addresses": [address],
        "conditions": {"ready": True, **conditions},
        "targetRef": {"kind": "Pod", "name": name, "namespace": "demo", "uid": f"uid-{name}"},
    }


class FakeApiServer(TaskServer):
    """Serves `/apis/discovery.k8s.io/v1/namespaces/<ns>/endpointslices`."""

    def __init__(self) -> None:
        super().__init__(free_port())
        self.url = f"http://127.0.0.1:{self.port}"
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 1
        self.oldest = 0
        """Watches from a version below this get 410."""
        self.lists = 0
        self.watches = 0
        self.watched: list[float] = []
        """When each watch was asked for, before it was answered: the loop's time."""
        self.requests: list[tuple[str, dict[str, str], dict[str, str]]] = []
        self.refuse_watches: int | None = None
        """A status to refuse watches with."""
        self.gone_in_stream = False
        """Tell 410 as an event of the stream, as apiservers do, not as the answer's status."""
        self._events: list[tuple[int, dict[str, Any]]] = []
        self._streams: set[asyncio.StreamWriter] = set()
        self._changed = asyncio.Condition()

    async def put(self, *slices: dict[str, Any]) -> None:
        """Create or replace slices."""
        for slice_ in slices:
            name = slice_["metadata"]["name"]
            kind = "MODIFIED" if name in self.objects else "ADDED"
            self.objects[name] = slice_  # NB: first, or a list between the two has the version without it
            await self._happen(kind, slice_)

    async def delete(self, name: str) -> None:
        """Delete a slice."""
        await self._happen("DELETED", self.objects.pop(name))

    async def bookmark(self) -> None:
        """Tell the present version and nothing else."""
        await self._happen("BOOKMARK", {"metadata": {}})

    def cut_streams(self) -> None:
        """Lose the watches' connections."""
        for writer in self._streams:
            writer.transport.abort()

    def forget(self) -> None:
        """Compact: watches from before now get 410; earlier events are only in the list."""
        self._events.clear()
        self.version += 10
        self.oldest = self.version

    async def _happen(self, kind: str, thing: dict[str, Any]) -> None:
        self.version += 1
        thing = {**thing, "metadata": {**thing["metadata"], "resourceVersion": str(self.version)}}
        async with self._changed:
            self._events.append((self.version, {"type": kind, "object": thing}))
            self._changed.notify_all()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.rstrip("\r\n").split("\r\n")
                parts = urlsplit(first.split(" ")[1])
                query = {key: values[0] for key, values in parse_qs(parts.query).items()}
                fields = (line.partition(":") for line in lines)
                headers = {name.lower(): value.strip() for name, _, value in fields}
                self.requests.append((parts.path, query, headers))
                if "watch" not in query:
                    self._list(writer)
                elif not await self._watch(writer, int(query["resourceVersion"])):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _list(self, writer: asyncio.StreamWriter) -> None:
        self.lists += 1
        items = list(self.objects.values())
        self._plain(writer, 200, {"metadata": {"resourceVersion": str(self.version)}, "items": items})

    @staticmethod
    def _plain(writer: asyncio.StreamWriter, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)

    async def _watch(self, writer: asyncio.StreamWriter, version: int) -> bool:
        self.watches += 1
        self.watched.append(asyncio.get_running_loop().time())
        gone = {"code": 410, "reason": "Expired", "message": "too old resource version"}
        if self.refuse_watches is not None:
            self._plain(writer, self.refuse_watches, {"code": self.refuse_watches, "reason": "Forbidden"})
            return True
        if version < self.oldest and not self.gone_in_stream:
            self._plain(writer, 410, gone)
            return True
        writer.write(b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n")
        self._streams.add(writer)
        try:
            if version < self.oldest:
                self._event(writer, {"type": "ERROR", "object": gone})
                writer.write(b"0\r\n\r\n")
                return True
            while True:
                async with self._changed:
                    fresh = [event for event in self._events if event[0] > version]
                    if not fresh:
                        await self._changed.wait()
                        continue
                for _, event in fresh:
                    self._event(writer, event)
                version = fresh[-1][0]
                await writer.drain()
        finally:
            self._streams.discard(writer)

    @staticmethod
    def _event(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
        """One event in two chunks, since chunks and events need not agree."""
        line = json.dumps(event).encode() + b"\n"
        for part in (line[: len(line) // 2], line[len(line) // 2 :]):
            writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
