"""What is said of a pod's trouble stays the same while the trouble does."""

from __future__ import annotations

import pytest

from penstock_operator.desired import labels
from penstock_operator.status import pods
from penstock_wire.words import cut
from tests.support.worlds.observed import container, pod


def test_a_pull_that_is_tried_again_and_again_is_told_once() -> None:
    """Kubelet alternates between two wordings of one failure, from a new port each time."""
    reasons = set()
    for port in (40902, 41118):
        cause = (
            'failed to resolve image: Head "https://r.example/v2/": lookup r.example on 10.0.0.10:53: '
            f"read udp 10.0.0.5:{port}->10.0.0.10:53: i/o timeout"
        )
        held = f'Back-off pulling image "r.example/m:1": ErrImagePull: {cause}'
        for turn in (
            {"reason": "ErrImagePull", "message": cause},
            {"reason": "ImagePullBackOff", "message": held},
        ):
            trouble = pods.trouble([pod(ready=False, containerStatuses=[container(waiting=turn)])])
            assert trouble is not None
            reasons.add((trouble.reason, trouble.message))
    ((reason, message),) = reasons
    assert reason == "ImagePullFailed"
    assert message.endswith("10.0.0.10:53: read udp 10.0.0.5->10.0.0.10:53: i/o timeout")


def crashed(**running: str) -> object:
    """A pod that is not ready since 10:00:00 whose model has ended before; it runs again, or waits."""
    ended = {"exitCode": 1, "reason": "Error", "message": "Traceback:\n  line 3\nValueError: no weights\n"}
    state = {"running": running} if running else {"waiting": {"reason": "CrashLoopBackOff"}}
    model = container(last=ended, restarts=4, **state)
    model["ready"] = bool(running)
    pod_object = pod(ready=False, containerStatuses=[model])
    pod_object["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-01T10:00:00Z"
    return pods.trouble([pod_object])


def test_a_crash_is_told_until_the_pod_is_ready_whether_its_container_runs_just_now_or_not() -> None:
    """Without a readiness probe it counts as ready for the moment that it runs."""
    waits, runs = crashed(), crashed(startedAt="2026-01-01T10:00:09Z")
    assert waits == runs
    assert waits is not None


def test_a_container_that_was_well_since_its_restart_has_not_crashed() -> None:
    """Its pod has been ready in between, and is not for another reason."""
    assert crashed(startedAt="2026-01-01T09:00:00Z") is None


def test_the_last_line_of_a_traceback_comes_first() -> None:
    """Tables end at the first line."""
    trouble = crashed()
    assert isinstance(trouble, pods.Trouble)
    first, *rest = trouble.message.splitlines()
    assert first.endswith("; its last words: ValueError: no weights")
    assert rest == ["Traceback:", "  line 3"]


def test_last_words_that_kubelet_has_cut_begin_with_a_line() -> None:
    """It keeps the last 2048 bytes, of an init container's log, too."""
    log = "".join(f"line {number} of what it said\n" for number in range(200)) + "AccessDenied: no weights\n"
    ended = {"exitCode": 1, "reason": "Error", "message": log[-2048:]}
    trouble = pods.trouble([pod(ready=False, initContainerStatuses=[container("fetch", terminated=ended)])])
    assert isinstance(trouble, pods.Trouble)
    first, second, third, *_ = trouble.message.splitlines()
    assert first.endswith(
        "fetch exited with code 1 (Error), restarts: 0; its last words: AccessDenied: no weights"
    )
    assert (second, third.split()[0]) == ("…", "line")


@pytest.mark.parametrize(
    ("text", "most", "wanted"),
    [
        ("short", 5, "short"),
        ("some words here", 12, "some words…"),
        ("x" * 20, 8, "x" * 7 + "…"),
        ("a " + "x" * 20, 10, "a xxxxxxx…"),
    ],
)
def test_a_long_message_is_cut_after_a_word(text: str, most: int, wanted: str) -> None:
    assert cut(text, most) == wanted


MODEL = "model: resources in spec.model.container, python or format"
SIDECAR = "penstock-sidecar: spec.sidecar.resources, or the chart's sidecar.resources"
LACKS = "failed quota: q: must specify limits.cpu for: {}; limits.memory for: {}"


@pytest.mark.parametrize(
    ("said", "app", "remedy"),
    [
        (LACKS.format("model", "model"), "penstock-backend", MODEL),
        (LACKS.format("model,penstock-sidecar", "model"), "penstock-backend", f"{SIDECAR}; {MODEL}"),
        (LACKS.format("logs", "logs"), "penstock-backend", "logs: resources in spec.podTemplate"),
        (LACKS.format("router", "router"), "penstock-router", "router: the chart's router.resources"),
        (
            LACKS.format("router", "router"),
            labels.APP_DEDICATED_ROUTER,
            "router: spec.router.resources of the ModelEndpoint",
        ),
        (
            "exceeded quota: q, requested: limits.cpu=3, used: limits.cpu=2, limited: limits.cpu=4",
            "penstock-backend",
            f"{SIDECAR}; {MODEL}; logs: resources in spec.podTemplate",
        ),
        (
            "[maximum cpu usage per Container is 500m, but limit is 1]",
            "penstock-router",
            "router: the chart's router.resources",
        ),
        ("exceeded quota: q, requested: pods=1, used: pods=10, limited: pods=10", "penstock-backend", ""),
        ("error looking up service account n/robot", "penstock-router", ""),
    ],
)
def test_what_a_quota_or_a_limit_range_demands_is_said_with_the_field(
    said: str, app: str, remedy: str
) -> None:
    """Of the containers that it names, or of all if it names none; other refusals are in their own words."""
    served = ["router"] if "router" in app else ["model", "logs"]
    before = [] if "router" in app else [{"name": "penstock-sidecar"}]
    spec = {"initContainers": before, "containers": [{"name": name} for name in served]}
    refused = pods.refused(
        {
            "spec": {"template": {"metadata": {"labels": {labels.APP_NAME: app}}, "spec": spec}},
            "status": {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": said}]},
        }
    )
    assert refused == pods.Trouble(
        reason="PodsRefused", message=said + (f" (to change the resources of {remedy})" if remedy else "")
    )
