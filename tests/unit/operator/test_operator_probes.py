"""What kubelet does with a router or a sidecar that is late, and with one that says that it is not ready."""

from __future__ import annotations

from penstock_operator.desired import pods

PORT = 8001


def test_who_is_late_by_seconds_stays_in_its_service_and_who_says_so_leaves_at_once() -> None:
    readiness = pods.probes(PORT)["readinessProbe"]
    assert readiness["httpGet"] == {"path": "/readyz", "port": PORT}
    silent = readiness["failureThreshold"] * readiness["timeoutSeconds"]
    says_so = readiness["failureThreshold"] * readiness["periodSeconds"]
    assert silent >= 30
    assert says_so <= 3


def test_nobody_is_killed_for_being_late_before_it_has_left_its_service() -> None:
    probes = pods.probes(PORT)
    readiness, liveness = probes["readinessProbe"], probes["livenessProbe"]
    leaves = readiness["failureThreshold"] * readiness["timeoutSeconds"]
    assert liveness["httpGet"] == probes["startupProbe"]["httpGet"] == {"path": "/livez", "port": PORT}
    assert (liveness["failureThreshold"] - 1) * liveness["periodSeconds"] > leaves
