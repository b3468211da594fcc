"""Releases on the cluster: a bad version is taken back, a good one promoted, also by a new operator."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

import pytest

from devcluster.cluster import Cluster
from tests.support.cluster.cluster_waits import heard, wait_for
from tests.support.cluster.k8s import (
    INSTALLED_IN,
    ROOT,
    Load,
    Namespace,
    endpoint,
    kinds_of,
    ledger_backend,
    ledger_code,
    split,
)
from tests.support.cluster.release import leading_pod
from tests.support.ledger.zero_loss import is_ready, pods_of, table, wait_settled
from tests.support.pages.page import Page, Shell

RATE = 150.0
STEPS = [{"setWeight": 20}, {"setWeight": 50}]
REPLICAS = 2
"""Of the stable; so that 50 % take one pod of a candidate, and all requests two."""


class Audit:
    """Looks at a release each second, and once at the end; a context manager.

    Attributes:
        looks: (candidate, weight, ready pods of the candidate), where they changed.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.looks: list[tuple[str, int, int]] = []

    def _run(self) -> None:
        while not self._over.wait(1.0):
            self._look()
        self._look()

    def _look(self) -> None:
        # NB: the weight first: pods come here, and none goes.
        release = stored(self._namespace)
        if release:
            candidate = release["candidate"]
            pods = pods_of(self._namespace, f"penstock.dev/backend={candidate}")
            look = candidate, release["weight"], sum(map(is_ready, pods))
            if self.looks[-1:] != [look]:
                self.looks.append(look)

    def weights(self, candidate: str) -> list[int]:
        """The weights above 0 of a candidate, one after another."""
        seen = [weight for name, weight, _ in self.looks if name == candidate and weight]
        return [weight for weight, _ in itertools.groupby(seen)]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def stored(namespace: Namespace) -> dict[str, Any]:
    """The status' release of the split `s`; empty where there is none. Not by kubectl, which takes a core."""
    path = f"/apis/penstock.dev/v1alpha1/namespaces/{namespace.name}/trafficsplits/s"
    code, answer = namespace.cluster.api().request("GET", path)
    if code == HTTPStatus.NOT_FOUND:
        return {}
    assert code == HTTPStatus.OK, answer
    release: dict[str, Any] = (answer.get("status") or {}).get("release") or {}
    heard("release", release)
    return release


def wait_release(namespace: Namespace, candidate: str, seconds: float = 180, **members: Any) -> None:
    """Wait until the release of a candidate has these members in its status."""
    wanted = {"candidate": candidate, **members}
    wait_for(f"a release with {wanted}", lambda: wanted.items() <= stored(namespace).items(), seconds=seconds)


def errors_of(namespace: Namespace, backend: str) -> dict[str, int]:
    """The errors of a backend within the last minute, by reason."""
    status = (namespace.get("modelbackend", backend) or {})["status"]
    errors: dict[str, int] = status["load"].get("errors") or {}
    return errors


def released(candidate: str) -> dict[str, Any]:
    """The split `s` with a release of a candidate."""
    made = split("s", "e", {"stable": 100, candidate: 0})
    strategy = {
        "stable": "stable",
        "candidate": candidate,
        "steps": STEPS,
        # Errors alone: beside other work on two cores, one pod is at times truly slower than two.
        "analysis": {"interval": "5s", "metrics": [{"name": "errorRatio"}]},
    }
    return made | {"spec": made["spec"] | {"strategy": strategy}}


@pytest.mark.xdist_group("fight")
def test_a_bad_version_is_taken_back_and_a_good_one_promoted(
    penstock: Cluster, namespace: Namespace, load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under the ledger, while the operator's pod is deleted: nothing fails but what the bad version fails.

    The candidate never has a weight that its ready pods are too few for, and gets no weight but its steps'.
    """
    backends = [
        ledger_backend(
            name,
            collector=load.port,
            replicas=replicas,
            init_kwargs={"delay_ms": 2.0, "label": name, "fails": fails},
            batching={"maxQueuedItems": 10_000},
        )
        for name, replicas, fails in (("stable", REPLICAS, 0.0), ("bad", 1, 0.05), ("good", 1, 0.0))
    ]
    namespace.apply(ledger_code(), *backends, endpoint("e", "stable", coldStart={"maxPending": 10_000}))
    for backend in backends:
        namespace.wait_ready("modelbackend", backend["metadata"]["name"])
    namespace.wait_ready("modelendpoint", "e")
    load.start(namespace.url("e"), rate=RATE)
    with Audit(namespace) as audit:
        load.mark("bad")
        namespace.apply(released("bad"))
        wait_release(namespace, "bad", phase="RolledBack", weight=0)
        status = (namespace.get("trafficsplit", "s") or {})["status"]
        assert "Fail" in {each["verdict"] for each in status["verdicts"] if each["metric"] == "errorRatio"}

        load.mark("good")
        namespace.apply(released("good"))
        wait_release(namespace, "good", weight=20)
        watching = subprocess.Popen(
            [
                *(sys.executable, "-m", "penstock_cli", "rollout", "s", "--watch", "-n", namespace.name),
                *("--kubeconfig", str(penstock.host_kubeconfig)),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        pod = leading_pod(Namespace(penstock, INSTALLED_IN))["metadata"]["name"]
        penstock.kubectl("-n", INSTALLED_IN, "delete", "pod", pod, "--wait=false")
        wait_release(namespace, "good", weight=50, reason="CapacityShort")  # one pod of the two that all take
        namespace.patch("modelbackend", "good", {"spec": {"replicas": REPLICAS}})
        wait_release(namespace, "good", phase="Promoted", weight=100)
        said, _ = watching.communicate(timeout=60)
        wait_settled(namespace, REPLICAS, "penstock.dev/backend=good")
        # The API server makes null of an object that an apply empties, and refuses that.
        wait_for("the last error to leave the status", lambda: not errors_of(namespace, "bad"))
    summary = load.stop()
    with capsys.disabled():
        print(f"\n{table(summary)}\n{audit.looks}")

    assert watching.returncode == 0, said
    assert "stable → good: Promoted, weight 100 %" in said
    assert [audit.weights(name) for name in ("bad", "good")] == [[20], [20, 50, 100]]
    assert all(-(-weight * REPLICAS // 100) <= ready for _, weight, ready in audit.looks), audit.looks
    foreign = [e for e in summary["errors"] if '"failed":"bad"' not in e["body"].replace(" ", "")]
    assert not foreign, "\n".join(kinds_of(foreign))
    wrong = {
        name: summary[name] for name in ("mismatched", "lost", "duplicated", "unexecuted") if summary[name]
    }
    assert wrong == {}
    assert summary["ok"] + sum(summary["not_ok"].values()) == summary["sent"]
    assert set(summary["not_ok"]) == {"500"}


def test_the_example_runs_as_its_page_says(penstock: Cluster, tmp_path: Path) -> None:
    """`examples/release`: exit code 1 for the bad version, which no client has seen, 0 for the good one."""
    page = Page.of(ROOT / "examples/release/README.md")
    for path in ROOT.iterdir():
        (tmp_path / path.name).symlink_to(path)
    here = {"-m devcluster": f"-m devcluster --name {penstock.name}"}
    try:
        with Shell(tmp_path, here) as shell:
            for command in page.commands():
                said = shell.run(command)
                if "--watch" in command.line:
                    assert ("Progressing, step 2 of 4" in said) == ("exit code 1" not in said), said
    finally:
        penstock.kubectl("delete", "namespace", "release", "--ignore-not-found", "--wait=false")
