"""Where evidence ends: what a promotion past a failed analysis forgets, what a release leaves undecided."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from penstock_operator.api.strategy import Verdict
from penstock_operator.releases import machine
from penstock_operator.releases.evidence import MOST_MESSAGE
from penstock_operator.releases.look import text
from penstock_operator.releases.state import Release
from tests.support.worlds.releases import LAST, NOW, at, seen, strategy, verdicts

S = strategy()
PAUSING = strategy(onFailure="Pause")


def failed(step: int, **state: Any) -> Release:
    """A release that a verdict has paused."""
    release = at(PAUSING, step, "Paused", held=True, reason="AnalysisFailed", **state)
    return replace(release, verdicts=verdicts(PAUSING, "Fail"))


@pytest.mark.parametrize("action", ["promote", "promote-full"])
@pytest.mark.parametrize("step", [1, 2, LAST])
def test_a_promotion_past_a_failed_analysis_is_judged_by_what_comes_then(step: int, action: str) -> None:
    """No verdict is left, and the interval begins anew: requests of before do not speak a second time."""
    release = failed(step)
    made = machine.advance(PAUSING, release, seen(release, action=action)).release
    assert (made.state.phase, made.state.settled, made.state.judged) == ("Progressing", None, None)
    assert (made.verdicts, made.state.held) == ((), False)
    look = seen(made, now=NOW + timedelta(seconds=1), action=action)
    taken = machine.advance(PAUSING, made, look).release
    assert (taken.state.settled, taken.state.judged) == (text(look.now), text(look.now))
    assert taken.state.phase == ("Progressing" if step < LAST and action == "promote" else "Promoted")


def test_a_candidate_that_goes_on_failing_is_paused_again() -> None:
    """By the first interval of the next step; each promotion takes it one step further."""
    release = failed(1)
    for number, step in enumerate((2, 3)):
        look = seen(release, action=f"promote@{number}")
        release = machine.advance(PAUSING, release, look).release
        assert (release.state.phase, release.step) == ("Progressing", step)
        release = machine.advance(PAUSING, release, seen(release, action=look.action)).release
        later = seen(release, now=NOW + timedelta(seconds=31), action=look.action)
        release = machine.advance(PAUSING, release, replace(later, verdicts=verdicts(S, "Fail"))).release
        assert (release.state.phase, release.state.reason, release.step) == ("Paused", "AnalysisFailed", step)


def test_what_somebody_paused_keeps_its_evidence() -> None:
    """It goes on with the step that it was at, and nothing is judged a second time."""
    release = replace(at(S, 1, "Paused", held=True), verdicts=verdicts(S, "Waiting"))
    made = machine.advance(S, release, seen(release, action="promote")).release
    assert (made.step, made.verdicts, made.state.settled) == (1, release.verdicts, release.state.settled)


@pytest.mark.parametrize(
    ("release", "world"),
    [
        (at(S, LAST), {}),
        (at(S, LAST, "Promoted", reason="Promoted"), {}),
        (at(S, 3), {"action": "abort"}),
        (at(S, 3), {"candidate": {"exists": False, "uid": "", "ready": 0, "answered": None}}),
        (at(S, 3, "RolledBack", reason="RolledBack"), {}),
    ],
)
def test_a_release_that_is_over_waits_for_no_verdict(release: Release, world: dict[str, Any]) -> None:
    """What was not decided is Inconclusive and says so, once; what was decided stays."""
    said = replace(release, verdicts=verdicts(S, "Waiting", "Pass"))
    made = machine.advance(S, said, seen(said, **world)).release
    assert made.state.phase in ("Promoted", "RolledBack")
    assert [(each.verdict, each.message) for each in made.verdicts] == [
        ("Inconclusive", "not decided when the release ended: numbers"),
        ("Pass", "numbers"),
    ]
    again = machine.advance(S, made, seen(made, **world)).release
    assert again.verdicts == made.verdicts


def test_the_end_of_a_release_is_kept_until_another_begins() -> None:
    """The time of the condition is not it: from a last step to the promotion its status stays True."""
    promoted = machine.advance(S, at(S, LAST), seen(at(S, LAST))).release
    later = NOW + timedelta(hours=1)
    assert machine.advance(S, promoted, seen(promoted, now=later)).release.state.ended == text(NOW)
    lost = seen(promoted, now=later, candidate={"exists": False, "uid": "", "ready": 0, "answered": None})
    back = machine.advance(S, promoted, lost).release
    assert (back.state.phase, back.state.ended) == ("RolledBack", text(later))
    begun = machine.advance(S, back, seen(back, now=later)).release
    assert (begun.state.phase, begun.state.ended) == ("Progressing", None)


def test_a_long_message_stays_within_the_status() -> None:
    long = Verdict(metric="errorRatio", verdict="Waiting", message="x" * MOST_MESSAGE)
    said = replace(at(S, LAST), verdicts=(long,))
    (verdict,) = machine.advance(S, said, seen(said)).release.verdicts
    assert len(verdict.message) == MOST_MESSAGE
    assert Verdict.model_validate(verdict.document()) == verdict


@pytest.mark.parametrize("phase", ["Promoted", "RolledBack"])
def test_a_release_begun_again_knows_nothing_of_the_last_one(phase: str) -> None:
    """An Inconclusive verdict does not go on."""
    over = replace(at(S, LAST, phase, reason="CandidateMissing"), verdicts=verdicts(S, "Inconclusive"))
    made = machine.advance(S, over, seen(over, candidate={"uid": "later"})).release
    assert (made.state.phase, made.step, made.verdicts) == ("Progressing", 0, ())
