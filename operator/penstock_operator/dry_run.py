"""`--dry-run`: prints the operator's next writes as YAML documents, without writing them.

The reconcilers run once over everything on a cluster that only seems to take their writes: `DryCluster` reads
from what is there and keeps what it is given. What is there is a live cluster, or with `--file` the resources
of a file alone (`FileCluster`). A dry run gets no reports: it shows neither statuses nor the autoscaler's
numbers, and the real settings version can be higher.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from penstock_operator.api import GROUP
from penstock_operator.apply import Applier
from penstock_operator.clock import Clock
from penstock_operator.desired.config import RenderConfig
from penstock_operator.desired.names import AUTHORITIES_KEY
from penstock_operator.desired.template_pinning import drain_secret
from penstock_operator.errors import ClusterError, ConfigError
from penstock_operator.kinds import CONFIG_MAP, PARENTS, kind_of
from penstock_operator.kube.cluster import MANAGER, NoObserver, Obj, Reader
from penstock_operator.kube.dry_cluster import DryCluster, FileCluster, Write
from penstock_operator.reconcile.context import Memory, ReconcileContext
from penstock_operator.reconcile.load_turns import LoadTurns
from penstock_operator.reconcile.manager import Manager, build_queues
from penstock_operator.reconcile.view import View
from penstock_operator.reports import Reports
from penstock_operator.store import ObjectKey, Store
from penstock_wire import yaml_text

_ROUNDS = 10
"""Most looks at one key: the writes of one key can affect another."""

DRAWN = "drawn-when-applied"
"""Placeholder for a drain secret: it is not drawn yet, or should not appear in a log."""


async def dry_run(
    there: Reader,
    *,
    render: RenderConfig,
    clock: Clock,
    log: Callable[..., None],
    namespace: str | None = None,
    home: str = "penstock-system",
    shared: bool = False,
) -> DryCluster:
    """Reconcile everything once, without writes to the cluster.

    Args:
        home: the operator's namespace.
        shared: whether namespaces use the shared router unless they say otherwise.

    Returns:
        The cluster with the writes that would be made.

    Raises:
        ClusterError: something could not be read.
    """
    dry, store = DryCluster(there), Store()
    queue, scale_queue = build_queues(clock)
    memory = Memory(render=render, load_turns=LoadTurns(clock, queue.add))
    context = ReconcileContext(
        cluster=dry,
        store=store,
        view=View(store, shared=shared),
        applier=Applier(dry, store),
        reports=Reports(clock),
        memory=memory,
        clock=clock,
        log=lambda message, **fields: log(message, **{**fields, "level": "debug"}),
        observer=NoObserver(),
        enqueue=lambda key, _seconds: queue.add(key),
        draw_secret=lambda: DRAWN,
        home=home,
        everywhere=namespace is None,
    )
    manager = Manager(context, queue, scale_queue, namespace=namespace)
    await manager.sync()
    memory.started = float("-inf")  # no pod will report: there is nothing to wait for
    memory.render = replace(render, authorities=_authorities(store, render))
    looks: dict[ObjectKey, int] = {}
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
    """Render writes as YAML documents, with verb and field manager as comments."""
    return "".join(_document(write) for write in writes)


def read_file(path: str, what: str = "--file") -> list[Obj]:
    """Read our resources from a YAML file, without the objects of other groups.

    Args:
        path: the file, ``-`` for standard input.

    Raises:
        ConfigError: the file cannot be read, or has an unknown kind or version of ours.
    """
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        documents = [document for document in yaml_text.read_all(text) if document is not None]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{what}: {path}: {error}") from error
    ours = {kind.kind: kind.api_version for kind in PARENTS}
    resources: list[Obj] = []
    for document in _flat(documents):
        if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
            raise ConfigError(f"{what}: {path}: expected Kubernetes objects, found {str(document)[:80]!r}")
        kind, version = str(document.get("kind")), str(document.get("apiVersion"))
        if kind in ours or version.partition("/")[0] == GROUP:
            if ours.get(kind) != version:
                known = f"{' or '.join(sorted(ours))} of {' or '.join(sorted(set(ours.values())))}"
                raise ConfigError(f"{what}: {path}: expected {known}, found {kind} of {version}")
            name = document["metadata"].get("name")
            if not isinstance(name, str):
                found = "none" if name is None else f"{name!r}, a value of type {type(name).__name__}"
                raise ConfigError(
                    f"{what}: {path}: expected a {kind} with a metadata.name of text, found {found}"
                )
            resources.append(document)
    return resources


async def preview(
    there: Reader,
    *,
    render: RenderConfig,
    clock: Clock,
    log: Callable[..., None],
    namespace: str | None = None,
    home: str = "penstock-system",
    shared: bool = False,
) -> int:
    """Print the writes that would be made, and log the problems.

    Returns:
        The process's exit code: 1 if something could not be read, a resource of a file included.
    """
    try:
        dry = await dry_run(
            there, render=render, clock=clock, log=log, namespace=namespace, home=home, shared=shared
        )
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
    """Return the certificates that pods get: their current ones, so that no Secret is read."""
    written = [live.get("data") or {} for live in store.all(CONFIG_MAP)]
    authorities = next((data[AUTHORITIES_KEY] for data in written if AUTHORITIES_KEY in data), "")
    return authorities or (DRAWN if render.report_url.startswith("https:") else "")


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


def _flat(documents: list[Any]) -> Iterable[Any]:
    for document in documents:
        if isinstance(document, dict) and document.get("kind") == "List":
            yield from document.get("items") or ()
        else:
            yield document
