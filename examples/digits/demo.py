"""`make demo`: from an empty machine to batched predictions on a real Kubernetes, shown as it goes.

Without KUBECONFIG it makes a cluster on this machine (devcluster/), builds the images and loads them. With
KUBECONFIG it uses that cluster, with `kubectl` and `helm` from PATH, and the images of a release, whose
registry and path PENSTOCK_IMAGES names. The models are then code, as with `penstock deploy`, in the image
that serves scikit-learn's files.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import yaml

from devcluster import images, machine, programs
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from examples.digits.digits_data import held_out
from penstock import __version__

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NAMESPACE = "digits"
SYSTEM = "penstock-system"
ENOUGH = "/tmp/enough"  # noqa: S108 — in the client's pod
"""The file that ends the load of the last step."""

LEAST_SECONDS, MOST_SECONDS = 25, 240
"""How long that load lasts: until a second pod serves, which takes long where the image is pulled first."""

DEV_DIGITS = "localhost/penstock-examples/digits:dev"


class DemoError(Exception):
    """The demo cannot go on; the message says why and what to look at."""


def build_images() -> list[str]:
    """Build the repository's images and the demo's own; returns their names."""
    # Compiled modules take minutes to build and serve thousands of requests a second, which no demo sends.
    os.environ.setdefault("PENSTOCK_COMPILE", "no")
    names = images.build_targets()
    base = {"BASE": images.image_name("python-model")}
    images.build(dockerfile=HERE / "Dockerfile", tag=DEV_DIGITS, build_args=base)
    return [*names, DEV_DIGITS]


def resolve(future: Future[list[str]], work: Callable[[], list[str]]) -> None:
    """Do some work and give a future what became of it."""
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)


OTHERS = ("kind", "k3d", "minikube", "docker")
"""Programs that make clusters, or in which others make them."""


def others() -> list[str]:
    """What else could be used here, a line each: programs that make clusters, a kubeconfig."""
    usual = Path.home() / ".kube" / "config"
    here = [name for name in OTHERS if shutil.which(name)]
    if not here and not usual.exists():
        return []
    config = str(usual) if usual.exists() else "$HOME/.kube/config"
    return [
        *([f"{', '.join(here)}: docs/how-to/local-clusters.md has the commands"] if here else []),
        f"make demo KUBECONFIG={config} PENSTOCK_IMAGES=registry.example/penstock",
    ]


class Target:
    """Where the demo runs: a cluster with kubectl and helm, and the images that it finds there."""

    def __init__(self) -> None:
        self.kubeconfig = os.environ.get("KUBECONFIG", "")
        self.cluster = None if self.kubeconfig else Cluster("penstock")
        self._built: Future[list[str]] = Future()
        if self.cluster is not None:
            self.image = DEV_DIGITS
            self.chart_values = ["-f", str(ROOT / "devcluster/values.yaml")]
            self.command = "python -m devcluster kubectl"
            return
        prefix = os.environ.get("PENSTOCK_IMAGES", "")
        if not prefix:
            raise DemoError(
                "KUBECONFIG is set, so the demo uses that cluster: expected PENSTOCK_IMAGES (such as "
                "registry.example/penstock) to name where it pulls the images of a release, found nothing"
            )
        tag = os.environ.get("PENSTOCK_TAG", __version__)
        self.image = f"{prefix}/sklearn-model:{tag}"
        self.chart_values = ["--set", f"images.prefix={prefix}", "--set", f"images.tag={tag}"]
        self.command = "kubectl"

    def begin(self) -> None:
        """Say how long it will take, and which clusters that are here could be used instead."""
        if self.cluster is None:
            say(f"the cluster of {self.kubeconfig} is used; this takes some 2 minutes")
            return
        first = bool(programs.missing())
        say(
            "a Kubernetes is built from source and started: "
            + ("a quarter of an hour this first time, 2 minutes later" if first else "some 2 minutes")
        )
        for line in others():
            say(f"  instead: {line}")

    def up(self) -> None:
        """Have a cluster; where it is ours, its images are built beside its programs."""
        if self.cluster is None:
            return
        machine.require_runnable()
        # At once, since two that install packages at the same time would be in each other's way.
        machine.ensure_packages(
            machine.CLUSTER_NEEDS, machine.IMAGE_NEEDS, machine.BUILD_NEEDS if programs.missing() else {}
        )
        built = self._built
        # NB: a daemon: where the cluster fails, nobody waits for images; what builds them ends with us.
        threading.Thread(target=lambda: resolve(built, build_images), daemon=True).start()
        self.cluster.up()

    def images(self) -> None:
        """Load the images, once they are built, where the cluster is ours."""
        if self.cluster is None:
            say(f"the cluster pulls {self.image} and its siblings")
            return
        self.cluster.load(*self._built.result())
        # The tag never changes: without this an operator that is there already would stay the old one.
        made_from = images.built()[images.image_name("operator")]
        self.chart_values += ["--set-string", f"operator.podAnnotations.made-from={made_from}"]

    def model(self, python: dict[str, Any]) -> list[dict[str, Any]]:
        """Fill in what a backend runs: the image with the models in it or, where there is none, code.

        Args:
            python: the backend's `spec.model.python`.

        Returns:
            The code's ConfigMap.
        """
        if self.cluster is not None:
            python["image"] = self.image
            return []
        classifier = Path(python["initKwargs"]["path"]).stem
        command = ["penstock", "export", "train:Trained", "--code", "--image", self.image]
        say(f"$ {' '.join(command)}")
        command += ["--init-kwargs", json.dumps({"name": classifier})]
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=HERE, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise DemoError(done.stderr.strip())
        configmap, backend, _ = yaml.safe_load_all(done.stdout)
        python |= backend["spec"]["model"]["python"]
        return [configmap]

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        """Run kubectl and return what it printed."""
        if self.cluster is not None:
            done = self.cluster.kubectl(*arguments, input=input, check=False, timeout=MOST_SECONDS + 60)
        else:
            done = subprocess.run(
                ["kubectl", *arguments], input=input, capture_output=True, text=True, check=False
            )
        if done.returncode != 0:
            raise DemoError(f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return str(done.stdout)

    def helm(self, *arguments: str) -> None:
        """Run helm."""
        if self.cluster is not None:
            done = self.cluster.helm(*arguments, check=False)
        else:
            done = subprocess.run(["helm", *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise DemoError(f"helm {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")


class Demo:
    """The steps, in order; each prints what a person wants to see."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.facts: list[tuple[str, str]] = []
        self.autoscaling: dict[str, Any] = {}
        self.started = time.monotonic()

    def k(self, *arguments: str, input: str | None = None) -> str:
        """Run kubectl in the demo's namespace."""
        return self.target.kubectl("-n", NAMESPACE, *arguments, input=input)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """An object of the demo's namespace."""
        document: dict[str, Any] = json.loads(self.k("get", kind, name, "-o", "json"))
        return document

    def show(self, *arguments: str) -> None:
        """Run kubectl in the demo's namespace and show both the command and what it prints."""
        say(f"$ {self.target.command} -n {NAMESPACE} {' '.join(arguments)}")
        for line in self.k(*arguments).rstrip().splitlines():
            say(f"  {line}")

    def wait(self, what: str, look: Callable[[], bool], *, seconds: float = 240) -> float:
        """Wait until `look` is true; returns the seconds that it took."""
        start = time.monotonic()
        while not look():
            if time.monotonic() - start > seconds:
                status = self.k("get", "modelbackends,modelendpoints,trafficsplits,pods", "-o", "wide")
                raise DemoError(f"waited {seconds:.0f} s for {what}\n{status}")
            time.sleep(0.2)
        return time.monotonic() - start

    def wait_ready(self, kind: str, name: str) -> None:
        """Wait until a resource of ours is Ready for its own generation."""

        def ready() -> bool:
            document = self.get(kind, name)
            return any(
                condition["type"] == "Ready"
                and condition["status"] == "True"
                and condition.get("observedGeneration") == document["metadata"]["generation"]
                for condition in (document.get("status") or {}).get("conditions") or []
            )

        self.wait(f"{kind}/{name} to be Ready", ready)

    def load(self, *, connections: int, seconds: float, until: str = "") -> dict[str, Any]:
        """Send held-out digits from the client pod; see load.py."""
        selector = "app.kubernetes.io/name=penstock-backend"
        pods = json.loads(self.k("get", "pods", "-l", selector, "-o", "json"))["items"]
        pixels, labels = held_out()
        order = {
            "endpoint": "digits",
            "images": pixels,
            "labels": labels,
            "connections": connections,
            "seconds": seconds,
            "until": until,
            "sidecars": [pod["status"]["podIP"] for pod in pods if pod["status"].get("podIP")],
        }
        output = self.k(
            *("exec", "-i", "client", "--", "python", "-c", (HERE / "load.py").read_text()),
            input=json.dumps(order),
        )
        answer: dict[str, Any] = json.loads(output)
        if answer["errors"]:
            say(f"  errors: {answer['errors']}")
        return answer

    def fact(self, name: str, value: str) -> None:
        """Remember a line of the summary."""
        self.facts.append((name, value))

    # -- the steps ------------------------------------------------------------------------------------------

    def install(self) -> None:
        """A cluster, the images, the chart."""
        head("1/8  A Kubernetes cluster, and its images beside it")
        self.target.up()
        head("2/8  Images")
        self.target.images()
        head("3/8  The operator, by its chart")
        values = " ".join(self.target.chart_values).replace(f"{ROOT}/", "")
        say(f"$ helm upgrade --install penstock helm/penstock -n {SYSTEM} --create-namespace {values}")
        start = time.monotonic()
        self.target.helm(
            *("upgrade", "--install", "penstock", str(ROOT / "helm/penstock"), "-n", SYSTEM),
            *("--create-namespace", *self.target.chart_values, "--wait", "--timeout", "180s"),
        )
        self.target.kubectl(
            "-n", SYSTEM, "rollout", "status", "deployment/penstock-operator", "--timeout=120s"
        )
        say(f"  operator ready after {time.monotonic() - start:.1f} s")

    def apply(self) -> None:
        """Two models, one endpoint, a split, a policy."""
        head("4/8  Two models, one endpoint, a 90/10 split, a batch policy")
        namespaces = self.target.kubectl("get", "namespace", NAMESPACE, "--ignore-not-found", "-o", "name")
        if namespaces:
            # NB: a namespace goes half a pod's grace after its last pod; its resources go with their drain.
            say("  ending what an earlier demo left, with its drain")
            kinds = "modelendpoints,trafficsplits,modelbackends,batchpolicies"
            self.k("delete", kinds, "--all")
            self.k("delete", "pod", "client", "--ignore-not-found")
            self.wait("the earlier demo's pods to end", lambda: not self.k("get", "pods", "-o", "name"))
        else:
            self.target.kubectl("create", "namespace", NAMESPACE)
        restricted = "pod-security.kubernetes.io/enforce=restricted"
        self.target.kubectl("label", "--overwrite", "namespace", NAMESPACE, restricted)
        documents = list(yaml.safe_load_all((HERE / "resources.yaml").read_text()))
        code: list[dict[str, Any]] = []
        for document in documents:
            if document["kind"] == "ModelBackend":
                code = self.target.model(document["spec"]["model"]["python"])
                # Held back until step 8: pods that come and go would blur what batching does.
                if scaled := document["spec"].pop("autoscaling", None):
                    self.autoscaling[document["metadata"]["name"]] = scaled
        start = time.monotonic()
        say("$ kubectl apply -f examples/digits/resources.yaml")
        client = client_pod(self.target.image)
        self.k("apply", "-f", "-", input=yaml.safe_dump_all([*code, *documents, client]))
        self.backends = [
            document["metadata"]["name"] for document in documents if document["kind"] == "ModelBackend"
        ]
        self.policy = next(
            document["metadata"]["name"] for document in documents if document["kind"] == "BatchPolicy"
        )
        for document in documents:
            if document["kind"] != "BatchPolicy":
                self.wait_ready(document["kind"].lower(), document["metadata"]["name"])
        self.k("wait", "--for=condition=Ready", "pod/client", "--timeout=120s")
        took = time.monotonic() - start
        say(f"  all Ready {took:.1f} s after the apply")
        self.fact("apply to Ready", f"{took:.1f} s")
        self.show("get", "modelbackends,modelendpoints,trafficsplits,batchpolicies")

    def accuracy(self) -> None:
        """Each held-out digit once: accuracy by backend and the observed split."""
        head("5/8  Every held-out digit once, through the endpoint's Service")
        answer = self.load(connections=8, seconds=0)
        total = sum(backend["requests"] for backend in answer["backends"].values())
        say(f"  {'backend':<20}{'requests':>10}{'share':>9}{'accuracy':>11}")
        shares = []
        for name, counts in sorted(answer["backends"].items(), key=lambda pair: -pair[1]["requests"]):
            share, right = counts["requests"] / total, counts["correct"] / counts["requests"]
            say(f"  {name:<20}{counts['requests']:>10}{share:>9.1%}{right:>11.1%}")
            shares.append(f"{name} {share:.1%} (accuracy {right:.1%})")
        self.fact("observed split", ", ".join(shares))

    def batches(self) -> None:
        """Batch sizes forming as load rises."""
        head("6/8  Batches form as the load rises (no batchWaitTimeout is set)")
        say(f"  {'connections':>11}{'requests/s':>12}{'p50 ms':>9}{'p99 ms':>9}{'items a batch':>15}")
        for connections in (1, 4, 16, 64):
            answer = self.load(connections=connections, seconds=3)
            mean = answer["batch_items"] / max(answer["batches"], 1)
            say(
                f"  {connections:>11}{answer['rate']:>12.0f}{answer['p50_ms']:>9.1f}{answer['p99_ms']:>9.1f}"
                f"{mean:>15.1f}  {'#' * round(mean)}"
            )

    def policy_change(self) -> None:
        """With and without batching, interleaved; each switch is a policy change without a restart."""
        head("7/8  With batching and without, side by side: a policy change, no restart")
        pods_before = self.pod_uids()
        results: dict[int, list[dict[str, Any]]] = {1: [], 32: []}
        switches = []
        for size in (1, 32, 1, 32):
            switches.append(self.set_batch_size(size))
            results[size].append(self.load(connections=64, seconds=3))
        if self.pod_uids() != pods_before:
            raise DemoError("pods were replaced by a policy change; they should not be")
        say(f"  {'':<22}{'requests/s':>12}{'p50 ms':>9}{'p99 ms':>9}{'items a batch':>15}")
        means: dict[int, dict[str, float]] = {}
        for size, label in ((1, "maxBatchSize: 1"), (32, "maxBatchSize: 32")):
            runs = results[size]
            means[size] = {
                key: sum(run[key] for run in runs) / len(runs) for key in ("rate", "p50_ms", "p99_ms")
            }
            measured = means[size]
            mean = sum(run["batch_items"] for run in runs) / max(sum(run["batches"] for run in runs), 1)
            say(
                f"  {label:<22}{measured['rate']:>12.0f}{measured['p50_ms']:>9.1f}"
                f"{measured['p99_ms']:>9.1f}{mean:>15.1f}"
            )
        ratio = means[32]["rate"] / means[1]["rate"]
        say(
            f"  batching: {ratio:.1f} times the requests a second, "
            "at 64 connections (2 runs of 3 s each, interleaved)"
        )
        say(
            f"  a policy change was in effect in every sidecar after at most {max(switches):.1f} s, "
            "no pod restarted"
        )
        self.fact(
            "batching on / off", f"{means[32]['rate']:.0f} / {means[1]['rate']:.0f} requests/s ({ratio:.1f}x)"
        )
        self.fact("p99 on / off", f"{means[32]['p99_ms']:.0f} / {means[1]['p99_ms']:.0f} ms")
        self.fact("policy in effect after", f"{max(switches):.1f} s, no restart")

    def pod_uids(self) -> list[str]:
        """Uids and restart counts of the backends' pods."""
        each = "{.metadata.uid} {.status.containerStatuses[*].restartCount}{'\\n'}"
        columns = f"jsonpath={{range .items[*]}}{each}{{end}}"
        return sorted(
            self.k("get", "pods", "-l", "app.kubernetes.io/name=penstock-backend", "-o", columns).split("\n")
        )

    def set_batch_size(self, size: int) -> float:
        """Change the policy; returns the seconds until all sidecars have reported that they obey it."""
        before = self.settings_versions()
        if self.get("batchpolicy", self.policy)["spec"].get("maxBatchSize") == size:
            return 0.0
        self.k(
            "patch",
            "batchpolicy",
            self.policy,
            "--type=merge",
            "-p",
            json.dumps({"spec": {"maxBatchSize": size}}),
        )

        def obeyed() -> bool:
            now = self.settings_versions()
            return all(now[name][0] > before[name][0] and now[name][1] for name in now)

        return self.wait("the sidecars to obey the policy", obeyed)

    def settings_versions(self) -> dict[str, tuple[int, bool]]:
        """For each backend its settings' version and whether every ready pod obeys them."""
        versions = {}
        for name in self.backends:
            status = self.get("modelbackend", name)["status"]
            applied = any(
                condition["type"] == "SettingsApplied" and condition["status"] == "True"
                for condition in status["conditions"]
            )
            versions[name] = (int(status.get("settingsVersion", 0)), applied)
        return versions

    def scaling(self) -> None:
        """Replicas follow the load up and down."""
        head("8/8  Replicas follow the queue, up and down")
        name, spec = next(iter(self.autoscaling.items()))
        self.set_batch_size(1)  # the slower way of serving makes the queue
        time.sleep(8)  # the load of the steps before leaves the autoscaler's window
        self.k(
            "patch", "modelbackend", name, "--type=merge", "-p", json.dumps({"spec": {"autoscaling": spec}})
        )
        say(
            f"  {name}: target {spec.get('targetLoad')} items a pod, "
            f"{spec['minReplicas']}..{spec['maxReplicas']} replicas"
        )
        answers: list[dict[str, Any]] = []
        self.k("exec", "client", "--", "rm", "-f", ENOUGH)
        thread = threading.Thread(
            target=lambda: answers.append(self.load(connections=64, seconds=MOST_SECONDS, until=ENOUGH)),
            daemon=True,
        )
        thread.start()
        say(f"  {'':>8}64 connections until a second pod serves, for {LEAST_SECONDS} s or more")
        most, reported, start, seen_down = 1, "", time.monotonic(), False
        loaded, reasons = True, 0
        while time.monotonic() - start < MOST_SECONDS + 180:
            status = self.get("modelbackend", name)["status"]
            now = f"  {time.monotonic() - start:6.1f} s  "
            for decision in reversed(
                (status.get("scaling") or [])[: len(status.get("scaling") or []) - reasons]
            ):
                say(f"{now}{decision['from']} -> {decision['to']} replicas: {decision['reason']}")
                reasons += 1
            replicas, ready = status.get("replicas", 0), status.get("readyReplicas", 0)
            most = max(most, ready)
            line = f"{ready} of {replicas} ready"
            if line != reported:
                reported = line
                say(f"{now}{line:<16} {'#' * ready}")
            if loaded and most > 1 and time.monotonic() - start > LEAST_SECONDS:
                self.k("exec", "client", "--", "touch", ENOUGH)
                loaded = False
            if not thread.is_alive() and replicas == ready == 1:
                seen_down = True
                break
            time.sleep(0.5)
        thread.join(timeout=5)
        if most < 2 or not seen_down:
            raise DemoError(f"replicas did not follow the load: at most {most}, back to one: {seen_down}")
        if not answers or answers[0]["errors"]:
            raise DemoError(
                f"requests failed while scaling: {answers[0]['errors'] if answers else 'no answer'}"
            )
        say(f"  {answers[0]['requests']} requests while scaling, none failed")
        self.fact("replicas", f"1 -> {most} -> 1 under load, {answers[0]['requests']} requests, none failed")
        self.set_batch_size(32)

    def summary(self) -> None:
        """What was seen, and the commands to go on with."""
        head("Summary")
        for name, value in self.facts:
            say(f"  {name:<24}{value}")
        say(f"  {'took':<24}{time.monotonic() - self.started:.0f} s")
        command = self.target.command
        if self.target.cluster is not None:
            command = f".venv/bin/{command}"
        say("")
        say("The cluster is still up. Go on with:")
        say(f"  {command} -n {NAMESPACE} get modelbackends,modelendpoints,trafficsplits,pods")
        ours = ".venv/bin/kubectl-penstock" if self.target.cluster is None else f"{command} penstock"
        say(f"  {ours} status -n {NAMESPACE}      # what is not well, and why; also top, why BACKEND")
        say(f"  {command} -n {NAMESPACE} edit batchpolicy {self.policy}")
        say(f"  {command} explain modelbackend.spec.autoscaling")
        if self.target.cluster is not None:
            say(
                f"  .venv/bin/python -m devcluster forward svc/digits -n {NAMESPACE}"
                "      # the endpoint on loopback"
            )
            say("  .venv/bin/python -m devcluster down                         # remove the cluster")


def client_pod(image: str) -> dict[str, Any]:
    """The pod that load.py runs in."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "client"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "client",
                    "image": image,
                    "command": ["python", "-c", "import signal; signal.pause()"],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }


def say(text: str) -> None:
    """Print a line at once, so that a log follows."""
    print(text, flush=True)


def head(text: str) -> None:
    """Print a step's head."""
    say(f"\n== {text} {'=' * max(0, 96 - len(text))}")


def main() -> int:
    """Run the demo; returns the exit code."""
    try:
        demo = Demo(Target())
        demo.target.begin()
        demo.install()
        demo.apply()
        demo.accuracy()
        demo.batches()
        demo.policy_change()
        demo.scaling()
        demo.summary()
    except (DemoError, DevclusterError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
