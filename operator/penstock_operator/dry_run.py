"""`--dry-run`: what the operator would write now, as YAML documents, without writing it.

The reconcilers run once over everything on a cluster that only seems to take their writes: `DryCluster` reads
from what is there and keeps what it is given. What is there is a live cluster, or with `--file` the resources
of a file alone (`FileCluster`). Nobody reports to a dry run: neither statuses nor the numbers of the
autoscaler are shown, and a settings version may be higher in truth.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml

from penstock_operator.apply import Applier, NoObserver
from penstock_operator.clock import Clock
from penstock_operator.desired.config import RenderConfig
from penstock_operator.desired.names import AUTHORITIES_KEY
from penstock_operator.desired.template_pinning import drain_secret
from penstock_operator.errors import ClusterError, ConfigError
from penstock_operator.kinds import CONFIG_MAP, PARENTS, Kind, kind_of
from penstock_operator.kube.cluster import MANAGER, Cluster, Obj
from penstock_operator.reconcile.context import Context
from penstock_operator.reconcile.manager import Manager, build_queues
from penstock_operator.reconcile.view import View
from penstock_operator.reports import Reports
from penstock_operator.store import Key, Store, key_of

T = TypeVar("T")

_ROUNDS = 10
"""How often one key is looked at, at most: what one writes may concern another."""

_PROBLEMS = frozenset({"Unreadable", "NameTaken", "RouteConflict", "Conflict", "NoPort"})
"""Reasons that a user of a preview wants to hear of; the others wait for pods, which there are none of."""

DRAWN = "drawn-when-applied"
"""Stands for a drain secret: for one that is not drawn yet, and for one that a log had better not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One write that would be made.

    Args:
        verb: create, apply or delete.
        obj: the object as it would be sent; of a deletion the one that is there.
    """

    verb: str
    obj: Obj


class FileCluster:
    """What a file holds, as the apiserver would give it (reads of the `Cluster` Protocol).

    Args:
        documents: Kubernetes objects.
        namespace: of objects that name none.
    """

    def __init__(self, documents: Iterable[Obj], *, namespace: str) -> None:
        self._objects: dict[Key, Obj] = {}
        for number, document in enumerate(documents):
            obj = copy.deepcopy(document)
            metadata = obj["metadata"]
            metadata.setdefault("namespace", namespace)
            uid = f"uid-of-{obj['kind'].lower()}-{metadata['name']}"
            # The order in the file stands for age, which decides between two of one route.
            made = f"2000-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z"
            metadata |= {"uid": uid, "generation": 1, "resourceVersion": "1", "creationTimestamp": made}
            self._objects[key_of(obj)] = obj

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Obj | None:
        """See `Cluster`."""
        return copy.deepcopy(self._objects.get(Key(kind.kind, namespace or "", name)))

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        keep: Callable[[Obj], T],
        labels: str | None = None,
        name: str | None = None,
        metadata_only: bool = False,
    ) -> list[T]:
        """See `Cluster`."""
        del labels, metadata_only  # a file holds what users write, and that is listed without either
        return [
            keep(copy.deepcopy(obj))
            for key, obj in self._objects.items()
            if key.kind == kind.kind and namespace in (None, key.namespace) and name in (None, key.name)
        ]


class DryCluster:
    """A `Cluster` that reads what is there and keeps what it is given.

    Args:
        there: what is read.
    """

    def __init__(self, there: Cluster | FileCluster) -> None:
        self._there = there
        self._seen: dict[Key, Obj | None] = {}
        self._version = 10**15
        self.writes: dict[Key, Write] = {}
        """The last write of each object, in the order of the first ones."""
        self.problems: dict[tuple[Key, str], str] = {}
        """What statuses would say of resources that cannot be used."""

    async def apply(self, kind: Kind, obj: Obj) -> Obj:
        """See `Cluster`."""
        key = key_of(obj)
        live = await self.get(kind, key.namespace, key.name)
        verb = "create" if live is None or self._is_new(key) else "apply"
        self.writes[key] = Write(verb=verb, obj=obj)
        return self._note(key, _merged(live or {}, obj))

    async def apply_status(self, kind: Kind, obj: Obj) -> Obj:
        """See `Cluster`."""
        key = key_of(obj)
        for entry in obj["status"].get("conditions") or ():
            if entry["reason"] in _PROBLEMS:
                self.problems[key, entry["reason"]] = entry["message"]
        live = await self.get(kind, key.namespace, key.name)
        return self._note(key, {**(live or obj), "status": obj["status"]})

    async def apply_scale(
        self, kind: Kind, namespace: str, name: str, replicas: int, *, uid: str | None = None
    ) -> Obj:
        """See `Cluster`; nothing scales in a dry run, so to come here is a defect."""
        raise RuntimeError(f"expected no write to the scale of {kind.kind} {namespace}/{name} in a dry run")

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Obj | None:
        """See `Cluster`."""
        key = Key(kind.kind, namespace or "", name)
        return self._seen[key] if key in self._seen else await self._there.get(kind, namespace, name)

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        keep: Callable[[Obj], T],
        labels: str | None = None,
        name: str | None = None,
        metadata_only: bool = False,
    ) -> list[T]:
        """See `Cluster`."""
        return await self._there.list(
            kind, namespace, keep=keep, labels=labels, name=name, metadata_only=metadata_only
        )

    async def delete(self, kind: Kind, namespace: str | None, name: str, *, uid: str | None = None) -> bool:
        """See `Cluster`."""
        key = Key(kind.kind, namespace or "", name)
        live = await self.get(kind, namespace, name)
        if live is None:
            return False
        self.writes[key] = Write(verb="delete", obj=live)
        self._seen[key] = None
        return True

    async def create(self, kind: Kind, obj: Obj) -> Obj:
        """See `Cluster`; Events alone come here, and are not shown."""
        return obj

    def _is_new(self, key: Key) -> bool:
        return key in self.writes and self.writes[key].verb == "create"

    def _note(self, key: Key, answer: Obj) -> Obj:
        self._version += 1
        own = {"uid": f"uid-of-{key.kind.lower()}-{key.name}", **answer["metadata"]}
        answer = {**answer, "metadata": {**own, "resourceVersion": str(self._version)}}
        self._seen[key] = answer
        return answer


async def dry_run(
    there: Cluster | FileCluster,
    *,
    render: RenderConfig,
    clock: Clock,
    log: Callable[..., None],
    namespace: str | None = None,
) -> DryCluster:
    """Look at everything once.

    Args:
        there: what is read.
        render: what the installation decides.
        clock: time.
        log: called with a constant message and fields.
        namespace: look at this one only.

    Returns:
        The cluster with the writes that would be made.

    Raises:
        ClusterError: something could not be read.
    """
    dry, store = DryCluster(there), Store()
    queue, scale_queue = build_queues(clock)
    context = Context(
        cluster=dry,
        store=store,
        view=View(store),
        applier=Applier(dry, store),
        reports=Reports(clock),
        render=render,
        clock=clock,
        log=lambda message, **fields: log(message, **{**fields, "level": "debug"}),
        observer=NoObserver(),
        enqueue=lambda key, _seconds: queue.add(key),
        draw_secret=lambda: DRAWN,
    )
    manager = Manager(context, queue, scale_queue, namespace=namespace)
    await manager.sync()
    context.started = float("-inf")  # nobody will report: there is nothing to wait for
    context.render = replace(render, authorities=_authorities(store, render))
    looks: dict[Key, int] = {}
    while len(queue):
        key = await queue.get()
        looks[key] = looks.get(key, 0) + 1
        try:
            if looks[key] <= _ROUNDS:
                await manager.reconcile(key)
        finally:
            queue.done(key)
    return dry


def documents(writes: Iterable[Write]) -> str:
    """Writes as YAML documents, verb and field manager as comments.

    Args:
        writes: what would be written.
    """
    return "".join(_document(write) for write in writes)


def read_file(path: str) -> list[Obj]:
    """The resources of ours in a YAML file; other objects in it are left out.

    Args:
        path: the file, ``-`` for standard input.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        found = [document for document in yaml.safe_load_all(text) if document is not None]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--file: {path}: {error}") from error
    ours = {kind.kind: kind.api_version for kind in PARENTS}
    resources: list[Obj] = []
    for document in _flat(found):
        if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
            raise ConfigError(f"--file: {path}: expected Kubernetes objects, found {str(document)[:80]!r}")
        if ours.get(str(document.get("kind"))) == document.get("apiVersion"):
            if not isinstance(document["metadata"].get("name"), str):
                raise ConfigError(f"--file: {path}: a {document['kind']} has no metadata.name")
            resources.append(document)
    return resources


async def preview(
    there: Cluster | FileCluster,
    *,
    render: RenderConfig,
    clock: Clock,
    log: Callable[..., None],
    namespace: str | None = None,
) -> int:
    """Print what would be written, and log what stands in the way.

    Args:
        there: what is read.
        render: what the installation decides.
        clock: time.
        log: called with a constant message and fields.
        namespace: look at this one only.

    Returns:
        The process's exit code: 1 where something could not be read, a resource of a file included.
    """
    try:
        dry = await dry_run(there, render=render, clock=clock, log=log, namespace=namespace)
    except ClusterError as error:
        log("dry run failed", level="error", error=str(error))
        return 1
    for (key, reason), message in dry.problems.items():
        log("resource has a problem", level="warning", key=str(key), reason=reason, text=message)
    sys.stdout.write(documents(dry.writes.values()))
    sys.stdout.flush()
    log("dry run done", writes=len(dry.writes), problems=len(dry.problems))
    unreadable = any(reason == "Unreadable" for _, reason in dry.problems)
    return int(unreadable and isinstance(there, FileCluster))


def _authorities(store: Store, render: RenderConfig) -> str:
    """The certificates that pods are told of: as they are told now, which needs no look at a Secret."""
    told = [live.get("data") or {} for live in store.all(CONFIG_MAP)]
    found = next((data[AUTHORITIES_KEY] for data in told if AUTHORITIES_KEY in data), "")
    return found or (DRAWN if render.report_url.startswith("https:") else "")


def _document(write: Write) -> str:
    kind, metadata = kind_of(write.obj), write.obj["metadata"]
    if write.verb == "delete":
        own = {field: metadata[field] for field in ("namespace", "name", "uid") if field in metadata}
        body: Obj = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": own}
        head = "# verb: delete\n"
    else:
        body = write.obj
        head = f"# verb: {write.verb} (server-side apply)\n# field manager: {MANAGER}\n"
    text = yaml.safe_dump(body, sort_keys=False)
    secret = drain_secret((body.get("spec") or {}).get("template") or {})
    return f"---\n{head}{text.replace(secret, DRAWN) if secret else text}"


def _merged(live: Any, wanted: Any) -> Any:
    """About what an apply would leave: enough for the look at it that follows."""
    if isinstance(live, dict) and isinstance(wanted, dict):
        return {**live, **{name: _merged(live.get(name), value) for name, value in wanted.items()}}
    return copy.deepcopy(wanted)


def _flat(found: list[Any]) -> Iterable[Any]:
    for document in found:
        if isinstance(document, dict) and document.get("kind") == "List":
            yield from document.get("items") or ()
        else:
            yield document
