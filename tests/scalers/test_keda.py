"""KEDA itself follows the recommendation, by the ScaledObject of docs/how-to/other-scalers.md as it is."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from devcluster import addons
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import (
    Load,
    Namespace,
    assert_nothing_lost,
    condition_of,
    endpoint,
    ledger_backend,
    ledger_code,
)
from tests.support.cluster.watched import watched, writer_of_replicas
from tests.support.pages.page import DOCS, Page

NAME = "digits"
QUICK = {"targetLoad": 6, "stableWindow": "4s", "downscaleDelay": "2s"}
"""Of `autoscaling`, in the place of the guide's: so that a small load needs three pods, and soon no more."""
TO_ZERO = {"minReplicas": 0, "scaleToZero": {"after": "10s"}}
SECONDS = 240.0


def documented(kind: str) -> dict[str, Any]:
    """The guide's object of a kind, of those called `digits`; the first."""
    page = Page.of(DOCS / "how-to/other-scalers.md")
    return next(each for each in page.documents() if each["kind"] == kind)


def seen(namespace: Namespace) -> dict[str, Any]:
    return namespace.get("modelbackend", NAME) or {"spec": {}, "status": {}}


def settled(namespace: Namespace, replicas: int, *, at_least: bool = False) -> dict[str, Any] | None:
    """The backend where it has so many ready pods, and no others."""
    backend = seen(namespace)
    asked, ready = backend["spec"].get("replicas"), (backend.get("status") or {}).get("readyReplicas", 0)
    if at_least:
        return backend if ready >= replicas else None
    pods = namespace.list("pods", f"penstock.dev/backend={NAME}")
    return backend if asked == ready == len(pods) == replicas else None


@pytest.mark.cluster
@pytest.mark.timeout(1800, func_only=True)  # beyond it the whole run ends: no bound of anything promised
def test_keda_follows_the_recommendation_to_zero_and_back_and_the_operator_writes_nothing(
    namespace: Namespace, load: Load, tmp_path: Path
) -> None:
    """The guide's ScaledObject: 1 → 3 or more → 1. With zeros, as it says: → 0 → 1 → 3 or more → 0.

    Every request is answered once, those that come while there is no pod, too. KEDA writes 0 and the first
    pod, its HPA the others; in no state of the backend another has, and none shows a fight.
    """
    scaling = documented("ModelBackend")["spec"]["autoscaling"]
    assert scaling["mode"] == "External"
    addons.install(namespace.cluster, addons.KEDA)
    slow = {"delay_ms": 400}
    model = ledger_backend(NAME, collector=load.port, init_kwargs=slow, autoscaling=scaling | QUICK)
    # Room for all that comes until a pod is ready, however long the machine takes to start it.
    namespace.apply(ledger_code(), model, endpoint("e", NAME, coldStart={"maxPending": 20_000}))
    namespace.wait_ready("modelendpoint", "e")
    url = namespace.url("e")
    with watched(namespace, NAME, tmp_path / "states.json") as states:
        namespace.apply(documented("ScaledObject"))
        wait_for(
            "KEDA to accept the ScaledObject",
            lambda: namespace.condition("scaledobject", NAME, "Ready").get("status") == "True",
        )
        summaries = [grown(namespace, load, url)]
        wait_for("one pod again", lambda: settled(namespace, 1), seconds=SECONDS)

        namespace.patch("modelbackend", NAME, {"spec": {"autoscaling": TO_ZERO}})
        namespace.patch("scaledobject", NAME, {"spec": {"minReplicaCount": 0}})
        wait_for("KEDA to have scaled to 0", lambda: settled(namespace, 0), seconds=SECONDS)
        summaries.append(grown(namespace, load, url))
        fallen = wait_for("KEDA to have scaled to 0 again", lambda: asleep(namespace), seconds=SECONDS)
    for summary in summaries:
        assert_nothing_lost(summary)
    assert fallen["status"]["desiredReplicas"] == 0

    changes = [(writer_of_replicas(state), state["spec"]["replicas"]) for state in states]
    distinct = [change for change, _ in itertools.groupby(changes)]
    written = ", ".join(f"{who or 'not recorded'} {count}" for who, count in distinct)
    print(f"{len(states)} states; replicas: {written}")
    # NB: the API server does not record who wrote a 0, nor the next numbers after it.
    assert {who for who, _ in distinct} <= {"", "keda", "kube-controller-manager"}
    reasons = {condition_of(state, "ScalingActive").get("reason") for state in states}
    # Others are of the recommendation, such as that processors are short.
    assert "External" in reasons
    assert "ForeignScaler" not in reasons
    told = [(each["reason"], each.get("note", each.get("message", ""))) for each in namespace.list("events")]
    for reason, words in (
        ("KEDAScaleTargetActivated", "from 0 to 1"),
        ("KEDAScaleTargetDeactivated", " to 0"),
        ("SuccessfulRescale", "New size: "),
    ):
        assert any(each == reason and words in text for each, text in told), (reason, words, told)


def grown(namespace: Namespace, load: Load, url: str) -> dict[str, Any]:
    """Load until three pods are ready; returns its summary."""
    load.start(url, rate=30)
    wait_for("three ready pods", lambda: settled(namespace, 3, at_least=True), seconds=SECONDS)
    return load.stop()


def asleep(namespace: Namespace) -> dict[str, Any] | None:
    """The backend where it has no pod and says so."""
    backend = settled(namespace, 0)
    asleep = backend is not None and condition_of(backend, "Ready").get("reason") == "ScaledToZero"
    return backend if asleep else None
