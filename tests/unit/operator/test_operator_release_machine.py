"""The table of transitions of a release, row by row; what else a look takes in; faults of a strategy."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from penstock_operator.api.strategy import ReleaseState, Strategy
from penstock_operator.releases import capacity, evidence, machine, standing
from penstock_operator.releases.look import Look, text
from penstock_operator.releases.state import Release, Seen
from penstock_wire.control.report import FIRST_BYTE_SECONDS
from tests.support.worlds.releases import LAST, NOW, at, seen, strategy, verdicts

S = strategy()
PAUSING = strategy(onFailure="Pause")
MANUAL = strategy(promotion="Manual")
EDITED = strategy(steps=({"mirror": 5}, {"setWeight": 30}, {"setWeight": 60}))
INVALID = strategy(steps=({"setWeight": 10}, {"mirror": 20}))
TIMED = strategy(
    steps=({"mirror": 5}, {"setWeight": 10}, {"pause": "1m"}, {"setWeight": 50}, {"pause": "1m"})
)
PAUSING_TIMED = TIMED.model_copy(update={"on_failure": "Pause"})
OTHER_PAIR = strategy(stable="new", candidate="newer")
GONE = {"exists": False, "uid": "", "ready": 0, "answered": None}
NOT_READY = {"ready": 0}
AT_REST = {"ready": 0, "replicas": 0, "most": None}
NO_STABLE, NO_CANDIDATE = {"stable": GONE}, {"candidate": GONE}


def failing(release: Release, of: Strategy = S) -> Release:
    return replace(release, verdicts=verdicts(of, "Fail"))


def move(row: str, of: Strategy, release: Release | None, world: dict[str, Any], *then: Any) -> Any:
    """A case: a row of the table by its words, and phase, step, weight, reason and Events afterwards."""
    return pytest.param(row, of, release, world, then, id=f"{row}-{then[0]}-{then[3]}")


BEGIN = "there is no release yet, or it is of another pair"
ANOTHER = "the candidate is another one by its uid, or is back; the stable is there, and not retired"
LOST = "the candidate is gone, the stable is there, and not retired"
ABORT = "abort, and the stable is there"
ROLLBACK = "a verdict is Fail, onFailure is Rollback, the stable is there"
FAULTY = "the strategy cannot be followed"
EDIT = "the steps were edited"
FULL = "promote-full, the candidate is there, promotion is not under way"
HALT = "the stable is gone, and promotion is not under way"
FAIL = "a verdict is Fail, and onFailure is Pause or the stable is gone"
PASS = "promote, and a verdict is Fail"
RESUME = "promote"
SKIP = "promote, and the step's weight was set"
RESTART = "promote, and the candidate is there"
REFUSE = "any other action"
DONE = "the step is done: taken up, its time over, judged, no verdict Waiting"
FULLY = "after the last step, all routers have 100"

CASES = [
    move(BEGIN, S, None, {}, "Progressing", 0, 0, "StepRunning", "ReleaseStarted WeightSet"),
    move(BEGIN, OTHER_PAIR, at(S, LAST, "Promoted"), {}, "Progressing", 0, 0, "StepRunning",
         "ReleaseStarted WeightSet"),
    move(BEGIN, OTHER_PAIR, at(S, 1), {"action": "promote-full"}, "Progressing", 0, 0, "StepRunning",
         "ReleaseStarted ActionRefused WeightSet"),
    move(BEGIN, OTHER_PAIR, at(S, 1, handled="promote"), {"action": "promote"}, "Progressing", 0, 0,
         "StepRunning", "ReleaseStarted WeightSet"),
    move(BEGIN, INVALID, None, {}, "Progressing", 0, 0, "InvalidStrategy", "ReleaseStarted InvalidStrategy"),
    move(ANOTHER, S, at(S, 1), {"candidate": {"uid": "later"}}, "Progressing", 0, 0, "StepRunning",
         "ReleaseStarted WeightSet"),
    move(ANOTHER, S, at(S, 4, "Paused"), {"candidate": {"uid": "later", "ready": 0}}, "Progressing", 0, 0,
         "CapacityShort", "ReleaseStarted WeightSet CapacityShort"),
    move(ANOTHER, S, at(S, 0, "RolledBack", reason="CandidateMissing"), {}, "Progressing", 0, 0,
         "StepRunning", "ReleaseStarted WeightSet"),
    move(ANOTHER, S, at(S, 3, "RolledBack", reason="RolledBack"), {"candidate": {"uid": "later"}},
         "Progressing", 0, 0, "StepRunning", "ReleaseStarted WeightSet"),
    move(LOST, S, at(S, 3), NO_CANDIDATE, "RolledBack", 3, 0, "CandidateMissing",
         "CandidateMissing WeightSet"),
    move(LOST, S, at(S, LAST, "Promoted"), NO_CANDIDATE, "RolledBack", LAST, 0, "CandidateMissing",
         "CandidateMissing WeightSet"),
    move(LOST, S, at(S, LAST, "Promoted"), {"stable": {"ready": 0, "replicas": 0}, **NO_CANDIDATE},
         "RolledBack", LAST, 0, "CandidateMissing", "CandidateMissing WeightSet"),
    move(LOST, S, at(S, LAST, "Promoted"), {"stable": {"most": None, "ready": 0}, **NO_CANDIDATE},
         "RolledBack", LAST, 0, "CandidateMissing", "CandidateMissing WeightSet"),
    move(LOST, S, at(S, 3), {"stable": AT_REST, **NO_CANDIDATE}, "RolledBack", 3, 0, "CandidateMissing",
         "CandidateMissing WeightSet"),
    move(LOST, S, at(S, 3), {"action": "promote", **NO_CANDIDATE}, "RolledBack", 3, 0, "CandidateMissing",
         "CandidateMissing ActionRefused WeightSet"),
    move(LOST, S, at(S, 2), {"action": "abort", **NO_CANDIDATE}, "RolledBack", 2, 0, "CandidateMissing",
         "CandidateMissing WeightSet"),
    move(LOST, INVALID, at(INVALID, 0), NO_CANDIDATE, "RolledBack", 0, 0, "CandidateMissing",
         "CandidateMissing WeightSet"),
    move(ABORT, S, at(S, 2), {"action": "abort@1"}, "RolledBack", 2, 0, "RolledBack", "RolledBack WeightSet"),
    move(ABORT, INVALID, at(S, 4, "Paused"), {"action": "abort"}, "RolledBack", 4, 0, "RolledBack",
         "RolledBack WeightSet"),
    move(ABORT, S, at(S, 3), {"action": "abort", "stable": NOT_READY}, "RolledBack", 3, 50, "StableNotReady",
         "RolledBack StableNotReady"),
    move(ABORT, S, at(S, 3), {"action": "abort", "stable": NOT_READY, "candidate": {"ready": 0}},
         "RolledBack", 3, 0, "RolledBack", "RolledBack WeightSet"),
    move(ROLLBACK, S, failing(at(S, 3)), {"stable": NOT_READY}, "RolledBack", 3, 50, "StableNotReady",
         "RolledBack StableNotReady"),
    move(ROLLBACK, S, failing(at(S, 0)), {}, "RolledBack", 0, 0, "RolledBack", "RolledBack WeightSet"),
    move(ROLLBACK, S, failing(at(S, LAST)), {}, "RolledBack", LAST, 0, "RolledBack", "RolledBack WeightSet"),
    move(ROLLBACK, S, at(S, 4, "Paused"), {"verdicts": verdicts(S, "Pass", "Fail")}, "RolledBack", 4, 0,
         "RolledBack", "RolledBack WeightSet"),
    move(ROLLBACK, S, at(S, 2), {"verdicts": verdicts(S, "Fail"), "action": "promote"}, "RolledBack", 2, 0,
         "RolledBack", "RolledBack ActionRefused WeightSet"),
    move(FAULTY, INVALID, at(S, 2), {"action": "promote"}, "Progressing", 2, 10, "InvalidStrategy",
         "ActionPending InvalidStrategy"),
    move(FAULTY, INVALID, at(S, 2), {"action": "promot"}, "Progressing", 2, 10, "InvalidStrategy",
         "ActionRefused InvalidStrategy"),
    move(EDIT, EDITED, at(S, 2), {}, "Progressing", 1, 30, "StepRunning", "StepsEdited WeightSet"),
    move(EDIT, EDITED, at(S, 5), {}, "Progressing", 3, 100, "StepRunning", "StepsEdited WeightSet"),
    move(EDIT, strategy(steps=({"mirror": 5},), promotion="Manual"), at(S, 2), {}, "Paused", 1, 10,
         "AwaitingPromotion", "StepsEdited AwaitingPromotion"),
    move(EDIT, EDITED, at(MANUAL, LAST, "Paused", weight=50, reason="AwaitingPromotion"), {}, "Progressing",
         2, 60, "StepRunning", "StepsEdited WeightSet"),
    move(EDIT, EDITED, at(S, 2, "Paused", reason="Paused", held=True), {}, "Paused", 1, 10, "Paused",
         "StepsEdited"),
    move(EDIT, TIMED, at(S, 4, "Paused", reason="Paused"), {}, "Progressing", 3, 50, "StepRunning",
         "StepsEdited"),
    move(EDIT, EDITED, at(S, 4, "Paused", reason="Paused"), {}, "Progressing", 2, 60, "StepRunning",
         "StepsEdited WeightSet"),
    move(EDIT, PAUSING_TIMED, failing(at(PAUSING, 4, "Paused")), {}, "Paused", 3, 50, "AnalysisFailed",
         "StepsEdited AnalysisFailed"),
    move(FULL, S, at(S, 0), {"action": "promote-full"}, "Progressing", LAST, 100, "StepRunning",
         "StepSkipped WeightSet"),
    move(FULL, PAUSING, failing(at(PAUSING, 2, "Paused")), {"action": "promote-full"}, "Progressing", LAST,
         100, "StepRunning", "StepSkipped WeightSet"),
    move(FULL, S, at(S, 2), {"action": "promote-full", "candidate": {"ready": 9}}, "Progressing", LAST, 10,
         "CapacityShort", "StepSkipped CapacityShort"),
    move(FULL, S, at(S, 3, "RolledBack"), {"action": "promote-full"}, "Progressing", LAST,
         100, "StepRunning", "StepSkipped WeightSet"),
    move(FULL, S, at(S, 3), {"action": "promote-full", **NO_STABLE}, "Progressing", LAST, 100, "StepRunning",
         "StepSkipped WeightSet"),
    move(HALT, S, at(S, 3), NO_STABLE, "Progressing", 3, 50, "StableMissing", "StableMissing"),
    move(HALT, S, at(S, 0), NO_STABLE, "Progressing", 0, 0, "StableMissing", "WeightSet StableMissing"),
    move(HALT, S, at(S, 3), NO_STABLE | NO_CANDIDATE, "Progressing", 3, 50, "StableMissing", "StableMissing"),
    move(HALT, S, failing(at(S, 4, "Paused")), {"action": "abort", **NO_STABLE}, "Paused", 4, 50,
         "StableMissing", "ActionPending StableMissing"),
    move(FAIL, PAUSING, at(PAUSING, 3), {"verdicts": verdicts(S, "Fail")}, "Paused", 3, 50, "AnalysisFailed",
         "AnalysisFailed"),
    move(FAIL, S, failing(at(S, LAST, weight=50, target=50)), {"candidate": {"ready": 5}, **NO_STABLE},
         "Paused", LAST, 50, "StableMissing", "StableMissing"),
    move(FAIL, PAUSING, at(PAUSING, 3), {"verdicts": verdicts(S, "Fail"), "action": "promote"}, "Paused", 3,
         50, "AnalysisFailed", "ActionRefused AnalysisFailed"),
    move("pause", S, at(S, 2), {"action": "pause"}, "Paused", 2, 10, "Paused", "Paused"),
    move(RESUME, S, at(S, 2, "Paused"), {"action": "promote"}, "Progressing", 2, 10, "StepRunning",
         "Resumed"),
    move(RESUME, S, at(S, 4, "Paused"), {"action": "promote@7"}, "Progressing", 5, 75, "StepRunning",
         "Resumed WeightSet"),
    move(RESUME, MANUAL, at(MANUAL, LAST, "Paused"), {"action": "promote"}, "Progressing", LAST, 100,
         "StepRunning", "Resumed WeightSet"),
    move(PASS, PAUSING, failing(at(PAUSING, 1, "Paused")), {"action": "promote"}, "Progressing", 2, 10,
         "StepRunning", "Resumed"),
    move(PASS, PAUSING, failing(at(PAUSING, 2, "Paused")), {"action": "promote"}, "Progressing", 3, 50,
         "StepRunning", "Resumed WeightSet"),
    move(PASS, PAUSING, failing(at(PAUSING, 3, "Paused")), {"action": "promote"}, "Paused", 4, 50, "Paused",
         "Resumed Paused"),
    move(PASS, PAUSING, failing(at(PAUSING, 4, "Paused")), {"action": "promote"}, "Progressing", 5, 75,
         "StepRunning", "Resumed WeightSet"),
    move(PASS, PAUSING, failing(at(PAUSING, 3, "Paused", weight=10, target=10)),
         {"action": "promote", "candidate": {"ready": 4}}, "Progressing", 3, 10, "CapacityShort",
         "Resumed CapacityShort"),
    move(PASS, PAUSING, failing(at(PAUSING, LAST, "Paused")), {"action": "promote"}, "Progressing", LAST, 100,
         "StepRunning", "Resumed WeightSet"),
    move(PASS, PAUSING, at(PAUSING, 2, "Paused", held=True),
         {"action": "promote", "verdicts": verdicts(PAUSING, "Fail")}, "Progressing", 3, 50, "StepRunning",
         "Resumed WeightSet"),
    move(SKIP, S, at(S, 2), {"action": "promote"}, "Progressing", 3, 50, "StepRunning",
         "StepSkipped WeightSet"),
    move(SKIP, S, at(S, 3), {"action": "promote"}, "Paused", 4, 50, "Paused", "StepSkipped Paused"),
    move("promote, while the candidate has requests and the stable no ready pod", S,
         at(S, 3, "RolledBack", weight=50, reason="StableNotReady"),
         {"action": "promote", "stable": NOT_READY}, "RolledBack", 3, 50, "StableNotReady", "ActionPending"),
    move(RESTART, S, at(S, 3, "RolledBack", weight=50, reason="StableNotReady", pending="promote"),
         {"action": "promote"}, "Progressing", 0, 0, "StepRunning", "ReleaseStarted WeightSet"),
    move(RESTART, S, at(S, 3, "RolledBack", reason="RolledBack"), {"action": "promote"},
         "Progressing", 0, 0, "StepRunning", "ReleaseStarted WeightSet"),
    move(REFUSE, S, at(S, LAST, "Promoted", reason="Promoted"), {"action": "abort"}, "Promoted", LAST, 100,
         "Promoted", "ActionRefused"),
    move(REFUSE, S, at(S, 2), {"action": "@promote"}, "Progressing", 2, 10, "StepRunning", "ActionRefused"),
    move(REFUSE, S, at(S, 3, "RolledBack", reason="RolledBack"), {"action": "pause"}, "RolledBack", 3, 0,
         "RolledBack", "ActionRefused"),
    move(REFUSE, S, at(S, 4, "Paused", reason="Paused"), {"action": "pause"}, "Paused", 4, 50, "Paused",
         "ActionRefused"),
    move(REFUSE, S, at(S, LAST), {"action": "promote", "candidate": {"ready": 9}}, "Progressing", LAST, 90,
         "CapacityShort", "ActionRefused WeightSet CapacityShort"),
    move(REFUSE, S, at(S, 2), {"action": "promot"}, "Progressing", 2, 10, "StepRunning", "ActionRefused"),
    move(REFUSE, S, at(S, 3, weight=10, target=10, reason="CapacityShort"),
         {"action": "promote", "candidate": {"ready": 4}}, "Progressing", 3, 10, "CapacityShort",
         "ActionRefused"),
    move(REFUSE, S, at(S, 0, "RolledBack", reason="CandidateMissing"), {"action": "promote", **NO_CANDIDATE},
         "RolledBack", 0, 0, "CandidateMissing", "ActionRefused"),
    move(DONE, S, at(S, 0), {}, "Progressing", 1, 10, "StepRunning", "StepStarted WeightSet"),
    move(DONE, S, at(S, 1), {}, "Progressing", 2, 10, "StepRunning", "StepStarted"),
    move(DONE, S, at(S, 2, ago=600), {}, "Progressing", 3, 50, "StepRunning", "StepStarted WeightSet"),
    move(DONE, S, at(S, 2, ago=600), {"candidate": {"ready": 4}}, "Progressing", 3, 10, "CapacityShort",
         "StepStarted CapacityShort"),
    move(DONE, S, at(S, 3), {}, "Paused", 4, 50, "Paused", "StepStarted Paused"),
    move(DONE, S, at(S, 5), {}, "Progressing", LAST, 100, "StepRunning", "StepStarted WeightSet"),
    move(DONE, MANUAL, at(MANUAL, 5), {}, "Paused", LAST, 75, "AwaitingPromotion",
         "StepStarted AwaitingPromotion"),
    move(FULLY, S, at(S, LAST), {}, "Promoted", LAST, 100, "Promoted", "Promoted"),
    move(FULLY, S, at(S, LAST), NO_STABLE, "Promoted", LAST, 100, "Promoted", "Promoted"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "of", "release", "world", "then"), CASES)
def test_each_row_of_the_table_makes_its_move(
    row: str, of: Strategy, release: Release | None, world: dict[str, Any], then: tuple[Any, ...]
) -> None:
    """The row that fits first is the one named, and the move is what it says."""
    look = seen(release, **world)
    before = Look(strategy=of, release=release or machine._blank(look.now), seen=look)
    assert machine.row(machine._taken_in(before)).seen == row  # type: ignore[union-attr]
    made = machine.advance(of, release, look)
    state = made.release.state
    events = " ".join(event.reason for event in made.events)
    assert (state.phase, made.release.step, state.weight, state.reason, events) == then
    assert state.message
    assert ReleaseState.model_validate(state.document()) == state


def test_every_row_has_a_case() -> None:
    assert {row.seen for row in machine.MOVES} == {case.values[0] for case in CASES}


def waits(phase: str, reason: str, words: str, release: Release, world: dict[str, Any], *more: Any) -> Any:
    of = more[0] if more else S
    return pytest.param(of, release, world, phase, reason, words, id=f"{reason}-{words}")


STANDING = [
    waits("RolledBack", "RolledBack", "why", at(S, 3, "RolledBack", reason="RolledBack", message="why"), {}),
    waits("RolledBack", "StableNotReady", "aborted; old has no ready pod: new keeps 50% until it has one; "
          "its replicas are 0, and nothing scales it",
          at(S, 3, "RolledBack", weight=50, reason="RolledBack", message="aborted"),
          {"stable": {"ready": 0, "replicas": 0, "most": None}}),
    waits("RolledBack", "RolledBack", "aborted",
          at(S, 3, "RolledBack", weight=50, reason="StableNotReady",
             message="aborted; old has no ready pod: new keeps 50% until it has one"), {}),
    waits("Promoted", "Promoted", "why", at(S, LAST, "Promoted", reason="Promoted", message="why"), {}),
    waits("Progressing", "InvalidStrategy", "steps[1].mirror", at(S, 3), {}, INVALID),
    waits("Paused", "StableMissing", "no such ModelBackend: old", at(S, 4, "Paused"), NO_STABLE),
    waits("Paused", "AnalysisFailed", "errorRatio: numbers", failing(at(S, 3, "Paused")), {}, PAUSING),
    waits("Paused", "AwaitingPromotion", "new keeps 75% until a user", at(S, LAST, "Paused"), {}, MANUAL),
    waits("Paused", "Paused", "new has 30% instead of 50%", at(S, 4, "Paused"), {"candidate": {"ready": 3}}),
    waits("Progressing", "CapacityShort", "step 1 of 6 (mirror 20): expected a ready pod of new, found none",
          at(S, 0), {"candidate": {"ready": 0}}),
    waits("Progressing", "CapacityShort", "expected 5 ready pods of new for 50% (all requests take 10), "
          "found 3; it has 30% for now", at(S, 3), {"candidate": {"ready": 3}}),
    waits("Progressing", "CapacityShort", "it has 10% for now; its maxReplicas is 4",
          at(S, 3, weight=10, target=10), {"candidate": {"ready": 4, "most": 4}}),
    waits("Progressing", "CapacityShort", "its replicas are 2, and nothing scales it",
          at(S, 3, weight=10, target=10), {"candidate": {"ready": 2, "replicas": 2, "most": None}}),
    waits("Progressing", "StepRunning", "new gets 50% once all routers", at(S, 3), {"applied": None}),
    waits("Progressing", "StepRunning", "new gets 10% until 2026-01-31T12:08:00Z at least", at(S, 2), {}),
    waits("Progressing", "Analyzing", "since 2026-01-31T11:59:50Z are judged at 2026-01-31T12:00:20Z",
          at(S, 3, settled="2026-01-31T11:59:40Z", judged="2026-01-31T11:59:50Z"), {}),
    waits("Progressing", "InsufficientEvidence", "nothing was judged since 2026-01-31T11:58:50Z",
          at(S, 3, settled="2026-01-31T11:58:40Z", judged="2026-01-31T11:58:50Z"), {}),
    waits("Progressing", "InsufficientEvidence", "errorRatio: numbers", at(S, 3),
          {"verdicts": verdicts(S, "Waiting", "Pass")}),
    waits("Progressing", "InsufficientEvidence", "errorRatio: numbers", at(S, 2, ago=600),
          {"verdicts": verdicts(S, "Waiting", "Pass")}),
    waits("Progressing", "InsufficientEvidence", "latency p95: not judged yet", at(S, 3), {},
          strategy(metrics=({"name": "latency", "quantile": 0.95},))),
]  # fmt: skip


@pytest.mark.parametrize(("of", "release", "world", "phase", "reason", "words"), STANDING)
def test_a_release_says_what_it_waits_for(
    of: Strategy, release: Release, world: dict[str, Any], phase: str, reason: str, words: str
) -> None:
    """Each row of the second table, and the words; looked at again, nothing changes but what was taken up."""
    look = seen(release, **world)
    made = machine.advance(of, release, look)
    state = made.release.state
    assert (state.phase, state.reason) == (phase, reason)
    assert state.reason in standing.TRUTHS
    assert words in state.message
    taken = machine.advance(of, made.release, replace(look, verdicts=None))
    again = machine.advance(of, taken.release, replace(look, verdicts=None))
    assert (again, taken.events) == (taken, ())


def test_each_reason_has_a_row_and_a_truth() -> None:
    reasons = {reason for row in standing.STANDINGS for reason in row.reason.split(", ")}
    assert reasons == set(standing.TRUTHS)
    assert set(standing.WARNINGS) < set(standing.ANNOUNCED) < set(standing.TRUTHS)


@pytest.mark.parametrize(
    ("step", "metrics", "said", "done"),
    [
        pytest.param(
            0, ({"name": "errorRatio"}, {"name": "mismatch"}), ("Waiting", "Pass"), True, id="copies"
        ),
        pytest.param(0, ({"name": "mismatch"},), ("Waiting",), False, id="copies-compared"),
        pytest.param(
            3, ({"name": "errorRatio"}, {"name": "mismatch"}), ("Pass", "Waiting"), True, id="weight"
        ),
        pytest.param(3, ({"name": "latency"},), ("Waiting",), False, id="weight-latency"),
        pytest.param(3, (), ("Waiting",), True, id="no-metrics"),
    ],
)
def test_only_what_can_be_judged_at_a_weight_is_waited_for(
    step: int, metrics: tuple[dict[str, Any], ...], said: tuple[str, ...], done: bool
) -> None:
    """A metric for which a step brings no evidence does not hold it: copies in one, requests in another."""
    of = strategy(metrics=metrics)
    release = replace(at(of, step), verdicts=verdicts(of, *said))
    assert machine.advance(of, release, seen(release)).release.step == step + done


def test_a_step_to_all_requests_waits_for_thresholds_alone() -> None:
    """Beside a candidate with all requests there is no stable to hold it against."""
    full = ({"setWeight": 100}, {"pause": "1m"})
    for metric, step in (({"name": "errorRatio"}, 1), ({"name": "errorRatio", "threshold": 0.1}, 0)):
        of = strategy(steps=full, metrics=(metric,))
        release = replace(at(of, 0), verdicts=verdicts(of, "Waiting"))
        assert machine.advance(of, release, seen(release)).release.step == step


def test_a_step_ends_with_a_whole_interval_since_the_routers_took_it_up() -> None:
    """The interval begins when the routers have the weight; what began before does not count."""
    release = at(S, 3, ago=0, settled=None, judged=text(NOW))
    look = seen(release, now=NOW + timedelta(seconds=2))
    taken = machine.advance(S, release, look).release
    assert (taken.state.settled, taken.state.judged) == (text(look.now), text(look.now))
    early = replace(look, now=NOW + timedelta(seconds=31), verdicts=verdicts(S, "Pass"))
    judged = machine.advance(S, taken, early).release
    assert (judged.step, judged.state.reason) == (3, "Analyzing")
    whole = replace(early, now=NOW + timedelta(seconds=61))
    assert machine.advance(S, judged, whole).release.step == 4
    assert machine.advance(S, taken, replace(early, now=NOW + timedelta(seconds=32))).release.step == 4


def test_lost_pods_take_weight_at_once_and_bring_it_back() -> None:
    """Each change is an Event; what the step asks for is not forgotten, and no interval of before counts."""
    release = at(S, 3)
    short = machine.advance(S, release, seen(release, candidate={"ready": 2}))
    assert (short.release.state.weight, short.release.state.target) == (20, 50)
    assert [event.reason for event in short.events] == ["WeightSet", "CapacityShort"]
    back = machine.advance(S, short.release, seen(short.release))
    assert (back.release.state.weight, back.release.state.settled) == (50, None)
    assert [(event.reason, event.message) for event in back.events] == [("WeightSet", "new: 20% -> 50%")]
    taken = machine.advance(S, back.release, seen(back.release))
    assert (taken.release.step, taken.release.state.reason) == (3, "Analyzing")


def test_a_pause_that_somebody_asked_for_does_not_raise_a_weight() -> None:
    """A release that is paused while its step waits for pods stays at the weight before it."""
    release = at(S, 3, "Paused", weight=10, target=10)
    assert machine.advance(S, release, seen(release)).release.state.weight == 10


@pytest.mark.parametrize("phase", ["Promoted", "RolledBack"])
def test_the_end_without_requests_is_seen_once_all_routers_say_so(phase: str) -> None:
    """Not while one has another weight, or is silent; what comes later changes nothing any more."""
    loser = "stable" if phase == "Promoted" else "candidate"
    release = at(S, LAST if phase == "Promoted" else 0, phase)
    busy = machine.advance(S, release, seen(release, **{loser: {"answered": 1}})).release
    assert busy.state.idle_since is None
    for world in ({"applied": None}, {loser: {"answered": None}}):
        assert machine.advance(S, busy, seen(busy, **world)).release.state.idle_since is None
    idle = machine.advance(S, busy, seen(busy)).release
    assert idle.state.idle_since == text(NOW - capacity.IDLE)
    assert machine.advance(S, idle, seen(idle, **{loser: {"answered": 1}})).release == idle


def test_clocks_apart_lengthen_a_pause_and_never_shorten_it() -> None:
    """What began in the future begins now, the interval too, and the time for which pods are kept."""
    late = text(NOW + timedelta(hours=1))
    release = at(S, 2, ago=-3600, judged=late, settled=late)
    made = machine.advance(S, release, seen(release)).release
    assert (made.step, made.step_started) == (2, NOW)
    assert (made.state.judged, made.state.settled) == (text(NOW), text(NOW))
    over = at(S, LAST, "Promoted", reason="Promoted", idle_since=late)
    kept = machine.advance(S, over, seen(over)).release
    assert kept.state.idle_since == text(NOW)
    assert capacity.floors(S, kept, NOW + timedelta(seconds=29)) == {"old": 10, "new": 10}
    assert capacity.floors(S, kept, NOW + timedelta(seconds=30)) == {}


def test_an_action_is_carried_out_once() -> None:
    """The same value changes nothing any more; another does. What a release finds there is not for it."""
    release = at(S, 2)
    skipped = machine.advance(S, release, seen(release, action="promote@1")).release
    again = machine.advance(S, skipped, seen(skipped, action="promote@1"))
    assert (again.release.step, again.events) == (3, ())
    assert machine.advance(S, skipped, seen(skipped, action="promote@2")).release.step == 4
    begun = machine.advance(S, None, seen(action="promote-full")).release
    assert machine.advance(S, begun, seen(begun, action="promote-full")).release.step == 0


def test_without_a_stable_an_action_waits_until_it_is_back() -> None:
    """One Event says so; if it is withdrawn, or replaced, it does not come back."""
    release = at(S, 2)
    gone = {"action": "abort", **NO_STABLE}
    first = machine.advance(S, release, seen(release, **gone))
    waiting = first.release
    assert [event.message for event in first.events if event.reason == "ActionPending"] == [
        "abort: waits until there is a ModelBackend old again"
    ]
    assert (waiting.state.phase, waiting.state.pending) == ("Progressing", "abort")
    assert machine.advance(S, waiting, seen(waiting, **gone)).events == ()
    assert machine.advance(S, waiting, seen(waiting, action="abort")).release.state.phase == "RolledBack"
    withdrawn = machine.advance(S, waiting, seen(waiting, **NO_STABLE)).release
    assert withdrawn.state.pending is None
    assert machine.advance(S, withdrawn, seen(withdrawn)).release.state.phase == "Progressing"


def test_a_stable_without_a_ready_pod_gets_the_requests_back_when_it_has_one() -> None:
    """Not before, however few the candidate answers meanwhile; its pods are kept until then."""
    release = at(S, 3)
    waiting = machine.advance(S, release, seen(release, action="abort", stable=NOT_READY)).release
    quiet = seen(waiting, stable=NOT_READY, candidate={"answered": 0})
    held = machine.advance(S, waiting, quiet).release
    assert (held.state.weight, held.state.idle_since) == (50, None)
    assert capacity.floors(S, held, NOW + timedelta(hours=1)) == {"old": 10}
    back = machine.advance(S, held, seen(held, stable={"ready": 1}))
    assert (back.release.state.weight, back.release.state.reason) == (0, "RolledBack")
    assert back.release.state.message == "step 4 of 6 (setWeight 50): aborted; old gets all requests"
    assert [event.reason for event in back.events] == ["WeightSet"]
    lost = machine.advance(S, back.release, seen(back.release, stable=NOT_READY)).release
    assert lost.state.weight == 0


@pytest.mark.parametrize(
    ("ready", "words"), [(10, "requests"), (3, "requests with 3 ready pods of the 10 that all requests take")]
)
@pytest.mark.parametrize("world", [{"action": "abort"}, {"verdicts": verdicts(S, "Fail")}, NO_CANDIDATE])
def test_a_rollback_says_where_the_stable_has_few_pods(ready: int, words: str, world: dict[str, Any]) -> None:
    """It has all requests at once all the same: none stays with a version that failed."""
    release = at(S, 3)
    made = machine.advance(S, release, seen(release, stable={"ready": ready}, **world))
    assert made.release.state.weight == 0
    assert re.search(rf"; old gets all {words}(;|$)", made.release.state.message)
    assert made.release.state.message in [event.message for event in made.events]


def test_what_somebody_paused_stays_so_when_steps_are_edited_and_a_manual_pause_does_not() -> None:
    """Also after it went on in between."""
    for step, action, phase in ((2, "pause@1", "Paused"), (3, None, "Progressing")):
        release = at(S, step)
        paused = machine.advance(S, release, seen(release, action=action)).release
        assert paused.state.phase == "Paused"
        edited = machine.advance(TIMED, paused, seen(paused, action=action)).release
        assert edited.state.phase == phase
    release = at(S, 2, "Paused", held=True)
    going = machine.advance(S, release, seen(release, action="promote@2")).release
    assert (going.state.phase, going.state.held) == ("Progressing", False)


def test_a_candidate_whose_uid_was_not_known_is_not_another() -> None:
    """It is taken note of; so is that of a promoted one that was made anew after its stable had gone."""
    release = at(S, 2, candidate_uid="")
    assert machine.advance(S, release, seen(release)).release.state.candidate_uid == "uid-new"
    promoted = at(S, LAST, "Promoted", reason="Promoted")
    look = seen(promoted, candidate={"uid": "later"}, **NO_STABLE)
    made = machine.advance(S, promoted, look).release
    assert (made.state.phase, made.state.weight, made.state.candidate_uid) == ("Promoted", 100, "later")


def test_a_promoted_candidate_made_anew_keeps_its_requests_where_the_stable_was_retired() -> None:
    """Nobody else would answer them: while it is gone, and afterwards, also when the stable has pods."""
    promoted = at(S, LAST, "Promoted", reason="Promoted")
    gone = machine.advance(S, promoted, seen(promoted, stable=AT_REST, candidate=GONE))
    assert (gone.release.state.phase, gone.release.state.weight, gone.events) == ("Promoted", 100, ())
    look = seen(gone.release, stable=AT_REST, candidate={"uid": "later", "ready": 0})
    back = machine.advance(S, gone.release, look).release
    assert (back.state.phase, back.state.weight, back.state.candidate_uid) == ("Promoted", 100, "later")
    again = machine.advance(S, back, seen(back, candidate={"uid": "later"}))
    assert (again.release.state.phase, again.release.state.weight, again.events) == ("Promoted", 100, ())


def test_a_release_begun_again_keeps_the_pods_that_served_all_requests() -> None:
    """Where the candidate had requests, the stable has too few to be measured; else they are counted anew."""
    few = {"stable": {"ready": 2, "replicas": 2}, "candidate": {"uid": "later"}}
    promoted = at(S, LAST, "Promoted")
    assert machine.advance(S, promoted, seen(promoted, **few)).release.state.replicas == 10
    back = at(S, 3, "RolledBack")
    assert machine.advance(S, back, seen(back, **few)).release.state.replicas == 2


@pytest.mark.parametrize(
    ("release", "world", "again"),
    [
        (at(S, 3), {"applied": None}, machine.SOON),
        (at(S, 3, settled=None), {"applied": None}, machine.SOON),
        (at(S, 3, settled="2026-01-31T11:59:40Z", judged="2026-01-31T11:59:33Z"), {}, 3.0),
        (at(S, 2, ago=594), {}, 6.0),
        (at(S, 3), {}, machine.AT_ONCE),
        (at(S, LAST, "Promoted", reason="Promoted"), {}, machine.AGAIN),
        (at(S, 4, "Paused", reason="Paused"), {}, machine.AGAIN),
    ],
)
def test_the_next_look_is_when_something_is_due(
    release: Release, world: dict[str, Any], again: float
) -> None:
    assert machine.advance(S, release, seen(release, **world)).again == again


@pytest.mark.parametrize(
    ("members", "path", "text_of"),
    [
        ({}, "", ""),
        ({"steps": ({"setWeight": 50}, {"setWeight": 10}, {"setWeight": 0}, {"mirror": 5})}, "", ""),
        ({"steps": ({"mirror": 5}, {"setWeight": 10}, {"pause": "1m"}, {"mirror": 0})}, "", ""),
        ({"metrics": ({"name": "latency", "threshold": 5},)}, "", ""),
        (
            {"steps": ({"setWeight": 10}, {"mirror": 5}), "metrics": ()},
            "steps[1].mirror",
            "expected a candidate without requests of its own, found weight 10 by the steps before",
        ),
        (
            {"metrics": ({"name": "latency"}, {"name": "prometheus", "threshold": 1, "query": " "})},
            "analysis.metrics[1].query",
            "expected PromQL, found an empty text",
        ),
        (
            {"metrics": ({"name": "errorRatio", "threshold": 5},)},
            "analysis.metrics[0].threshold",
            "expected a share from 0 to 1, found 5",
        ),
        (
            {"steps": ({"mirror": 0}, {"setWeight": 10})},
            "analysis.metrics[1].name",
            "expected a step with mirror above 0 for mismatch, found none",
        ),
        (
            {"steps": ({"mirror": 5}, {"pause": "99999999999999h"})},
            "steps[1].pause",
            "expected 8760h at most, or Manual, found 99999999999999h",
        ),
    ],
)
def test_faults_say_what_was_expected_and_found_and_where(
    members: dict[str, Any], path: str, text_of: str
) -> None:
    assert machine.faults(strategy(**members)) == ((f"spec.strategy.{path}: {text_of}",) if path else ())


def test_the_world_is_read_in_any_time_zone() -> None:
    """Times are stored in UTC and whole seconds."""
    local = NOW.astimezone().replace(microsecond=7)
    begun = machine.advance(S, None, seen(now=local)).release
    assert (begun.state.started, begun.step_started) == (text(NOW), NOW)
    assert isinstance(seen(), Seen)


def test_a_pause_beyond_the_calendar_is_looked_at() -> None:
    """It is no step that can be followed, and nothing is thrown."""
    endless = strategy(steps=({"pause": "99999999999999h"}, {"setWeight": 10}), metrics=())
    looked = machine.advance(endless, at(endless, 0), seen()).release
    assert (looked.step, looked.state.reason) == (0, "InvalidStrategy")


@pytest.mark.parametrize(("edit", "step"), [({}, 3), ({"threshold": 1}, 2), ({"query": "down"}, 2)])
def test_what_was_said_of_another_query_ends_no_step(edit: dict[str, Any], step: int) -> None:
    """A Pass by a threshold or a query that was edited since is none."""
    query = {"name": "prometheus", "query": "up", "threshold": 5}
    before, after = strategy(metrics=(query,)), strategy(metrics=(query | edit,))
    passed = evidence.judge_value(before.analysis.metrics[0], "", 3.0, FIRST_BYTE_SECONDS)
    paused = replace(at(before, 2, ago=3600), verdicts=(passed,))
    looked = machine.advance(after, paused, seen(paused)).release
    assert (passed.verdict, looked.step) == ("Pass", step)
    if edit:
        assert (looked.state.reason, looked.state.message.partition(": ")[2]) == (
            "InsufficientEvidence",
            "prometheus: not judged yet",
        )
