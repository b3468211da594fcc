"""The verdicts of kstatus and Argo CD on every stage of a resource's life, by their own libraries.

No cluster is needed, but a program that the cluster's builder makes: kstatus as Flux has it, and the Lua
interpreter that Argo CD embeds.
"""

from __future__ import annotations

import asyncio
import json
import subprocess

import pytest
import yaml

from devcluster import programs
from tests.support.cluster.k8s import ROOT
from tests.support.worlds.lifecycles import Stage, stages

HEALTH = ROOT / "helm/penstock/files/argocd/health.lua"
AGREE = {
    "Current": "Healthy",
    "InProgress": "Progressing",
    "Failed": "Degraded",
    "Terminating": "Progressing",
}


@pytest.fixture(scope="module")
def verdicts() -> list[tuple[Stage, dict[str, str]]]:
    """Every stage with what the two say of it."""
    programs.ensure("verdict")
    collected = asyncio.run(_collected())
    done = subprocess.run(
        [programs.program("verdict", "verdict"), "-health", HEALTH],
        input=yaml.safe_dump([stage.obj for stage in collected]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(zip(collected, json.loads(done.stdout), strict=True))


async def _collected() -> list[Stage]:
    return [stage async for stage in stages()]


def test_every_stage_is_read_rightly(verdicts: list[tuple[Stage, dict[str, str]]]) -> None:
    """The golden table: current, in progress, failed and terminating, healthy, degraded and suspended."""
    wrong = [
        (stage.name, stage.wanted, (said["status"], said["health"]))
        for stage, said in verdicts
        if stage.wanted != (said["status"], said["health"])
    ]
    assert wrong == []


def test_the_two_agree_and_say_why(verdicts: list[tuple[Stage, dict[str, str]]]) -> None:
    """Except for suspension, which kstatus does not have; a degraded state has the condition's message."""
    for stage, said in verdicts:
        if said["health"] != "Suspended":
            assert said["health"] == AGREE[said["status"]], stage.name
        if said["health"] == "Degraded":
            assert said["healthMessage"] == said["message"] != "", stage.name
