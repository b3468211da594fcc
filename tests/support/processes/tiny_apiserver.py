"""A Kubernetes apiserver of the smallest kind: `MemoryCluster` behind the real REST API on loopback.

It speaks what the operator and kopf use: discovery, list (with paging), watch, get, server-side apply, the
status and scale subresources, create, delete. `break_watches` ends every watch in mid-line, `stall_watches`
leaves them open and silent, `refuse` is as if it had ended, until `accept`.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import Any, Self

import msgspec
from aiohttp import web
from yarl import URL

from penstock_operator.errors import ClusterError
from penstock_operator.kinds import BY_KIND, EVENT, Kind
from tests.support.worlds.memory_cluster import MemoryCluster, is_selected

Obj = dict[str, Any]
EVENTS = 100_000
"""The events that are kept for watches from an earlier version."""
LISTS = 20
"""The lists of more than a page that are kept, those read last."""
_MANAGERS = {"status": "penstock-status", "scale": "penstock-autoscaler", "": "penstock"}


class TinyApiserver:
    """See the module.

    Attributes:
        requests: every request as (method, path, query, content type).
        fail: by (method, plural): statuses to answer with instead, used up from the front.
        token: where it is not empty, calls with another one get 401.
        gate: while it is not set, every call but those about a Lease waits.
        spelled: what is sent in place of some text, for values that Python cannot write.
        proxies: by the begin of a path, that of a pod's or Service's proxy: what answers there.
    """

    def __init__(self, cluster: MemoryCluster | None = None) -> None:
        self.cluster = cluster or MemoryCluster()
        self.requests: list[tuple[str, str, dict[str, str], str]] = []
        self.fail: dict[tuple[str, str], list[int]] = {}
        self.page = 500
        self.url = self.token = ""
        self.watches = 0
        self.spelled: dict[str, str] = {}
        self.proxies: dict[str, Callable[[web.Request], web.Response]] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self._open: set[asyncio.Queue[bytes | None]] = set()
        self._streams: dict[asyncio.Queue[bytes | None], tuple[str, str]] = {}
        self._events: deque[tuple[int, str, Obj]] = deque(maxlen=EVENTS)
        self._lists: dict[str, list[Obj]] = {}
        self.cluster.watchers.append(self._event)
        self._runner: web.AppRunner | None = None
        self._kinds = {(kind.group, kind.version, kind.plural): kind for kind in BY_KIND.values()}

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        await self.accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.gate.set()
        for queue in self._open:
            queue.put_nowait(None)
        assert self._runner is not None
        await self._runner.cleanup()

    def kubeconfig(self) -> str:
        """A kubeconfig that leads here."""
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": self.url}}],
                "users": [{"name": "u", "user": {"token": self.token or "tiny"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }
        )

    async def accept(self) -> None:
        """Listen; again on the same port after `refuse`."""
        assert self._runner is not None
        self._site = web.TCPSite(self._runner, "127.0.0.1", URL(self.url).port if self.url else 0)
        await self._site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def refuse(self) -> None:
        """Refuse new connections, and lose those that are open."""
        assert self._runner is not None
        assert self._runner.server is not None
        await self._site.stop()
        for connection in self._runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()

    def break_watches(self) -> None:
        """End every watch."""
        for queue in list(self._streams):
            queue.put_nowait(b'{"type": "MODIF')
            queue.put_nowait(None)

    def stall_watches(self) -> None:
        """Say nothing more in the watches that are open, and leave them so."""
        self._streams.clear()

    def _event(self, kind: str, obj: Obj) -> None:
        self._events.append((int(obj["metadata"]["resourceVersion"]), kind, obj))
        for queue, (wanted, selector) in self._streams.items():
            self._offer(queue, wanted, selector, kind, obj)

    def _offer(
        self, queue: asyncio.Queue[bytes | None], wanted: str, selector: str, kind: str, obj: Obj
    ) -> None:
        if obj["kind"] == wanted and is_selected(obj, selector):
            queue.put_nowait(self._text({"type": kind, "object": obj}).encode() + b"\n")

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        path, query = request.path, dict(request.query)
        self.requests.append((request.method, path, query, request.content_type))
        if "/leases" not in path:
            await self.gate.wait()
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized")
        for begin, answers in self.proxies.items():
            if path.startswith(begin):
                return answers(request)
        document = self._discovery(path)
        if document is not None:
            return web.json_response(document)
        group, version, namespace, plural, name, sub = _split(path)
        core_events = (group, version, plural) == ("", "v1", "events")
        kind = EVENT if core_events else self._kinds.get((group, version, plural))
        if kind is None:
            return _status(404, f"the server could not find the requested resource {path}")
        planned = self.fail.get((request.method, plural))
        if planned:
            return _status(planned.pop(0), "induced")
        if request.method == "GET" and query.get("watch"):
            return await self._watch(request, kind)
        try:
            body = await request.json() if request.can_read_body else {}
            if core_events:
                answer = self._core_events(namespace, query["fieldSelector"])
            else:
                answer = await self._act(request, kind, namespace, name, sub, body)
            return web.json_response(text=self._text(answer))
        except ClusterError as error:
            return _status(error.status, error.message)

    def _core_events(self, namespace: str, selector: str) -> Obj:
        """Events of one object as the core API has them."""
        wanted = dict(pair.removeprefix("involvedObject.").split("=") for pair in selector.split(","))
        events = [
            {
                "metadata": event["metadata"],
                "involvedObject": event["regarding"],
                "eventTime": event["eventTime"],
                "lastTimestamp": None,
                "reason": event["reason"],
                "message": event["note"],
                "type": event["type"],
            }
            for (kind, where, _), event in self.cluster.objects.items()
            if (kind, where) == (EVENT.kind, namespace)
            and all(event["regarding"][field] == value for field, value in wanted.items())
        ]
        return {"kind": "EventList", "apiVersion": "v1", "metadata": {}, "items": events}

    def _text(self, answer: Obj) -> str:
        if not self.spelled:
            return msgspec.json.encode(answer).decode()
        text = json.dumps(answer)
        for word, spelling in self.spelled.items():
            text = text.replace(word, spelling)
        return text

    async def _act(
        self, request: web.Request, kind: Kind, namespace: str, name: str, sub: str, body: Obj
    ) -> Obj:
        cluster, query = self.cluster, request.query
        if request.method == "GET" and not name:
            version = str(self._events[-1][0] if self._events else 1)
            labels = query.get("labelSelector")
            wanted = query.get("fieldSelector", "").removeprefix("metadata.name=") or None
            only = "PartialObjectMetadataList" in request.headers.get("Accept", "")
            begun, _, place = query.get("continue", "").partition("/")
            start = int(place or 0)
            end = start + min(self.page, int(query.get("limit", self.page)))
            items = self._lists.get(begun, [])
            if begun and begun not in self._lists:
                raise ClusterError(410, "the provided continue parameter is too old")
            if not begun:
                items = cluster.selected(kind, namespace or None, labels, wanted)
                begun = f"{version}.{len(self.requests)}"
            more = {"continue": f"{begun}/{end}"} if end < len(items) else {}
            self._lists.pop(begun, None)
            if more or start:
                self._lists[begun] = items  # as in the real one, all pages are of one state
                while len(self._lists) > LISTS:
                    del self._lists[next(iter(self._lists))]
            return {
                "kind": f"{kind.kind}List",
                "metadata": {"resourceVersion": version, **more},
                "items": [
                    {"metadata": item["metadata"]}
                    if only
                    else {field: item[field] for field in item if field not in ("kind", "apiVersion")}
                    for item in items[start:end]
                ],
            }
        if request.method == "GET":
            live = await cluster.get(kind, namespace, name)
            if live is None:
                raise ClusterError(404, f"{kind.plural} {name!r} not found")
            return live
        if request.method == "PATCH" and query.get("fieldManager") == "kubectl-penstock":
            assert request.content_type == "application/merge-patch+json"
            assert (kind.kind, set(body), set(body["metadata"])) == (
                "TrafficSplit",
                {"metadata"},
                {"annotations"},
            )
            live = await cluster.get(kind, namespace, name)
            uid = live["metadata"]["uid"] if live is not None else ""
            return await cluster.annotate(kind, namespace, name, body["metadata"]["annotations"], uid=uid)
        if request.method == "PATCH" and request.content_type == "application/merge-patch+json" and not sub:
            assert (kind.kind, query["fieldManager"]) == ("Pod", _MANAGERS[""])
            metadata = body["metadata"]
            return await cluster.annotate(kind, namespace, name, metadata["annotations"], uid=metadata["uid"])
        if request.method == "PATCH" and request.content_type == "application/merge-patch+json":
            assert (sub, query["fieldManager"]) == ("scale", _MANAGERS["scale"])
            return await cluster.apply_scale(kind, namespace, name, body["spec"]["replicas"])
        if request.method == "PATCH":
            assert request.content_type == "application/apply-patch+yaml"
            assert query["force"] == "true"
            assert query["fieldManager"] == _MANAGERS[sub], (sub, query)
            if sub == "status":
                return await cluster.apply_status(kind, body)
            if sub == "scale":
                live = await cluster.get(kind, namespace, name)
                if live is None or live["spec"].get("replicas") != body["spec"]["replicas"]:
                    # As the real one does, with a custom resource.
                    raise ClusterError(500, "request to convert CR to an invalid group/version")
                return await cluster.apply_scale(kind, namespace, name, body["spec"]["replicas"])
            return await cluster.apply(kind, body)
        if request.method == "POST":
            return await cluster.create(kind, body)
        uid = (body.get("preconditions") or {}).get("uid")
        live = cluster.objects.get((kind.kind, namespace, name))
        if live is None:
            raise ClusterError(404, "not found")
        if uid and live["metadata"]["uid"] != uid:
            raise ClusterError(409, "the uid in the precondition does not match")
        await cluster.delete(kind, namespace, name)
        return {"kind": "Status", "status": "Success"}

    async def _watch(self, request: web.Request, kind: Kind) -> web.StreamResponse:
        self.watches += 1
        selector = request.query.get("labelSelector", "")
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        since = int(request.query.get("resourceVersion") or 0)
        for version, event, obj in self._events:
            if version > since:
                self._offer(queue, kind.kind, selector, event, obj)
        self._streams[queue] = (kind.kind, selector)
        self._open.add(queue)
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        try:
            await answer.prepare(request)
            while (line := await queue.get()) is not None:
                await answer.write(line)
        except ConnectionError:
            pass
        finally:
            self._open.discard(queue)
            self._streams.pop(queue, None)
        return answer

    def _discovery(self, path: str) -> Obj | None:
        groups = sorted({(kind.group, kind.version) for kind in self._kinds.values() if kind.group})
        if path == "/api":
            return {"versions": ["v1"]}
        if path == "/apis":
            versions = [
                {
                    "name": group,
                    "versions": [{"groupVersion": f"{group}/{version}", "version": version}],
                    "preferredVersion": {"groupVersion": f"{group}/{version}", "version": version},
                }
                for group, version in [*groups, ("apiextensions.k8s.io", "v1")]
            ]
            return {"groups": versions}
        if path == "/apis/apiextensions.k8s.io/v1":
            return {
                "resources": [
                    _resource("customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
                ]
            }
        parts = path.strip("/").split("/")
        group, version = ("", parts[-1]) if parts[0] == "api" else (parts[1], parts[-1])
        if len(parts) != (2 if parts[0] == "api" else 3):
            return None
        resources = [
            _resource(kind.plural, kind.kind)
            for kind in self._kinds.values()
            if (kind.group, kind.version) == (group, version)
        ]
        if not group:
            resources += [_resource("namespaces", "Namespace", namespaced=False)]
        return {"resources": resources}


def _resource(plural: str, kind: str, *, namespaced: bool = True) -> Obj:
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    return {
        "name": plural,
        "singularName": kind.lower(),
        "kind": kind,
        "namespaced": namespaced,
        "verbs": verbs,
    }


def _split(path: str) -> tuple[str, str, str, str, str, str]:
    parts = path.strip("/").split("/")
    group, version, rest = ("", parts[1], parts[2:]) if parts[0] == "api" else (parts[1], parts[2], parts[3:])
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    return group, version, namespace, *[*rest, "", "", ""][:3]  # type: ignore[return-value]


def _status(code: int, message: str) -> web.Response:
    headers = {"Retry-After": "3"} if code == 429 else None
    body = {"kind": "Status", "code": code, "message": message}
    return web.json_response(body, status=code or 500, headers=headers)
