"""What the kubelet says of a pod that does not start is in its backend's conditions with that very event."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_operator.kinds import BACKEND, DEPLOYMENT, POD
from tests.support.worlds.operator_harness import Harness, backend, endpoint

CAUSE = 'failed to resolve reference "r.example/m:9": r.example/m:9: not found'
NEVER_RAN = {"reason": "StartError", "exitCode": 128, "message": 'exec: "nope": executable file not found'}
STORIES = {
    "an image that is not there": (
        [
            {"waiting": {"reason": "ErrImagePull", "message": CAUSE}},
            {
                "waiting": {
                    "reason": "ImagePullBackOff",
                    "message": f'Back-off pulling image "r.example/m:9": ErrImagePull: {CAUSE}',
                }
            },
        ],
        "ImagePullFailed",
        CAUSE,
    ),
    "a name that is no image's": (
        [{"waiting": {"reason": "InvalidImageName", "message": "couldn't parse image name"}}],
        "ImagePullFailed",
        "couldn't parse image name",
    ),
    "a Secret that is not there": (
        [{"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "s" not found'}}],
        "ContainerNotCreated",
        'secret "s" not found',
    ),
    "a command that is not there": (
        [
            {"waiting": {"reason": "RunContainerError", "message": "exec failed"}},
            {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
        ],
        "ContainerNotCreated",
        "executable file not found",
    ),
}


def says(harness: Harness, name: str, state: dict[str, Any]) -> None:
    """The kubelet writes the pod's status; its Deployment's does not change."""
    last = {"lastState": {"terminated": NEVER_RAN}} if "exec" in str(state) or "10s" in str(state) else {}
    model = {"name": "model", "image": "r.example/m:9", "ready": False, "restartCount": 0, "state": state}
    sidecar = {"name": "penstock-sidecar", "ready": True, "state": {"running": {}}}
    status = {
        "phase": "Pending",
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "False", "reason": "ContainersNotReady"},
        ],
        "initContainerStatuses": [sidecar],
        "containerStatuses": [model | last],
    }
    harness.cluster.edit(POD, "n", name, lambda pod: pod.update(status=status))


@pytest.mark.parametrize("story", STORIES)
async def test_a_container_that_does_not_start_is_named_at_once_and_stays_so(story: str) -> None:
    """No time passes between the pod's status and the backend's; other words for one trouble change none."""
    states, reason, cause = STORIES[story]
    harness = await Harness().applied(backend(), endpoint())
    (name,) = harness.pods_ready("m-backend", 1)
    says(harness, name, {"waiting": {"reason": "PodInitializing"}})
    harness.cluster.edit(
        POD, "n", name, lambda pod: pod["metadata"].update(creationTimestamp="2026-01-01T00:00:00Z")
    )
    harness.cluster.edit(DEPLOYMENT, "n", "m-backend", lambda live: live["status"].update(readyReplicas=0))
    await harness.run()
    assert harness.condition(BACKEND, "m", "ModelLoaded") == ("False", "NoPod")
    versions = set()
    for state in states * 3:
        before = harness.clock.time()
        says(harness, name, state)
        await harness.run()
        assert harness.clock.time() == before
        assert harness.condition(BACKEND, "m", "ModelLoaded") == ("False", reason)
        assert harness.condition(BACKEND, "m", "Ready") == ("False", reason)
        live = harness.cluster.find(BACKEND, "n", "m")
        assert cause in live["status"]["model"]["lastFailure"]
        versions.add(live["metadata"]["resourceVersion"])
    assert len(versions) == 1
    harness.stop()
