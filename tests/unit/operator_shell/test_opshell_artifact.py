"""The digest of an artifact among the settings of a backend whose batching comes from a policy."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock_operator.api import ModelBackend
from penstock_operator.desired.artifact import source
from penstock_operator.kinds import BACKEND, POLICY
from penstock_wire.control.artifact import ArtifactState
from tests.support.worlds.operator_harness import Harness, backend, policy, settings

MODEL: dict[str, Any] = {
    "container": {"image": "model:1"},
    "protocol": "instances",
    "port": 8080,
    "readyPath": "/",
    "artifact": {"uri": "s3://weights/digits"},
}


async def downloading() -> Harness:
    """A backend with a policy and an artifact; its pod has no file yet."""
    harness = await Harness().applied(
        policy(maxBatchSize=8), backend(batchPolicyRef="p", model=MODEL, replicas=1)
    )
    harness.pods_ready("m-backend", 1)
    await harness.run()
    return harness


async def arrives(harness: Harness) -> None:
    """The pod has all files, and reports the settings that it has been sent."""
    read = ModelBackend.parse(harness.cluster.find(BACKEND, "n", "m")).spec.model.artifact
    assert read is not None
    state = ArtifactState(source=source(read), here=3, total=3, digest="sha256:a")
    for _ in range(3):  # NB: the status is shown by turns, and the settings follow it
        made = harness.ctx.memory.made["n", "m-backend-settings"]
        harness.report("m", "m-backend-0", version=made.version, digest=made.digest, artifact=state)
        await harness.turn(1)


async def test_a_policy_is_applied_with_the_digest_of_an_artifact() -> None:
    """A backend's document has both."""
    harness = await downloading()
    await arrives(harness)
    assert settings(harness)["artifact"]["digest"] == "sha256:a"
    assert harness.condition(POLICY, "p", "Ready") == ("True", "Applied")


@pytest.mark.parametrize("suspend", [False, True], ids=["without-policy", "suspended"])
async def test_settings_that_are_kept_demand_the_digest(*, suspend: bool) -> None:
    """Pods that come later must find the same files; the rest stays, also for the next operator."""
    harness = await downloading()
    if suspend:
        await harness.applied(backend(batchPolicyRef="p", model=MODEL, replicas=1, suspend=True))
        await harness.applied(policy(maxBatchSize=9))
    else:
        harness.cluster.remove(POLICY, "n", "p")
        await harness.run()
    await arrives(harness)
    for _ in range(2):
        document = msgspec.json.decode(harness.ctx.memory.made["n", "m-backend-settings"].document)
        assert document["batching"]["maxBatchSize"] == 8
        assert document["artifact"]["digest"] == "sha256:a"
        harness = await harness.restart()
