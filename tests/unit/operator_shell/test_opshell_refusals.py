"""Writes that the API server refuses: shown in conditions, tried again, cleared once they pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock_operator.errors import ClusterError, Conflict, Rejected, Unavailable
from penstock_operator.kinds import BACKEND, DEPLOYMENT, DISRUPTION_BUDGET, ENDPOINT, SERVICE
from tests.support.worlds.operator_harness import Harness, backend, endpoint

WEBHOOK_DOWN = Unavailable(500, 'Internal error occurred: failed calling webhook "w": connection refused')
DENIED = Rejected(403, 'admission webhook "w" denied the request: no')


def refusing(error: ClusterError, verb: str, kind: str, name: str) -> Callable[..., None]:
    def fail(a_verb: str, a_kind: str, _namespace: str, a_name: str) -> None:
        if (a_verb, a_kind, a_name) == (verb, kind, name):
            raise error

    return fail


def flags(harness: Harness, kind: Any, name: str) -> set[str]:
    """Which of kstatus's two conditions are there."""
    return {condition for condition in ("Reconciling", "Stalled") if harness.condition(kind, name, condition)}


async def tries(harness: Harness, seconds: float = 10.0) -> None:
    for _ in range(int(seconds * 10)):
        await harness.turn(0.1)


@pytest.mark.parametrize(
    ("error", "reason", "flag"),
    [
        (WEBHOOK_DOWN, "WebhookFailed", "Reconciling"),
        (Unavailable(500, "etcdserver: leader changed"), "WriteFailed", "Reconciling"),
        (Unavailable(503, "busy"), "WriteFailed", "Reconciling"),
        (Conflict(409, "object is being deleted"), "WriteConflict", "Reconciling"),
        (DENIED, "WebhookDenied", "Stalled"),
        (Rejected(403, "exceeded quota: q"), "QuotaExceeded", "Stalled"),
        (
            Rejected(422, "'p' with binding: AdmissionPolicy 'p' denied request: no"),
            "PolicyDenied",
            "Stalled",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_child_that_is_not_taken_is_told_and_taken_back(
    error: ClusterError, reason: str, flag: str
) -> None:
    """The server's own words in Ready, the right flag for kstatus, and nothing of it left afterwards."""
    harness = Harness()
    harness.cluster.fail = refusing(error, "apply", "Deployment", "m-backend")
    await harness.applied(backend())
    await tries(harness)
    assert harness.condition(BACKEND, "m", "Ready") == ("False", reason)
    assert flags(harness, BACKEND, "m") == {flag}
    assert error.message in str(harness.cluster.find(BACKEND, "n", "m")["status"])
    writes = len(harness.cluster.writes)
    await tries(harness)
    assert {write[0] for write in harness.cluster.writes[writes:]} <= {"apply"}
    harness.cluster.fail = lambda *_: None
    await tries(harness, 31)
    assert harness.cluster.find(DEPLOYMENT, "n", "m-backend")
    assert reason not in str(harness.cluster.find(BACKEND, "n", "m")["status"])


async def test_what_passes_at_the_next_tries_is_not_told() -> None:
    """An apiserver that hiccups makes no condition flicker."""
    harness = Harness()
    harness.cluster.fail = refusing(WEBHOOK_DOWN, "apply", "Deployment", "m-backend")
    harness.apply(backend())
    await tries(harness, 1)
    harness.cluster.fail = lambda *_: None
    await tries(harness)
    events = [key for key, live in harness.cluster.objects.items() if "webhook" in str(live.get("status"))]
    assert events == []
    assert [key for key in harness.cluster.objects if key[0] == "Event" and "Webhook" in str(key)] == []


async def test_one_child_that_fails_does_not_hold_the_others() -> None:
    """A webhook on Services does not stop the change of the Deployment."""
    harness = Harness()
    harness.cluster.fail = refusing(WEBHOOK_DOWN, "apply", "Service", "m-backend")
    await harness.applied(backend())
    assert harness.cluster.find(DEPLOYMENT, "n", "m-backend")


async def test_an_apiserver_that_is_away_is_not_asked_for_every_child() -> None:
    """No answer, or 429: one call a try."""
    harness = Harness()
    calls: list[str] = []

    def fail(verb: str, *_call: str) -> None:
        if verb == "apply":
            calls.append(verb)
            raise Unavailable(0, "no answer")

    harness.cluster.fail = fail
    await harness.applied(backend())
    assert len(calls) == 1


async def test_a_refused_deletion_is_told() -> None:
    """A webhook that keeps an object we no longer want."""
    harness = await Harness().applied(backend(replicas=2))
    assert harness.cluster.find(DISRUPTION_BUDGET, "n", "m-backend")
    harness.cluster.fail = refusing(DENIED, "delete", "PodDisruptionBudget", "m-backend")
    await harness.applied(backend(replicas=1))
    assert harness.condition(BACKEND, "m", "Ready") == ("False", "WebhookDenied")
    harness.cluster.fail = lambda *_: None
    await tries(harness, 31)
    assert harness.cluster.names(DISRUPTION_BUDGET, "n") == []
    assert harness.condition(BACKEND, "m", "Ready") == ("False", "RollingOut")


@pytest.mark.parametrize(
    ("error", "reason", "flag"),
    [(WEBHOOK_DOWN, "WebhookFailed", "Reconciling"), (DENIED, "WebhookDenied", "Stalled")],
    ids=["passing", "not"],
)
@pytest.mark.parametrize(
    ("name", "condition"), [("e", "Accepted"), ("penstock-router", "RouterReady")], ids=["own", "router's"]
)
async def test_an_endpoint_tells_of_its_own_service_and_of_its_router(
    name: str, condition: str, error: ClusterError, reason: str, flag: str
) -> None:
    """In the condition that it concerns; cleared when it is taken."""
    harness = await Harness().applied(backend())
    harness.pods_ready("m-backend", 1)
    harness.cluster.fail = refusing(error, "apply", "Service", name)
    await harness.applied(endpoint())
    await tries(harness)
    assert harness.condition(ENDPOINT, "e", condition) == ("False", reason)
    assert harness.condition(ENDPOINT, "e", "Ready") == ("False", reason)
    assert flags(harness, ENDPOINT, "e") == {flag}
    harness.cluster.fail = lambda *_: None
    await tries(harness, 31)
    assert harness.cluster.find(SERVICE, "n", name)
    assert reason not in str(harness.cluster.find(ENDPOINT, "n", "e")["status"])


async def test_a_refused_number_is_told() -> None:
    """The autoscaler's write is refused: ScalingActive says by whom, and is True again once it passes."""
    harness = Harness()
    harness.cluster.fail = refusing(DENIED, "scale", "ModelBackend", "m")
    await harness.applied(backend(autoscaling={"targetLoad": 10, "maxReplicas": 5}, replicas=1))
    assert harness.condition(BACKEND, "m", "ScalingActive") == ("False", "WebhookDenied")
    harness.cluster.fail = lambda *_: None
    await tries(harness, 31)
    assert (harness.condition(BACKEND, "m", "ScalingActive") or ("",))[0] == "True"
