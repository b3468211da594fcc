"""`penstock deploy module:Class`, or `module:application`: code goes to a cluster without an image.

It applies what `penstock export --code` prints, by kubectl and so with the user's own rights, and waits until
the new version serves. With `--watch` it does so again after each saved edit, in a process of its own: code
that cannot be imported is refused there, and the version before serves on. Once its code serves, that process
stays, and says so if another deploy replaces it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock import export
from penstock.errors import CompositionError, LoadError
from penstock.local import source_files
from penstock_wire.durations import parse_ms

LOOK_SECONDS = 0.5
STAY_SECONDS = 5.0
"""Between two looks of a process of `--watch` whose code serves."""
REPLACED = 3
"""Exit code of such a process, once other code is there."""
MANAGER = "penstock-deploy"
DEPLOYED = "penstock.dev/deployed"
"""On a ConfigMap of code: when it was deployed last."""
_RESTARTS = re.compile(r"restarts: \d+")


class ClusterError(Exception):
    """kubectl refused something, or is not here; says what it said."""


class ReplacedError(ClusterError):
    """A backend has other code than this command gave it, or is not there any more."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to a parser.

    Args:
        parser: the parser.
    """
    export.add_common_arguments(parser)
    parser.add_argument("--context", help="of the kubeconfig (default: the current one)")
    parser.add_argument(
        "--timeout", type=_seconds, default="5m", help="how long to wait for the new version (default: 5m)"
    )
    parser.add_argument(
        "--watch", action="store_true", help="deploy again after each saved edit, until Ctrl-C"
    )
    parser.add_argument("--stay", action="store_true", help=argparse.SUPPRESS)  # of the processes of --watch


def _seconds(text: str) -> float:
    try:
        return parse_ms(text) / 1000
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def run(options: argparse.Namespace, argv: Sequence[str]) -> int:
    """Deploy.

    Args:
        options: the parsed arguments of `add_arguments`.
        argv: the arguments themselves, for the processes of `--watch`.

    Returns:
        The exit code.
    """
    if options.watch:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_watch([argument for argument in argv if argument != "--watch"]))
        return 0
    cluster = Kubectl(context=options.context, namespace=options.namespace)
    try:
        documents = export.documents_of(options, code=True)
        deploy(documents, cluster, seconds=options.timeout)
        if options.stay:
            stay(documents, cluster)
    except ReplacedError as error:
        print(f"penstock deploy: {error}", file=sys.stderr)
        return REPLACED if options.stay else 1
    except (ClusterError, CompositionError, LoadError, OSError) as error:
        print(f"penstock deploy: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("penstock deploy: interrupted; what was applied stays", file=sys.stderr)
        return 130
    return 0


async def _watch(argv: Sequence[str]) -> None:
    # NB: with -P no file here hides a module of Python's from ours, as it is with the command `penstock`.
    command = (sys.executable, "-P", "-m", "penstock", "deploy", "--stay", *argv)
    while True:
        # NB: list the files before they are imported, so that no change is missed.
        files = source_files.look(Path.cwd())
        process = await asyncio.create_subprocess_exec(*command)
        done = asyncio.create_task(process.wait())
        change = asyncio.create_task(source_files.changed(Path.cwd(), files))
        try:
            await asyncio.wait((done, change), return_when=asyncio.FIRST_COMPLETED)
            if done.done():
                serves = "other code serves" if done.result() == REPLACED else "the version before serves on"
                print(f"{serves}; save a change to try again", file=sys.stderr)
        finally:
            if process.returncode is None:
                process.terminate()  # the next version replaces this one, ready or not; or Ctrl-C came
            await process.wait()
        names = await change
        print(f"changed: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}", file=sys.stderr)


class Kubectl:
    """kubectl, with the user's own rights; `penstock.Client` has only resources of ours, and needs an extra.

    Args:
        context: of the kubeconfig; None = the current one.
        namespace: None = the context's.
    """

    def __init__(self, *, context: str | None, namespace: str | None) -> None:
        self.context = context
        self._command = ["kubectl"]
        self._command += [f"--context={context}"] if context else []
        self._command += [f"--namespace={namespace}"] if namespace else []

    @property
    def shown(self) -> str:
        """The beginning of a command line for the same cluster and namespace."""
        return shlex.join(self._command)

    def __call__(self, *arguments: str, document: object = None) -> str:
        """Run a command and return what it prints.

        Args:
            arguments: of kubectl.
            document: JSON for its standard input; None for none.

        Raises:
            ClusterError: it failed.
        """
        text = None if document is None else json.dumps(document)
        try:
            done = subprocess.run(  # noqa: S603 - the user's own kubectl
                [*self._command, *arguments], input=text, capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            raise ClusterError("expected the command kubectl in PATH, found none") from None
        if done.returncode:
            raise ClusterError(done.stderr.strip() or f"kubectl ended with exit code {done.returncode}")
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """Return what `kubectl get` says of objects.

        Raises:
            ClusterError: it failed.
        """
        return json.loads(self("get", *arguments, "--output=json"))


def deploy(documents: Sequence[Mapping[str, Any]], cluster: Kubectl, *, seconds: float) -> None:
    """Apply resources, wait until their backends serve, and delete code that no pod can use any more.

    Args:
        documents: as `penstock export --code` prints them: the ConfigMap is the first.
        cluster: where.
        seconds: how long to wait.

    Raises:
        ClusterError: the cluster refused something, or a backend does not serve in time.
    """
    began = time.monotonic()
    code = documents[0]["metadata"]
    backends = _backends(documents)
    front = backends[-1]
    try:
        _apply(cluster, documents, backends)
    except ClusterError as error:
        if f'configmaps "{code["name"]}" not found' not in str(error):
            raise
        for name in backends:
            _still(cluster, name, code["name"])
        _apply(cluster, documents, backends)  # another deploy had deleted it before a backend named it
    for name in backends:
        _wait(cluster, name, code["name"], until=began + seconds)
    try:
        _delete_unused(cluster, code["labels"][export.CODE_LABEL], keep=code["name"])
    except ClusterError as error:  # such as without the right to list ReplicaSets
        print(f"earlier code stays: {error}", file=sys.stderr)
    print(f"{front} serves after {time.monotonic() - began:.1f} s")
    namespace = code.get("namespace")
    print(f"  in the cluster  http://{front}{'' if namespace is None else f'.{namespace}'}")
    there = _shared_port(cluster, front)
    if there is None:
        print(f"  from here       {cluster.shown} port-forward service/{front} 8080:80")
        return
    home, port = there
    routers = Kubectl(context=cluster.context, namespace=home).shown
    print(f"  from here       {routers} port-forward deploy/penstock-shared-router 8080:{port}")
    print("                  (namespaces share that router; without rights there, call from a pod)")


def stay(documents: Sequence[Mapping[str, Any]], cluster: Kubectl) -> None:
    """Look again and again whether backends have the code that was deployed.

    Args:
        documents: as for `deploy`.
        cluster: where; while it cannot be reached nothing is known.

    Raises:
        ReplacedError: one has not.
    """
    while True:
        time.sleep(STAY_SECONDS)
        for name in _backends(documents):
            try:
                _still(cluster, name, documents[0]["metadata"]["name"])
            except ReplacedError:
                raise
            except ClusterError as error:
                if "(NotFound)" in str(error):
                    raise ReplacedError(f"{name}: it was deleted") from error


def _backends(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    return [each["metadata"]["name"] for each in documents if each["kind"] == "ModelBackend"]


def _apply(cluster: Kubectl, documents: Sequence[Mapping[str, Any]], backends: Sequence[str]) -> None:
    """Apply resources, then let the code end with its backends.

    That changes its version each time: another deploy that has seen it unused cannot delete it then.
    """
    listed = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
    cluster("apply", "--server-side", f"--field-manager={MANAGER}", "--filename=-", document=listed)
    owners = []
    for name in backends:
        metadata = cluster.get("modelbackend", name)["metadata"]
        owners.append(
            {"apiVersion": export.API_VERSION, "kind": "ModelBackend", "name": name, "uid": metadata["uid"]}
        )
    now = datetime.datetime.now(datetime.UTC).isoformat()
    patch = json.dumps({"metadata": {"ownerReferences": owners, "annotations": {DEPLOYED: now}}})
    cluster("patch", "configmap", documents[0]["metadata"]["name"], "--type=merge", f"--patch={patch}")


def _wait(cluster: Kubectl, name: str, code: str, *, until: float) -> None:
    """Wait until a backend serves this code in its newest version, and show what it waits for."""
    shown = ""
    while True:
        backend = _still(cluster, name, code)
        status, generation = backend.get("status", {}), backend["metadata"]["generation"]
        conditions = {each["type"]: each for each in status.get("conditions", [])}
        ready = conditions.get("Ready", {})
        if status.get("observedGeneration") != generation or ready.get("observedGeneration") != generation:
            message = "waiting for the operator"
        elif ready.get("status") == "True":
            return
        else:
            message = f"{ready.get('reason')}: {ready.get('message')}"
        if (news := _RESTARTS.sub("", message)) != shown:
            print(f"{name}: {message}", file=sys.stderr)
            shown = news
        if time.monotonic() > until:
            raise ClusterError(f"{name} does not serve yet: {message.partition(chr(10))[0]}")
        time.sleep(LOOK_SECONDS)


def _still(cluster: Kubectl, name: str, code: str) -> Any:
    """Return a backend, which must have this code."""
    backend = cluster.get("modelbackend", name)
    found = backend["spec"]["model"].get("python", {}).get("code", {}).get("configMapRef", {}).get("name")
    if found != code:
        raise ReplacedError(f"{name}: expected code {code}, found {found}: another deploy came after this")
    return backend


def _shared_port(cluster: Kubectl, front: str) -> tuple[str, int] | None:
    """Return the namespace of an endpoint's shared routers, and its port there; None if none are known.

    Its Service selects no pod then, and kubectl forwards to selected pods only.
    """
    ours = "endpointslice.kubernetes.io/managed-by=penstock"
    try:
        slices = cluster.get("endpointslices", f"--selector=kubernetes.io/service-name={front},{ours}")
        led = next((each for each in slices["items"] if each["endpoints"]), None)
        return led and (led["endpoints"][0]["targetRef"]["namespace"], led["ports"][0]["port"])
    except (ClusterError, KeyError):  # without the right to list them; of an older operator
        return None


def _delete_unused(cluster: Kubectl, front: str, *, keep: str) -> None:
    """Delete an application's earlier code, but for what is named: a rollback needs what ReplicaSets name."""
    selector = f"--selector={export.CODE_LABEL}={front}"
    stored = [each["metadata"] for each in cluster.get("configmaps", selector)["items"]]
    stored = [each for each in stored if each["name"] != keep]
    if not stored:
        return
    # NB: looked at after what is stored, which is deleted only as it was then (see `_apply`).
    naming = cluster.get("replicasets", "--selector=penstock.dev/backend"), cluster.get("modelbackends")
    used = json.dumps(naming)
    for each in stored:
        if f'"{each["name"]}"' not in used:
            path = f"/api/v1/namespaces/{each['namespace']}/configmaps/{each['name']}"
            as_listed = {"preconditions": {"resourceVersion": each["resourceVersion"]}}
            try:
                cluster("delete", f"--raw={path}", "--filename=-", document=as_listed)
            except ClusterError as error:  # another deploy deleted it, or deploys it again
                if "(NotFound)" not in str(error) and "(Conflict)" not in str(error):
                    raise
