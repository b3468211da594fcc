"""The stages that other tools are asked about are what their names say."""

from __future__ import annotations

from penstock_operator.releases.standing import TRUTHS
from tests.support.pages.reasons import in_code
from tests.support.worlds.lifecycles import GOING, stages

OF_OTHERS = {
    *("PodsReady", "Loaded", "Downloading", "Loading", "NoPod", "NoReadyPod", "Waking"),
    *("Accepted", "Listening"),
    *("NoReconfigurePath", "RefusesBatches"),
    *("FollowingLoad", "ForeignScaler", "External", "Limited"),
    *("NotLookedYet", "ReportsReceived", "TooManyUnknown"),
    *("TargetUnreachable", "ShortOfProcessors", "NoHolder", "ScalingDisabled"),
    *("Release", "Schedule", "ScheduleInvalid"),
    *(reason for reason in TRUTHS if reason != "InvalidStrategy"),
}
"""Reasons of Available, ModelLoaded, Accepted, RouterReady, SettingsApplied, scaling and releases, never of
Ready."""


async def test_every_stage_has_its_reason_and_every_reason_that_ready_may_have_a_stage() -> None:
    """Ready reports each; before the operator's first look a resource does not have a status."""
    reached = [stage async for stage in stages()]
    assert len({stage.name for stage in reached}) == len(reached) > 30
    for stage in reached:
        conditions = (stage.obj.get("status") or {}).get("conditions") or []
        ready = [each["reason"] for each in conditions if each["type"] == "Ready"]
        assert ready == ([stage.reason] if stage.reason else []), stage.name
        for each in conditions:
            assert each["observedGeneration"] == stage.obj["status"]["observedGeneration"], stage.name
    # A new reason needs a stage, or an exception here; and the deletion of every kind is among the stages.
    assert {stage.reason for stage in reached if stage.reason} == in_code() - OF_OTHERS
    going = {stage.obj["kind"] for stage in reached if stage.wanted == GOING}
    assert going == {stage.obj["kind"] for stage in reached}
