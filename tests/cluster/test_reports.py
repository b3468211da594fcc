"""The report channel: TLS, keys that rotate without a restart, what waits without it."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Iterator

import pytest

from devcluster.cluster import Cluster
from tests.support.clocks.stalls import Stalls
from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import Load, Namespace, endpoint, ledger_backend, ledger_code
from tests.support.cluster.release import leading_pod, operator_metrics, upgrade

SECRET = "penstock-operator-tls"
OVERLAP = 12


@pytest.fixture
def short_overlap(penstock: Cluster) -> Iterator[None]:
    """Rotations that take seconds; afterwards all is as it was."""
    upgrade(penstock, "--set", f"operator.extraArgs={{--authority-overlap={OVERLAP}s}}")
    yield
    upgrade(penstock)


def pods(namespace: Namespace) -> dict[str, list[int]]:
    """Every pod of the namespace by uid, with its containers' restarts."""
    return {
        pod["metadata"]["uid"]: [
            status["restartCount"]
            for status in [
                *pod["status"].get("containerStatuses", []),
                *pod["status"].get("initContainerStatuses", []),
            ]
        ]
        for pod in namespace.list("pods")
    }


def taken(operator: Namespace) -> dict[str, float]:
    """Reports that the leader took, by kind."""
    return {
        series.removeprefix("penstock_operator_"): value
        for series, value in operator_metrics(operator).items()
        if series.startswith("penstock_operator_reports_total{")
    }


def authorities(operator: Namespace) -> str:
    """The authorities that the operator sends, by its Secret; empty while it does not exist."""
    secret = operator.get("secret", SECRET)
    return base64.b64decode(secret["data"]["ca.crt"]).decode() if secret else ""


SIDECAR = 'reports_total{kind="sidecar",outcome="taken"}'
ROUTER = 'reports_total{kind="router",outcome="taken"}'


@pytest.mark.xdist_group("fight")
@pytest.mark.usefixtures("short_overlap")
def test_keys_rotate_without_a_restart_or_a_gap(
    namespace: Namespace, load: Load, operator: Namespace
) -> None:
    """Asked for by annotation, then by deleting the Secret: every pod reports over TLS throughout."""
    namespace.apply(ledger_code(), ledger_backend("b", collector=load.port, replicas=2), endpoint("e", "b"))
    namespace.wait_ready("modelbackend", "b")
    namespace.wait_ready("modelendpoint", "e")
    before = pods(namespace)
    wait_for("reports of both kinds", lambda: {SIDECAR, ROUTER} <= taken(operator).keys())

    silence = Silence(namespace, operator)
    for ask in (
        ("annotate", "secret", SECRET, f"penstock.dev/rotate={time.time()}", "--overwrite"),
        ("delete", "secret", SECRET),
    ):
        first, seen = authorities(operator), set[int]()
        operator.kubectl(*ask)

        def rotated(first: str = first, seen: set[int] = seen) -> str:
            silence.look()
            current = authorities(operator)
            seen.add(current.count("BEGIN CERTIFICATE"))
            return current if current.count("BEGIN CERTIFICATE") == 1 and current != first else ""

        shown = wait_for("the new authority to be trusted alone", rotated, seconds=240, every=0.5)
        assert seen >= {1, 2}, "old and new were trusted together"

        def trusted(trusted: str = shown) -> bool:
            names = ("b-backend-settings", "penstock-router-settings")
            return all(
                (namespace.get("configmap", name) or {})["data"]["ca.crt"] == trusted for name in names
            )

        wait_for("the ConfigMaps to name the new authority alone", trusted, seconds=240)

    def messages(pod: str) -> list[str]:
        return [line["message"] for line in namespace.log(pod, "penstock-sidecar")]

    for name in [pod["metadata"]["name"] for pod in namespace.pods("b")]:
        # Twice both, and then the new one alone.
        wait_for(
            f"{name} to have received all",
            lambda it=name: messages(it).count("authorities received") >= 4,
        )
        assert "the operator's certificate is not trusted" not in messages(name)
    print(silence.summary())
    assert max(silence.longest.values()) < silence.allowed, silence.summary()
    assert pods(namespace) == before
    # The pods that begin now trust what is shown now.
    namespace.patch("modelbackend", "b", {"spec": {"replicas": 3}})
    wait_for("a third pod", lambda: len(namespace.pods("b")) == 3)
    namespace.wait_ready("modelbackend", "b")


class Silence:
    """The time without a report, as the operator's metrics prove it; never more than the real time.

    Of the backend `b` by the pod that was silent for longest; of routers by whether any reports.
    """

    def __init__(self, namespace: Namespace, operator: Namespace) -> None:
        self.longest = {"sidecar": 0.0, "router": 0.0}
        self.interval = 0.0
        """The longest interval between reports that the operator asked for."""
        whose = f'namespace="{namespace.name}",backend="b"'
        self._age = f"penstock_operator_backend_report_age_seconds{{{whose}}}"
        self._operator = operator
        self._heard = (-1.0, 0.0)
        wait_for("the age of the last report", lambda: self._age in operator_metrics(operator))

    @property
    def allowed(self) -> float:
        """After how long a pod counts as silent."""
        return max(10.0, 2.5 * self.interval)

    def look(self) -> None:
        """Look once more."""
        asked = time.monotonic()
        metrics = operator_metrics(self._operator)
        self.interval = max(self.interval, metrics["penstock_operator_report_interval_seconds"])
        self.longest["sidecar"] = max(self.longest["sidecar"], metrics.get(self._age, 0.0))
        count = metrics.get(f"penstock_operator_{ROUTER}", 0.0)
        if count != self._heard[0]:
            self._heard = (count, time.monotonic())
        else:
            self.longest["router"] = max(self.longest["router"], asked - self._heard[1])

    def summary(self) -> str:
        """In words."""
        return f"silent for {self.longest}, {self.allowed} s allowed; report interval {self.interval} s"


@pytest.mark.xdist_group("fight")
def test_a_new_leader_hears_and_tells_every_pod_within_seconds(
    namespace: Namespace, load: Load, operator: Namespace
) -> None:
    """The operator's pod is deleted and a policy changed in the same moment."""
    policy = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "BatchPolicy",
        "metadata": {"name": "small"},
        "spec": {"maxBatchSize": 2},
    }
    namespace.apply(
        ledger_code(), policy,
        ledger_backend("b", collector=load.port, batchPolicyRef="small", replicas=2),
    )  # fmt: skip
    namespace.wait_ready("modelbackend", "b")
    addresses = [pod["status"]["podIP"] for pod in namespace.pods("b")]
    old = leading_pod(operator)
    operator.kubectl("delete", "pod", old["metadata"]["name"], "--wait=false")
    policy["spec"]["maxBatchSize"] = 19
    namespace.apply(policy)
    began = time.monotonic()

    def leads() -> bool:
        endpointslice = operator.get("endpointslice", "penstock-operator") or {}
        addresses = {
            address for endpoint in endpointslice.get("endpoints") or () for address in endpoint["addresses"]
        }
        return bool(addresses - {old["status"]["podIP"]})

    wait_for("another leader", leads)
    led = time.monotonic() - began

    def in_effect() -> bool:
        return all('"maxBatchSize":19' in namespace.curl(f"http://{ip}:8013/settings")[2] for ip in addresses)

    with Stalls() as stalls:
        wait_for("both sidecars to obey the new policy", in_effect, every=0.2)
    elapsed = time.monotonic() - began
    said = f"new leader after {led:.1f} s, settings in effect after {elapsed:.1f} s, {stalls.lost:.1f} s lost"
    print(said)
    assert elapsed - led <= 30.0 + stalls.lost, said


class Cut:
    """Packets to the ports where reports come in, in TLS and in plain text, that do not pass."""

    def __init__(self, cluster: Cluster) -> None:
        self._nft = [*cluster.exec_prefix, "nft"]

    def of(self, *addresses: str) -> None:
        """From now on, those of these pods, or of all where none is named."""
        sources = f"ip saddr {{ {', '.join(addresses)} }} " if addresses else ""
        self._run(
            "add table inet penstock_cut; "
            "add chain inet penstock_cut reports { type filter hook prerouting priority -300; }; "
            f"add rule inet penstock_cut reports {sources}tcp dport {{ 8015, 8016 }} iifname != lo drop; "
        )

    def end(self) -> None:
        """All pass again."""
        self._run("add table inet penstock_cut; delete table inet penstock_cut")

    def _run(self, rules: str) -> None:
        subprocess.run([*self._nft, rules], check=True, timeout=30)


@pytest.fixture
def cut(penstock: Cluster) -> Iterator[Cut]:
    """Cuts reports off; whole again afterwards."""
    made = Cut(penstock)
    yield made
    made.end()


@pytest.mark.xdist_group("fight")
def test_without_the_report_channel_settings_wait_and_no_pod_goes(
    namespace: Namespace, load: Load, cut: Cut
) -> None:
    """First half of the reports are lost, then all: replicas stay.

    A change of settings waits until a report reaches the operator again: a pod that has heard the operator
    takes none from the ConfigMap, which others may write.
    """
    policy = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "BatchPolicy",
        "metadata": {"name": "small"},
        "spec": {"maxBatchSize": 4},
    }
    # Any load asks for both pods; without one, one of them would go at once.
    scaling = {"maxReplicas": 2, "targetLoad": 1, "stableWindow": "2s", "downscaleDelay": "0s"}
    knobs = {"batchPolicyRef": "small", "init_kwargs": {"delay_ms": 400}, "autoscaling": scaling}
    backend = ledger_backend("b", collector=load.port, **knobs)
    namespace.apply(ledger_code(), policy, backend, endpoint("e", "b"))
    namespace.wait_ready("modelendpoint", "e")
    load.start(namespace.url("e"), rate=10)
    wait_for("two ready pods", lambda: ready(namespace) == 2)
    namespace.wait_condition("modelbackend", "b", "MetricsAvailable")
    addresses = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in namespace.pods("b")}
    before = (namespace.get("modelbackend", "b") or {})["metadata"]["generation"]
    for sources, silent in ((list(addresses.values())[:1], 1), ([], 2)):
        began = time.time()
        cut.of(*sources)

        def told(silent: int = silent) -> bool:
            condition = namespace.condition("modelbackend", "b", "MetricsAvailable")
            return f"kept at 2: {silent} of 2 pods are silent" in condition.get("message", "")

        wait_for(f"the condition to tell of {silent} silent pods", told)
        print(f"{silent} of 2 silent: told within {time.time() - began:.1f} s")
    policy["spec"]["maxBatchSize"] = 17

    def sizes() -> list[int]:
        shown = [namespace.curl(f"http://{ip}:8013/settings")[2] for ip in addresses.values()]
        return [json.loads(text)["batching"]["maxBatchSize"] for text in shown]

    def stored() -> bool:
        config_map = namespace.get("configmap", "b-backend-settings") or {}
        return bool(json.loads(config_map["data"]["settings.json"])["batching"]["maxBatchSize"] == 17)

    namespace.apply(policy)
    wait_for("the new policy to be in the ConfigMap", stored)
    assert sizes() == [4, 4]
    blind = namespace.get("modelbackend", "b") or {}
    assert blind["metadata"]["generation"] == before, "nobody has written replicas meanwhile"
    assert ready(namespace) == 2
    cut.end()
    wait_for("both sidecars to obey the new policy", lambda: sizes() == [17, 17])
    namespace.wait_condition("modelbackend", "b", "MetricsAvailable")
    load.stop()
    wait_for("the pod to go that has nothing to do", lambda: ready(namespace) == 1)


def ready(namespace: Namespace) -> int:
    """The backend's ready pods, by its status."""
    return int(((namespace.get("modelbackend", "b") or {}).get("status") or {}).get("readyReplicas") or 0)
