"""Who copies an artifact from whom."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_operator.control.artifact_turns import KEPT, MISSING, SETTLE, ArtifactTurns
from penstock_operator.store import Store
from penstock_wire.control.artifact import ArtifactState
from penstock_wire.control.report import SidecarReport
from tests.support.clocks.hand_clock import HandClock


class World:
    """A backend's pods, which report in turn; a pod's address is its name."""

    def __init__(self) -> None:
        self.store, self.clock = Store(), HandClock()
        self.turns = ArtifactTurns(self.store, self.clock)
        self.keys: dict[str, str] = {}

    def record(self, digest: str) -> None:
        """Record the digest of the first download."""
        metadata = {"namespace": "n", "name": "m", "uid": "b", "resourceVersion": digest or "1"}
        status = {"artifact": {"digest": digest}}
        self.store.put({"kind": "ModelBackend", "metadata": metadata, "status": status})

    def says(self, pod: str, here: int = 0, digest: str = "", **report: Any) -> str | None:
        """A pod reports; returns whom it is told to copy from, None if nothing is said of that."""
        metadata = {"namespace": "n", "name": pod, "uid": f"uid-{pod}", "resourceVersion": "1"}
        self.store.put({"kind": "Pod", "metadata": metadata, "status": {"podIP": pod}})
        state = ArtifactState(source="source", here=here, digest=digest)
        made = SidecarReport(
            **{"pod": pod, "uid": f"uid-{pod}", "seq": 1, "state": "ready", "artifact": state} | report
        )
        turn = self.turns.of("n", "m", made, every=1.0)
        self.keys[pod] = turn.key if turn is not None else ""
        return None if turn is None or digest else turn.neighbour

    def settled(self) -> World:
        """Let the first seconds pass."""
        assert self.says("other", artifact=None) is None
        self.clock.turn(SETTLE)
        return self


@pytest.fixture
def world() -> World:
    """Pods of an operator that has been there for long."""
    return World().settled()


def test_of_pods_that_start_at_once_one_reads_the_origin(world: World) -> None:
    """The others stand in a line behind it, and behind the pods that have all; each has one that follows."""
    assert [world.says(pod) for pod in "abcd"] == ["", "a", "b", "c"]
    assert [world.says(pod, here) for pod, here in zip("abcd", (50, 70, 30, 30), strict=True)] == [
        "",
        "a",
        "b",
        "c",
    ]
    assert len({world.keys[pod] for pod in "abcd"}) == 1
    world.says("a", 99, "sha256:1")
    assert [world.says(pod, 80) for pod in "bcd"] == ["a", "b", "c"]
    world.says("b", 99, "sha256:1")
    assert [world.says(pod, 90) for pod in "cde"] == ["a", "b", "c"]
    last = world.keys["a"]
    for pod in "cdea":
        world.says(pod, 99, "sha256:1")
    assert world.keys["a"] not in ("", last)

    # The pods that have all know the next one's key before it comes.
    next_key = world.keys["a"]
    assert world.says("f") == "a"
    assert world.keys["f"] == next_key


def test_a_pod_that_is_gone_or_has_other_files_is_no_source(world: World) -> None:
    """The next in line takes its place; a new pod never stands before one that is ahead."""
    assert [world.says(pod) for pod in "abc"] == ["", "a", "b"]
    for _ in range(int(MISSING) + 1):
        world.clock.turn(1.0)
        seen = [world.says("b", 40), world.says("c", 30)]
    assert seen == ["", "b"]
    assert world.says("a", 10) == "c"

    world.record("sha256:1")
    world.says("other-files", 99, "sha256:2")
    assert world.says("b", 50) == ""
    world.says("leaving", 99, "sha256:1", state="draining")
    assert world.says("b", 50) == ""
    world.says("right", 99, "sha256:1")
    assert world.says("b", 50) == "right"
    world.clock.turn(KEPT)
    assert world.says("d") == ""


def test_a_new_operator_sends_no_pod_to_the_origin_before_it_knows_all() -> None:
    """A pod that is ahead has the place that it had."""
    world = World()
    assert world.says("b", 30) is None
    assert world.says("a", 60) is None
    assert world.says("c") == "b"
    world.clock.turn(SETTLE)
    assert [world.says(pod, here) for pod, here in (("a", 70), ("b", 60), ("c", 50))] == ["", "a", "b"]
