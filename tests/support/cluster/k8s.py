"""Small helpers for tests on the cluster: a namespace with the usual verbs, and waiting for a condition."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

import yaml

from devcluster.cluster import Cluster
from devcluster.network import FIRST
from tests.support.cluster.cluster_waits import PATIENCE, Unanswered, failure, heard, wait_for
from tests.support.cluster.reader import read

ROOT = Path(__file__).parents[3]
CHART = str(ROOT / "helm/penstock")
VALUES = ("-f", str(ROOT / "devcluster/values.yaml"))
RELEASE, INSTALLED_IN = "penstock", "penstock-system"
MODEL_IMAGE = "localhost/penstock/python-model:dev"

_NO_CONNECTION = (7, 28, 52, 56)
"""What curl says where it got no connection, or no answer on it."""

ASK = """
import asyncio, json, sys
import aiohttp
url, items = json.load(sys.stdin)
async def main():
    limit = asyncio.Semaphore(64)
    async with aiohttp.ClientSession() as session:
        async def one(item):
            async with limit, session.post(url, json={"instances": [item]}) as answer:
                body = await answer.json(content_type=None)
                return [answer.status, answer.headers.get("x-penstock-backend"), body]
        return await asyncio.gather(*(one(item) for item in items))
print(json.dumps(asyncio.run(main())))
"""


def is_going(obj: dict[str, Any]) -> bool:
    """Whether an object is being deleted."""
    return "deletionTimestamp" in obj["metadata"]


def condition_of(obj: dict[str, Any], type: str) -> dict[str, Any]:
    """A condition of an object, or {} where it has none of that type."""
    conditions = (obj.get("status") or {}).get("conditions") or []
    condition: dict[str, Any] = next((each for each in conditions if each["type"] == type), {})
    return condition


class Namespace:
    """One namespace of the test cluster."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    def kubectl(self, *arguments: str, input: str | None = None, check: bool = True) -> str:
        """Run kubectl in the namespace and return what it printed."""
        done = self.cluster.kubectl("-n", self.name, *arguments, input=input, check=False)
        output = str(done.stdout if done.returncode == 0 else done.stderr or done.stdout)
        if check and done.returncode != 0:
            raise failure(f"kubectl {' '.join(arguments)}: {output}")
        heard(f"kubectl {' '.join(arguments)}", output)
        return output

    def apply(self, *documents: dict[str, Any]) -> None:
        """Apply objects as a user does."""
        self.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(documents))

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """An object, or None."""
        obj: dict[str, Any] | None = read(self.cluster, self.name, kind, name)
        heard(f"{kind}/{name} of {self.name}", obj)
        return obj

    def list(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """Objects of a kind, by label selector."""
        items: list[dict[str, Any]] = read(self.cluster, self.name, kind, selector=selector)
        heard(f"{kind} {selector} of {self.name}", items)
        return items

    def patch(self, kind: str, name: str, patch: dict[str, Any]) -> None:
        """Merge-patch an object."""
        self.kubectl("patch", kind, name, "--type=merge", "-p", json.dumps(patch))

    def json_patch(self, kind: str, name: str, operations: list[dict[str, Any]]) -> None:
        """Patch an object by operations."""
        self.kubectl("patch", kind, name, "--type=json", "-p", json.dumps(operations))

    def condition(self, kind: str, name: str, type: str) -> dict[str, Any]:
        """A condition, or {} where the object or the condition is not there."""
        return condition_of(self.get(kind, name) or {}, type)

    def wait_condition(
        self,
        kind: str,
        name: str,
        type: str,
        status: str = "True",
        *,
        reason: str = "",
        seconds: float = PATIENCE,
    ) -> dict[str, Any]:
        """Wait for a condition of the object's own generation and return it."""
        return condition_of(self.wait_object(kind, name, type, status, reason=reason, seconds=seconds), type)

    def wait_object(
        self,
        kind: str,
        name: str,
        type: str,
        status: str = "True",
        *,
        reason: str = "",
        seconds: float = PATIENCE,
    ) -> dict[str, Any]:
        """Wait for a condition of the object's own generation and return the object of that look."""
        seen: dict[str, Any] = {}

        def look() -> dict[str, Any] | None:
            nonlocal seen
            obj = self.get(kind, name) or {}
            seen = obj.get("status") or {}
            for condition in seen.get("conditions") or []:
                if (
                    condition["type"] == type
                    and condition["status"] == status
                    and (not reason or condition["reason"] == reason)
                    and condition.get("observedGeneration") == obj["metadata"]["generation"]
                ):
                    return obj
            return None

        try:
            return wait_for(f"{kind}/{name} {type}={status} {reason}", look, seconds=seconds)
        except AssertionError as error:
            pods = self.kubectl("get", "pods", "-o", "wide", check=False)
            raise AssertionError(f"{error}; status {json.dumps(seen.get('conditions'))}\n{pods}") from None

    def wait_ready(self, kind: str, name: str, *, seconds: float = PATIENCE) -> None:
        """Wait until an object is Ready."""
        self.wait_condition(kind, name, "Ready", seconds=seconds)

    def pods(self, backend: str) -> list[dict[str, Any]]:
        """A backend's pods that are not being deleted."""
        pods = self.list("pods", f"penstock.dev/backend={backend}")
        return [pod for pod in pods if not is_going(pod)]

    def log(self, pod: str, container: str) -> list[dict[str, str]]:
        """What one of our processes has logged, line by line."""
        lines = self.kubectl("logs", pod, "-c", container).splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def url(self, endpoint: str, path: str = "/predict") -> str:
        """An endpoint's URL by its Service's address, once the node's kube-proxy leads there."""
        service = wait_for(f"service {endpoint}", lambda: self.get("service", endpoint))
        address = service["spec"]["clusterIP"]
        probe = [*self.cluster.exec_prefix, "bash", "-c", f"exec 3<>/dev/tcp/{address}/80"]

        def connects() -> bool:
            # NB: what nothing leads to is silent rather than refused.
            done = subprocess.run(probe, capture_output=True, text=True, timeout=10, check=False)
            heard(" ".join(probe[-2:]), done.stderr)
            return done.returncode == 0

        wait_for(f"a connection to service {endpoint}", connects)
        return f"http://{address}{path}"

    def curl(
        self, url: str, *, body: str | None = None, headers: tuple[str, ...] = ()
    ) -> tuple[int, dict[str, str], str]:
        """One request from inside the cluster's network: status, headers (lower-case names), body."""
        # NB: a large body is sent once it is asked for, however long that takes.
        times = ("--max-time", "60", "--expect100-timeout", "30")
        command = [*self.cluster.exec_prefix, "curl", "-sS", "-i", *times, url]
        for header in headers:
            command += ["-H", header]
        if body is not None:
            command += ["-H", "content-type: application/json", "--data-binary", "@-"]
        sent = None if body is None else body.encode()
        done = subprocess.run(command, input=sent, capture_output=True, timeout=90, check=False)
        if done.returncode in _NO_CONNECTION:
            raise Unanswered(f"{url}: {done.stderr.decode()}")
        assert done.returncode == 0, f"{url}: {done.stderr.decode()}"
        # NB: bytes, not text: a text stream would turn the CRLF of the head into LF.
        text = re.sub(r"\AHTTP/1.1 100[^\r]*\r\n\r\n", "", done.stdout.decode())
        head, _, rest = text.partition("\r\n\r\n")
        first, *fields = head.split("\r\n")
        names = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        heard(url, f"{first.split()[1]} {rest}")
        return int(first.split()[1]), names, rest

    def run_python(self, code: str, *, input: str = "", seconds: float = 120) -> str:
        """Run Python code inside the cluster's network namespace and return what it printed."""
        done = subprocess.run(
            [*self.cluster.exec_prefix, sys.executable, "-c", code],
            input=input,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ask(self, url: str, items: list[Any]) -> list[tuple[int, str, Any]]:
        """Send each item alone, 64 at a time: (status, backend, answer) of each, in order."""
        said = self.run_python(ASK, input=json.dumps([url, items]), seconds=400)
        return [tuple(pair) for pair in json.loads(said)]


WRITTEN_KINDS = (
    "deployments,services,configmaps,serviceaccounts,rolebindings,poddisruptionbudgets,networkpolicies,"
    "modelbackends,modelendpoints,trafficsplits,batchpolicies"
)
"""What the operator writes, its children and its resources' statuses."""


def versions(namespace: Namespace) -> dict[str, str]:
    """ResourceVersion of every object that the operator writes or owns in the namespace."""
    items = [item for kind in WRITTEN_KINDS.split(",") for item in namespace.list(kind)]
    return {
        f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["resourceVersion"] for item in items
    }


class Load:
    """Ledger load; a context manager that ends it. Models connect to its `port` when they load."""

    def __init__(self, namespace: Namespace) -> None:
        command = [*namespace.cluster.exec_prefix, sys.executable, "-m", "tests.support.ledger.ledger_load"]
        self._process = subprocess.Popen(
            [*command, "--listen", "0"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        word, _, port = self._process.stdout.readline().strip().partition(" ")
        assert word == "collecting", f"the load did not begin, exit code {self._process.poll()}"
        self.port = int(port)

    def start(
        self, url: str, *, rate: float, count: int = 0, calls: bool = False, fresh: bool = False
    ) -> None:
        """Begin to send, `rate` requests a second, `count` in all or (0) until stopped.

        Args:
            calls: every second one is a call over gRPC, all on one channel.
            fresh: each request has a connection of its own, so that kube-proxy chooses its pod.
        """
        self._write(json.dumps({"url": url, "rate": rate, "count": count, "calls": calls, "fresh": fresh}))

    def mark(self, part: str) -> dict[str, int]:
        """A part of the run begins, or goes on; the summary's `parts` has its figures.

        Returns:
            How many requests are `answered` so far, and `open` now; how many of these are of `earlier` parts.
        """
        self._write(json.dumps({"mark": part}))
        return self._read(seconds=PATIENCE)

    def stop(self) -> dict[str, Any]:
        """Stop to send, wait for every answer and return the summary; another run may be started."""
        self._write("stop")
        return self.finish(seconds=240)

    def finish(self, *, seconds: float) -> dict[str, Any]:
        """Wait until all of `count` requests are answered and return the summary."""
        return self._read(seconds=seconds)

    def _read(self, *, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        ended = threading.Timer(seconds, self._process.kill)
        ended.start()
        line = self._process.stdout.readline()
        ended.cancel()
        code = None if line else self._process.wait()
        assert line, f"the load said nothing within {seconds:g} s, exit code {code}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _write(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def assert_nothing_lost(summary: dict[str, Any]) -> None:
    """The ledger's promise: every request answered 2xx, by its own answer, executed once."""
    wrong = {
        name: summary[name]
        for name in ("not_ok", "mismatched", "lost", "duplicated", "unexecuted")
        if summary[name]
    }
    lines = (
        f"{wrong} of {summary['sent']} sent, each at most {summary['late_max_ms']} ms late",
        *kinds_of(summary["errors"]),
        f"parts: {summary['parts']}",
    )
    assert not wrong, "\n".join(lines)
    assert summary["ok"] == summary["sent"] > 0


def kinds_of(errors: list[dict[str, Any]]) -> list[str]:
    """A line for each kind of a summary's errors: how many, when they were sent and ended, and one's body."""
    kinds: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for error in errors:
        words = re.search(r'"detail":\s*"([^"]*)', error["body"])
        detail = re.sub(r"[0-9.]+", "#", words[1] if words else error["body"][:100])
        kinds.setdefault((error["detail"], detail), []).append(error)
    return [
        f"{len(alike)}x {said}: sent {alike[0]['sent']:.2f} to {alike[-1]['sent']:.2f}, ended "
        f"{min(each['at'] for each in alike):.2f} to {max(each['at'] for each in alike):.2f}; "
        f"the first: {alike[0]['body'][:500]}"
        for (said, _), alike in kinds.items()
    ]


def ledger_backend(name: str, *, collector: int, **spec: Any) -> dict[str, Any]:
    """A ModelBackend of the ledger model, whose code comes from the ConfigMap `ledger-model`.

    Args:
        collector: port of the load's collector on the first node.
        spec: more of the spec; `init_kwargs`, `image` and `resources` go into the model.
    """
    python: dict[str, Any] = {
        "target": "ledger_model:Ledger",
        "image": spec.pop("image", MODEL_IMAGE),
        "imagePullPolicy": "Never",
        "initKwargs": spec.pop("init_kwargs", {}),
        "resources": spec.pop("resources", {}),
        "env": [
            {"name": "PYTHONPATH", "value": "/code"},
            {"name": "COLLECTOR", "value": f"{FIRST.address}:{collector}"},
        ],
        "volumeMounts": [{"name": "code", "mountPath": "/code", "readOnly": True}],
    }
    template = {"volumes": [{"name": "code", "configMap": {"name": "ledger-model"}}]}
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ModelBackend",
        "metadata": {"name": name},
        "spec": {"model": {"python": python}, "podTemplate": template, **spec},
    }


def container_backend(
    name: str, *, script: str, image: str = MODEL_IMAGE, model: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    """A ModelBackend whose model is a Python script.

    Args:
        model: more of `spec.model`.
        spec: more of the spec.
    """
    container = {"image": image, "imagePullPolicy": "Never", "command": ["python", "-u", "-c", script]}
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ModelBackend",
        "metadata": {"name": name},
        "spec": {"model": {"container": container, **(model or {})}, **spec},
    }


def ledger_code() -> dict[str, Any]:
    """The ConfigMap that holds the ledger model's code."""
    code = (ROOT / "tests/support/ledger/ledger_model.py").read_text()
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "ledger-model"},
        "data": {"ledger_model.py": code},
    }


def endpoint(name: str, backend: str, **spec: Any) -> dict[str, Any]:
    """A ModelEndpoint."""
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ModelEndpoint",
        "metadata": {"name": name},
        "spec": {"backend": backend, **spec},
    }


def split(name: str, endpoint_name: str, weights: dict[str, int]) -> dict[str, Any]:
    """A TrafficSplit."""
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "TrafficSplit",
        "metadata": {"name": name},
        "spec": {
            "endpoint": endpoint_name,
            "backends": [{"name": backend, "weight": weight} for backend, weight in weights.items()],
        },
    }
