"""Answers the page: its views, and what the user asks for."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import functools
import io
import json
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import parse_qs, quote, unquote, urlsplit

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from penstock_cli import remedies
from penstock_cli.cluster import GROUP, PLURALS, Cluster, CommandError, Resource, body, cause
from penstock_cli.commands import Command, abort, pause, promote
from penstock_cli.text import Screen
from penstock_cli.ui import shared, views
from penstock_cli.ui.scrapes import Scrapes
from penstock_cli.ui.shared import Shared
from penstock_cli.ui.store import KINDS, Key, Store, plural
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import Request

POLL_SECONDS = 20.0
"""The longest that a question for news waits for some."""
TRY_SECONDS, TRY_BYTES = 60.0, 1024 * 1024
"""The longest call of an endpoint, and the most of its answer that is shown."""
EVENTS_SECONDS = 3.0
SHARED_SECONDS = 5.0
RIGHTS_SECONDS = 60.0
REMEMBERED = 1000
GONE = 10_000
"""The most rows of deleted resources that are remembered for pages which have not heard of them."""

_STEER: dict[str, tuple[Command, dict[str, Any]]] = {
    "promote": (promote, {"full": False}),
    "promote-full": (promote, {"full": True}),
    "pause": (pause, {}),
    "abort": (abort, {}),
}
T = TypeVar("T")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class Overview:
    """The rows of all resources, and when each changed last."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[int, views.View]] = {}
        self._gone: dict[str, int] = {}
        self._revision = self._oldest = 0

    def since(self, store: Store, since: int, now: datetime) -> views.View:
        """What has changed since a revision; its caller holds `store.lock`.

        Args:
            store: all resources.
            since: a revision that the page has; 0 for none.
            now: the time.
        """
        if store.revision != self._revision:
            self._revision = store.revision
            fresh = views.rows(store, now)
            for key in self._rows.keys() - fresh.keys():
                del self._rows[key]
                self._gone[key] = store.revision
            for key, row in fresh.items():
                if key not in self._rows or self._rows[key][1] != row:
                    self._rows[key] = store.revision, row
                    self._gone.pop(key, None)
            if len(self._gone) > GONE:
                self._gone.clear()
                self._oldest = store.revision
        whole = since <= self._oldest
        return {
            "whole": whole,
            "rows": {key: row for key, (revision, row) in self._rows.items() if whole or revision > since},
            "gone": [] if whole else [key for key, revision in self._gone.items() if revision > since],
        }


class Server:
    """Handles the requests of the page.

    Args:
        cluster: whose resources are shown, and where the user acts.
        store: follows them.
        scrapes: the metrics of pods.
        everywhere: whether all namespaces are shown.
    """

    def __init__(self, cluster: Cluster, store: Store, scrapes: Scrapes, *, everywhere: bool) -> None:
        self._cluster, self._store, self._scrapes, self._everywhere = cluster, store, scrapes, everywhere
        self._overview = Overview()
        self._kept: dict[tuple[str, ...], tuple[float, Any]] = {}
        self._lock = threading.Lock()

    async def answer(self, request: Request) -> Any:
        """Answer a request of the page: what becomes JSON."""
        url = urlsplit(request.target)
        parts = [unquote(part) for part in url.path.removeprefix("/api/").split("/")]
        since = (parse_qs(url.query).get("since") or ["0"])[0]
        if not since.isdecimal():
            raise PenstockError(Reason.BAD_REQUEST, f"since: expected a revision, found {since!r}")
        match request.method, *parts:
            case "GET", "overview":
                return await self._news(int(since), lambda: self._rows(int(since)))
            case "GET", "view", kind, namespace, name:
                return await self._news(int(since), lambda: self._view((kind, namespace, name)))
            case "GET", "reasons":
                return [(reason, *row) for reason, row in remedies.known().items()]
            case "GET", "schema", namespace, name:
                asked = {"method": "GET", "path": "/openapi.json"}
                return await _apart(lambda: self._call(namespace, name, asked))
            case "POST", "try", namespace, name:
                asked = _object(request.body)
                return await _apart(lambda: self._call(namespace, name, asked))
            case "POST", "steer", namespace, name:
                asked = _object(request.body)
                return await _apart(lambda: self._steer(namespace, name, asked))
        raise PenstockError(Reason.NO_ROUTE, f"the page has no {request.method} {url.path}")

    async def _news(self, since: int, make: Callable[[], views.View]) -> views.View:
        """Wait for a revision after `since`, and say what there is then."""
        store = self._store
        await store.news(since, POLL_SECONDS)
        with store.lock:
            said = {
                "revision": store.revision,  # of before: what changes meanwhile is news once more
                "problems": _problems(store.problems),
                "unread": list(store.problems),
                "listed": store.listed | store.problems.keys() >= set(KINDS),
            }
        return said | await _apart(make)

    def _rows(self, since: int) -> views.View:
        with self._store.lock:
            news = self._overview.since(self._store, since, datetime.now(UTC))
        configuration = self._cluster.api.api_client.configuration
        return {
            "server": configuration.host,
            "namespace": "" if self._everywhere else self._cluster.namespace,
            **news,
        }

    def _view(self, key: Key) -> views.View:
        store, now, scraped = self._store, datetime.now(UTC), self._scrapes.of
        with store.lock:
            if key[0] in PLURALS and key not in store.resources:
                return {"view": None}
        made: Callable[[], views.View | None]
        match key[0]:
            case "ModelBackend":
                made = functools.partial(views.backend, store, key, scraped, now)
            case "ModelEndpoint":
                made = functools.partial(views.endpoint, store, key, scraped, self._shared(key))
            case "TrafficSplit":
                made = functools.partial(
                    views.split, store, key, self._events(key), self._forbidden(key), now
                )
            case "BatchPolicy":
                made = functools.partial(views.policy, store, key)
            case views.WORKLOAD:
                made = functools.partial(views.workload, store, key, scraped, now)
            case _:
                raise PenstockError(Reason.NO_ROUTE, f"the page has no view of a {key[0]}")
        with store.lock:
            if key[0] != views.WORKLOAD and key not in store.resources:
                return {"view": None}
            try:
                return {"view": made()}
            except Exception as error:  # of a CRD, or a program in a pod, of another version
                raise PenstockError(Reason.INTERNAL, f"cannot show this {key[0]}: {error!r}") from error

    def _events(self, key: Key) -> list[Resource] | CommandError:
        def read() -> list[Resource] | CommandError:
            try:
                return dataclasses.replace(self._cluster, namespace=key[1]).events(key[0], key[2])
            except CommandError as error:
                return error

        return self._remembered(("events", *key), EVENTS_SECONDS, read)

    def _shared(self, key: Key) -> Shared:
        def read() -> Shared:
            return shared.read(dataclasses.replace(self._cluster, namespace=key[1]), key[2])

        return self._remembered(("shared", *key), SHARED_SECONDS, read)

    def _forbidden(self, key: Key) -> str:
        """Why the user may not steer a release; empty if it is allowed."""
        place = dict(zip(("namespace", "name"), key[1:], strict=True))
        place |= {"verb": "patch", "group": GROUP, "resource": "trafficsplits"}

        def read() -> str:
            try:
                answer = self._cluster.call(
                    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                    post={
                        "apiVersion": "authorization.k8s.io/v1",
                        "kind": "SelfSubjectAccessReview",
                        "spec": {"resourceAttributes": place},
                    },
                )
                allowed = json.loads(answer.data)["status"]["allowed"]
            except (ApiException, HTTPError, OSError, ValueError, KeyError):
                return ""  # whoever is not allowed to ask is told when he acts
            return "" if allowed else f"needs the right to patch trafficsplits in namespace {key[1]}"

        return self._remembered(("rights", *key), RIGHTS_SECONDS, read)

    def _remembered(self, key: tuple[str, ...], seconds: float, read: Callable[[], T]) -> T:
        """What was read within the last seconds, or is read now."""
        now = time.monotonic()
        with self._lock:
            if key in self._kept and self._kept[key][0] > now:
                kept: T = self._kept[key][1]
                return kept
        found = read()
        with self._lock:
            if len(self._kept) >= REMEMBERED:
                self._kept.clear()
            self._kept[key] = time.monotonic() + seconds, found
        return found

    def _steer(self, namespace: str, name: str, asked: dict[str, Any]) -> views.View:
        """Ask for a step of a release, as the command of that name does; returns what it says."""
        if asked.get("verb") not in _STEER:
            raise PenstockError(
                Reason.BAD_REQUEST, f"verb: expected one of {', '.join(_STEER)}, found {asked.get('verb')!r}"
            )
        command, more = _STEER[asked["verb"]]
        said = io.StringIO()
        arguments = argparse.Namespace(split=name, wait=False, command=asked["verb"], **more)
        try:
            command.run(
                dataclasses.replace(self._cluster, namespace=namespace),
                arguments,
                Screen(out=said, width=10_000, live=False),
            )
        except CommandError as error:
            raise PenstockError(Reason.BAD_REQUEST, str(error)) from error
        return {"said": said.getvalue().strip()}

    def _call(self, namespace: str, name: str, asked: dict[str, Any]) -> views.View:
        """Call an endpoint through the API server's proxy (the right `services/proxy`).

        NB: that leads to no pod of another namespace: a shared router is called itself (`pods/proxy` there).
        """
        method, path = asked.get("method", "POST"), asked.get("path", "/")
        served = isinstance(path, str) and path.startswith("/")
        served = served and ".." not in unquote(path.split("?")[0]).split("/")
        if method not in _METHODS or not served:
            raise PenstockError(
                Reason.BAD_REQUEST,
                f"expected a method of {', '.join(_METHODS)} and a path that begins with / and has no .., "
                f"found {method!r} and {path!r}",
            )
        with self._store.lock:
            if ("ModelEndpoint", namespace, name) not in self._store.resources:
                raise PenstockError(Reason.NO_ROUTE, f"there is no ModelEndpoint {namespace}/{name}")
        client, found = self._cluster.api.api_client, self._shared(("ModelEndpoint", namespace, name))
        at, called = namespace, f"services/{quote(name, safe='')}:80"
        if found.pods:
            at, pod = random.choice(found.pods)  # noqa: S311 - not a secret
            called = f"pods/{pod}:{found.port}"
        _, url, headers, *_ = client.param_serialize(
            method,
            dataclasses.replace(self._cluster, namespace=at).path(f"{called}/proxy"),
            header_params={"Content-Type": "application/json"},
            auth_settings=["BearerToken"],
        )
        began = time.monotonic()
        try:
            answer = client.rest_client.pool_manager.request(
                method,
                url + quote(path, safe="/?&=%:;,+@!$'()*~"),
                body=str(asked.get("body") or "").encode() or None,
                headers=headers,
                timeout=TRY_SECONDS,
                redirect=False,
                retries=False,
                preload_content=False,
            )
            said, whole = body(answer, most=TRY_BYTES, seconds=TRY_SECONDS)
        except (HTTPError, OSError) as error:
            raise PenstockError(Reason.MODEL_UNREACHABLE, f"cannot call it: {cause(error)}") from error
        if (refusal := _refusal(answer.status, said)) is not None:
            if answer.status == 403:
                where = f"its routers are shared, in namespace {at}: " if found.pods else ""
                raise PenstockError(Reason.FORBIDDEN, f"you may not call it: {where}{refusal}")
            if found.problem:
                raise PenstockError(
                    Reason.MODEL_UNREACHABLE,
                    f"cannot call it: {refusal}; if its routers are shared: {found.problem}",
                )
        return {
            "status": answer.status,
            "type": answer.headers.get("content-type", ""),
            "timing": answer.headers.get("server-timing", ""),
            "milliseconds": (time.monotonic() - began) * 1000,
            "body": said.decode(errors="replace"),
            "whole": whole,
        }


def _refusal(status: int, said: bytes) -> str | None:
    """What the API server itself says if it has not passed a call on; None if the answer is an endpoint's."""
    if status not in (403, 503):
        return None
    try:
        document = json.loads(said)
        return (
            str(document["message"])
            if (document["kind"], document["apiVersion"]) == ("Status", "v1")
            else None
        )
    except (ValueError, TypeError, KeyError):
        return None


def _problems(problems: dict[str, str]) -> list[str]:
    """What cannot be read, and why, each cause once."""
    kinds: dict[str, list[str]] = {}
    for kind, why in problems.items():
        kinds.setdefault(why, []).append(plural(kind))
    return [f"cannot read {', '.join(sorted(names))}: {why}" for why, names in kinds.items()]


async def _apart(call: Callable[[], T]) -> T:
    """Run a call in a thread of its own, for which the end of the process does not wait."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True, name="call").start()
    return await asyncio.wrap_future(done)


def _object(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError as error:
        raise PenstockError(Reason.BAD_REQUEST, f"expected a JSON object, found {error}") from error
    if not isinstance(document, dict):
        raise PenstockError(Reason.BAD_REQUEST, f"expected a JSON object, found {body[:40]!r}")
    return document
