"""Follows the resources that the page shows, by watches; what was read last stays while they are broken.

A thread for each kind lists, then watches from that resource version (Kubernetes' list-and-watch,
https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kubernetes.client.exceptions import ApiException

from penstock_cli import injected
from penstock_cli.cluster import GROUP, PLURALS, SECONDS, VERSION, Cluster, Resource, cause
from penstock_wire import contract

POD, INJECTED = "Pod", "InjectedPod"
KINDS = (*PLURALS, POD, INJECTED)
_PODS = {POD: f"{contract.MANAGED_BY_LABEL}={contract.MANAGED_BY}", INJECTED: injected.LABEL}
"""Selectors of the pods that are Penstock's, and of those of others that ask for a sidecar."""
WATCH_SECONDS = 240
"""The API server ends a watch after this time, so that a connection that is lost unseen is found."""
AGAIN_SECONDS = (1.0, 2.0, 4.0)
"""Time before another try, by the number of those that failed."""
AT_LEAST_SECONDS = 1.0
"""A watch that ended sooner is not begun anew before: something between us and the API server ends it."""
SAMPLES, SAMPLE_SECONDS = 300, 3.0
"""The most samples of a resource that are kept, and the time between them: 15 minutes."""
SLOW_SECONDS = 3.0
"""Without an answer to a list or to the begin of a watch, after which the page says so."""
_FIELDS = "managedFields"

Key = tuple[str, str, str]
"""Kind, namespace and name of a resource."""


Sample = tuple[Any, ...]
"""When a status came, in seconds since 1970, and what it had. Of a backend: the items queued and ongoing, the
requests that routers held for it, `spec.replicas`, and `status.readyReplicas`. Of a split: for each metric
its name, and how much of the evidence for Fail and for Pass there is, in percent."""


@dataclass(slots=True)
class Store:
    """The resources of one namespace, or of all.

    Attributes:
        revision: grows with each change.
        lock: guards all else.
        resources: by kind, namespace and name.
        samples: of each ModelBackend and TrafficSplit, oldest first.
        problems: why a kind cannot be read now, by kind.
        listed: the kinds that were read once.
        closed: whether nobody waits for changes any longer.
    """

    revision: int = 1
    lock: threading.Lock = field(default_factory=threading.Lock)
    resources: dict[Key, Resource] = field(default_factory=dict)
    samples: dict[Key, deque[Sample]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)
    closed: bool = False
    _waiting: set[Callable[[], object]] = field(default_factory=set)

    def replace(self, kind: str, items: list[Resource]) -> None:
        """Take a list of all resources of a kind.

        Args:
            kind: such as ModelBackend.
            items: all of them.
        """
        with self.lock:
            fresh = {key_of(kind, item): item for item in items}
            for key in [key for key in self.resources if key[0] == kind and key not in fresh]:
                self._forget(key)
            for key, item in fresh.items():
                self._put(key, item)
            self.problems.pop(kind, None)
            self.listed.add(kind)
            self._notify()

    def take(self, kind: str, event: str, item: Resource) -> None:
        """Take an event of a watch.

        Args:
            kind: such as ModelBackend.
            event: ADDED, MODIFIED or DELETED.
            item: the resource.
        """
        with self.lock:
            if event == "DELETED":
                self._forget(key_of(kind, item))
            else:
                self._put(key_of(kind, item), item)
            self._notify()

    def failed(self, kind: str, problem: str) -> None:
        """Note why a kind cannot be read; what was read before stays.

        Args:
            kind: such as ModelBackend.
            problem: the cause, in words; empty once it can be read again.
        """
        with self.lock:
            if self.problems.get(kind, "") != problem:
                if problem:
                    self.problems[kind] = problem
                else:
                    self.problems.pop(kind, None)
                self._notify()

    def touch(self) -> None:
        """Note a change of what is kept elsewhere, such as a scrape."""
        with self.lock:
            self._notify()

    async def news(self, since: int, seconds: float) -> None:
        """Wait until there is another revision than one, or the store is closed.

        Args:
            since: the revision that is known.
            seconds: the most to wait.
        """
        heard = asyncio.Event()
        wake = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, heard.set)
        with self.lock:
            if self.revision != since or self.closed:
                return
            self._waiting.add(wake)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(heard.wait(), seconds)
        finally:
            with self.lock:
                self._waiting.discard(wake)

    def close(self) -> None:
        """Let nobody wait any longer."""
        with self.lock:
            self.closed = True
            self._notify()

    def of(self, kind: str, namespace: str | None = None) -> Iterator[Resource]:
        """Yield the resources of a kind; its caller holds `lock`.

        Args:
            kind: such as ModelBackend.
            namespace: None for all.
        """
        return (
            item
            for (each, where, _), item in self.resources.items()
            if each == kind and (namespace is None or where == namespace)
        )

    def _put(self, key: Key, item: Resource) -> None:
        (item.get("metadata") or {}).pop(_FIELDS, None)
        self.resources[key] = item
        if key[0] == "ModelBackend":
            status, spec = item.get("status") or {}, item.get("spec") or {}
            inputs = (status.get("recommendation") or {}).get("inputs") or {}
            load = status.get("load") or {}
            self._sample(
                key,
                int(load.get("queued", 0)),
                int(load.get("ongoing", 0)),
                int(inputs.get("held", 0)),
                spec.get("replicas", 1),
                status.get("readyReplicas") or 0,
            )
        elif key[0] == "TrafficSplit" and (verdicts := (item.get("status") or {}).get("verdicts")):
            self._sample(
                key,
                *((each["metric"], each.get("failPercent"), each.get("passPercent")) for each in verdicts),
            )

    def _sample(self, key: Key, *values: Any) -> None:
        kept, now = self.samples.setdefault(key, deque(maxlen=SAMPLES)), round(time.time(), 1)
        if len(kept) > 1 and now < kept[-2][0] + SAMPLE_SECONDS:
            kept.pop()
        kept.append((now, *values))

    def _forget(self, key: Key) -> None:
        self.resources.pop(key, None)
        self.samples.pop(key, None)

    def _notify(self) -> None:
        self.revision += 1
        for wake in self._waiting:
            wake()
        self._waiting.clear()


def key_of(kind: str, item: Resource) -> Key:
    """The key of a resource.

    Args:
        kind: such as ModelBackend.
        item: the resource.
    """
    metadata = item["metadata"]
    return kind, metadata["namespace"], metadata["name"]


class Watches:
    """Keeps a store up to date until it is closed.

    Args:
        cluster: where to read.
        everywhere: whether of all namespaces.
        store: gets what is read.
    """

    def __init__(self, cluster: Cluster, store: Store, *, everywhere: bool) -> None:
        self._cluster, self._store, self._everywhere = cluster, store, everywhere
        self._closed = threading.Event()
        self._lock, self._logs_in = threading.Lock(), threading.Lock()
        self._login = self._written()
        self._asked: dict[str, float] = {}
        self._threads = [
            threading.Thread(target=self._follow, args=(kind,), daemon=True, name=f"watch-{kind}")
            for kind in KINDS
        ]
        self._threads.append(threading.Thread(target=self._look_after, daemon=True, name="slow"))

    def start(self) -> None:
        """Begin to watch."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Read nothing more; threads that wait for the API server end with the process."""
        self._closed.set()

    def _look_after(self) -> None:
        while not self._closed.wait(SLOW_SECONDS / 3):
            with self._lock:
                for kind, asked in self._asked.items():
                    if time.monotonic() > asked + SLOW_SECONDS:
                        self._store.failed(
                            kind, f"the API server has not answered for {SLOW_SECONDS:g} s; the page waits"
                        )

    def _follow(self, kind: str) -> None:
        failures, broken = 0, ""
        while not self._closed.is_set():
            login = self._login
            try:
                version = self._list(kind)
                failures = 0
                self._watch(kind, version)
            except Exception as error:  # a thread that ends unseen would leave old data that look new
                if isinstance(error, ApiException) and error.status == 410:
                    continue
                problem = cause(error)
                if isinstance(error, ApiException) and error.status == 401:
                    problem += "; log in again: a changed kubeconfig is read; else start this command anew"
                self._store.failed(kind, problem + broken)
                broken = ""
                # NB: after any failure: the anonymous get 403, and a server that has moved answers nothing.
                try:
                    self._log_in_again()
                except Exception as why:  # as above
                    broken = f"; {why}"
                    self._store.failed(kind, problem + broken)
                if self._login is not login:
                    continue
                self._closed.wait(AGAIN_SECONDS[min(failures, len(AGAIN_SECONDS) - 1)])
                failures += 1

    def _written(self) -> list[float]:
        """When the files of the kubeconfig were written last; 0 for what cannot be read."""
        times = []
        for path in self._cluster.kubeconfigs:
            try:
                times.append(path.stat().st_mtime)
            except OSError:
                times.append(0.0)
        return times

    def _log_in_again(self) -> None:
        # NB: not without a change: a login may start a program, which may open a browser and wait.
        with self._logs_in:
            if (written := self._written()) != self._login:
                self._cluster.log_in_again()
                self._login = written

    def _list(self, kind: str) -> str:
        document = json.loads(self._ask(kind).data)
        self._store.replace(kind, document["items"])
        return str(document["metadata"]["resourceVersion"])

    def _watch(self, kind: str, version: str) -> None:
        while not self._closed.is_set():
            began = time.monotonic()
            query = {"resourceVersion": version, "timeoutSeconds": str(WATCH_SECONDS)}
            query |= {"watch": "true", "allowWatchBookmarks": "true"}
            answer = self._ask(kind, query, silence=WATCH_SECONDS + SECONDS)
            self._store.failed(kind, "")
            try:
                for line in _lines(answer):
                    event = json.loads(line)
                    item = event["object"]
                    if event["type"] == "ERROR":
                        raise ApiException(status=item.get("code"), reason=item.get("message"))
                    version = item["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._store.take(kind, event["type"], item)
            finally:
                answer.release_conn()
            if time.monotonic() < began + AT_LEAST_SECONDS:
                self._closed.wait(AT_LEAST_SECONDS)

    def _ask(self, kind: str, query: dict[str, str] | None = None, silence: float | None = None) -> Any:
        cluster, query = self._cluster, dict(query or {})
        if kind in _PODS:
            path = cluster.path("pods", everywhere=self._everywhere)
            query["labelSelector"] = _PODS[kind]
        else:
            path = cluster.path(PLURALS[kind], f"/apis/{GROUP}/{VERSION}", everywhere=self._everywhere)
        with self._lock:
            self._asked[kind] = time.monotonic()
        try:
            return cluster.call(path, query, silence=silence)
        finally:
            with self._lock:
                del self._asked[kind]


def plural(kind: str) -> str:
    """Name the resources of a kind.

    Args:
        kind: such as ModelBackend.
    """
    return PLURALS.get(kind, "pods" if kind == POD else f"pods with the label {injected.LABEL}")


def _lines(answer: Any) -> Iterator[bytes]:
    """Yield the whole lines of an answer as they come; a last one without its end is cut."""
    rest = b""
    for piece in answer.stream(amt=None, decode_content=False):
        *lines, rest = (rest + piece).split(b"\n")
        yield from filter(None, lines)
