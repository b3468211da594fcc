"""The table of transitions of a release. After a crash at any moment it continues from the stored state.

A look takes in the observations, makes at most one move (the first row of `MOVES` that fits), sets the weight
that the step and the candidate's pods allow, and sets the reason and message (`standing.STANDINGS`). A second
look at a waiting release, with nothing new, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from penstock_operator.api.strategy import Phase, ReleaseState, Strategy
from penstock_operator.releases import capacity, standing, steps
from penstock_operator.releases.look import OVER, Look, text
from penstock_operator.releases.state import Advance, Release, ReleaseEvent, Seen
from penstock_operator.releases.steps import faults as faults
from penstock_wire.words import cut

ACTIONS = ("promote", "promote-full", "abort", "pause")
"""Actions that the annotation can ask for."""

REFUSED = "ActionRefused"
"""Reason of the Event of an action that is not carried out."""

AGAIN = 10.0
"""Seconds between two looks while nothing is awaited."""
SOON = 1.0
"""Seconds until the next look while the routers are taking up a weight."""
AT_ONCE = 0.1
"""Seconds until the next look after a move."""

_UNDER_WAY: tuple[Phase, ...] = ("Progressing", "Paused")
_ANY: tuple[Phase, ...] = ("Progressing", "Paused", "Promoted", "RolledBack")

Made = tuple[Look, ReleaseEvent | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One row of the table: a transition and its condition.

    Args:
        phases: the phases in which it can happen.
        seen: its condition, in words.
        fits: its condition, in code; the first row that fits is made.
        becomes: phase and step afterwards, in words.
        weight: the candidate's weight afterwards, in words.
        event: reason of the Event; empty for none.
        make: the function that carries it out.
        serves: the actions that it carries out; any other action that it ends is refused.
    """

    phases: tuple[Phase, ...]
    seen: str
    fits: Callable[[Look], bool]
    becomes: str
    weight: str
    event: str
    make: Callable[[Look], Made]
    serves: tuple[str, ...] = ()


def advance(strategy: Strategy, release: Release | None, seen: Seen) -> Advance:
    """Compute the result of one look at a release.

    Args:
        strategy: the split's strategy.
        release: as stored in the split's status; None before the first look.
        seen: the observations.
    """
    seen = replace(seen, now=seen.now.astimezone(UTC).replace(microsecond=0))
    before = release or _blank(seen.now)
    look = _taken_in(Look(strategy=strategy, release=before, seen=seen))
    events: list[ReleaseEvent] = []
    move = row(look)
    if move is not None:
        asked, (look, event) = look, move.make(look)
        events += [event] if event else []
        events += _unserved(asked, move, look, event)
    look = standing.conclude(standing.say(standing.weigh(look)))
    events += _announced(before.state, look.release.state)
    return Advance(release=look.release, events=tuple(events), again=_again(look, moved=bool(events)))


def row(look: Look) -> Move | None:
    """Return the first row of the table that fits, if any.

    Args:
        look: the look, with its observations taken in.
    """
    return next((each for each in MOVES if _phase(look) in each.phases and each.fits(look)), None)


def _phase(look: Look) -> Phase:
    return look.release.state.phase


def _blank(now: datetime) -> Release:
    """Make a placeholder for an absent release: its pair is empty."""
    state = ReleaseState(stable="", candidate="", phase="Progressing", weight=0)
    return Release(state=state, step=0, step_started=now)


def _unserved(asked: Look, move: Move, made: Look, event: ReleaseEvent | None) -> list[ReleaseEvent]:
    """Return the Event of an action that a move has ended without carrying it out."""
    ended = asked.asked and made.release.state.handled == asked.seen.action
    if not ended or asked.action in move.serves or (event is not None and event.reason == REFUSED):
        return []
    instead = event.message if event is not None else standing.failures(made)
    return [_event(REFUSED, f"{asked.action}: not carried out; {instead}", warning=True)]


def _taken_in(look: Look) -> Look:
    """Take in the observations that need no move: verdicts, the weight that routers have taken up, pods."""
    release, seen, now = look.release, look.seen, text(look.seen.now)
    state = release.state
    started = min(release.step_started, seen.now)
    members: dict[str, Any] = {
        name: min(value, now)
        for name in ("settled", "judged", "idle_since")
        if (value := getattr(state, name)) is not None
    }
    verdicts = release.verdicts
    if state.pending is not None and (state.pending != seen.action or not look.asked):
        members["pending"] = None
    if state.phase not in OVER:
        if seen.verdicts is not None:
            members["judged"] = now
            # The failed verdict that paused a release stays until a user promotes it.
            verdicts = verdicts if state.phase == "Paused" and look.failed else seen.verdicts
        if state.settled is None and seen.applied == state.weight:
            members["settled"] = now
            if (members.get("judged") or "") <= text(started):
                members["judged"] = now
        members["replicas"] = capacity.whole(seen.stable, seen.candidate, state.weight, state.replicas)
    elif state.idle_since is None:
        loser = seen.stable if state.phase == "Promoted" else seen.candidate
        lost = state.weight == (100 if state.phase == "Promoted" else 0)
        idle = lost and seen.applied == state.weight and loser.answered == 0
        # NB: `answered` covers the last `IDLE`, so a backend with 0 has been idle that long already.
        members["idle_since"] = text(seen.now - capacity.IDLE) if idle or not loser.exists else None
    without_stable = state.phase == "Promoted" and look.stable_stays_away
    if seen.candidate.exists and (without_stable or not state.candidate_uid):
        members["candidate_uid"] = seen.candidate.uid
    return replace(look, release=replace(release, step_started=started, verdicts=verdicts)).with_state(
        **members
    )


def _announced(before: ReleaseState, after: ReleaseState) -> list[ReleaseEvent]:
    """Return the Events of a weight that was set, and of a reason that a release begins to wait for."""
    events = []
    same = before.candidate == after.candidate
    weight, mirror = (before.weight, before.mirror) if same else (0, 0)
    notes = [f"{weight}% -> {after.weight}%"] if weight != after.weight else []
    notes += [f"copies {mirror}% -> {after.mirror}%"] if mirror != after.mirror else []
    if notes:
        events.append(ReleaseEvent(reason="WeightSet", message=f"{after.candidate}: {', '.join(notes)}"))
    if before.reason != after.reason and after.reason in standing.ANNOUNCED:
        events.append(
            ReleaseEvent(
                reason=after.reason, message=after.message, warning=after.reason in standing.WARNINGS
            )
        )
    return events


def _again(look: Look, *, moved: bool) -> float:
    state, now = look.release.state, look.seen.now
    if moved:
        return AT_ONCE
    if look.seen.applied != state.weight or (state.phase not in OVER and state.settled is None):
        return SOON
    ends = [look.due, look.next_judgement] if state.phase not in OVER else []
    waits = [(end - now).total_seconds() for end in ends if end is not None and end > now]
    return min([AGAIN, *waits])


# Conditions.


def _begins(look: Look) -> bool:
    state = look.release.state
    return (state.stable, state.candidate) != (look.strategy.stable, look.strategy.candidate)


def _is_another(look: Look) -> bool:
    state, candidate = look.release.state, look.seen.candidate
    if look.stable_stays_away or not candidate.exists:
        return False
    return state.reason == "CandidateMissing" or candidate.uid != (state.candidate_uid or candidate.uid)


def _edited(look: Look) -> bool:
    return look.release.state.steps != steps.fingerprint(look.strategy)


def _done(look: Look) -> bool:
    """Whether a step is over: taken up by the routers, judged, and with no verdict Waiting."""
    if look.release.step >= look.last or not look.settled or not look.enough or look.missing:
        return False
    return look.judged if look.due is None else look.seen.now >= look.due


# Moves.


def _event(reason: str, message: str, *, warning: bool = False) -> ReleaseEvent:
    return ReleaseEvent(reason=reason, message=message, warning=warning)


def _begin(look: Look) -> Made:
    """Begin a release at its first step."""
    old, seen, strategy = look.release.state, look.seen, look.strategy
    same = not _begins(look)
    pods = capacity.size(seen.stable)
    state = ReleaseState(
        stable=strategy.stable,
        candidate=strategy.candidate,
        phase="Progressing",
        weight=0,
        # A stable that had lost part of its requests has too few pods for all of them.
        replicas=max(pods, old.replicas) if same and old.weight else pods,
        steps=steps.fingerprint(strategy),
        started=text(seen.now),
        candidate_uid=seen.candidate.uid,
        handled=seen.action or old.handled,
    )
    begun = replace(look, release=Release(state=state, step=0, step_started=seen.now))
    note = f"{strategy.candidate} is to take over from {strategy.stable} in {look.last} steps"
    return _enter(begun, 0), _event("ReleaseStarted", note)


def _enter(look: Look, step: int, **members: Any) -> Look:
    """Go to a step; in a step that waits for a user the release is Paused."""
    phase = "Paused" if steps.is_manual(look.strategy, step) else "Progressing"
    release = replace(look.release, step=step, step_started=look.seen.now)
    return replace(look, release=release).with_state(**{"phase": phase, "held": False} | members)


def _next(look: Look) -> Made:
    entered = _enter(look, look.release.step + 1)
    return entered, _event("StepStarted", f"{look.step_words} is done; {entered.step_words} begins")


def _edit(look: Look) -> Made:
    """Continue by the new steps from the current weight; a pause by a user or a verdict stays."""
    state = look.release.state
    step = steps.resumed_at(look.strategy, state.weight)
    held = state.phase == "Paused" and (state.held or bool(look.failed))
    members: dict[str, Any] = {"target": state.weight, "steps": steps.fingerprint(look.strategy)}
    entered = _enter(look, step, **members | ({"phase": "Paused", "held": True} if held else {}))
    note = f"the steps were edited; from {state.weight}% it goes on at {entered.step_words}"
    return entered, _event("StepsEdited", note)


def _roll_back(look: Look, reason: str, message: str) -> Made:
    handled = look.seen.action or look.release.state.handled
    back = look.with_state(
        phase="RolledBack",
        ended=text(look.seen.now),
        target=0,
        reason=reason,
        message=cut(message, 1024),
        handled=handled,
        pending=None,
        held=False,
        idle_since=None,
    )
    return back, _event(reason, message, warning=True)


def _given_back(look: Look) -> str:
    """Say in words that the stable gets the requests, and with how many pods if it has too few."""
    ready, replicas = look.seen.stable.ready, look.release.state.replicas
    few = f" with {ready} ready pods of the {replicas} that all requests take" if 0 < ready < replicas else ""
    return f"{look.strategy.stable} gets all requests{few}"


def _fail(look: Look) -> Made:
    words = f"{look.step_words}: {standing.failures(look)}; {_given_back(look)}"
    return _roll_back(look, "RolledBack", words)


def _abort(look: Look) -> Made:
    return _roll_back(look, "RolledBack", f"{look.step_words}: aborted; {_given_back(look)}")


def _lose_candidate(look: Look) -> Made:
    return _roll_back(
        look,
        "CandidateMissing",
        f"no such ModelBackend: {look.strategy.candidate}; {_given_back(look)}; "
        "once it is back, the release begins from its first step",
    )


def _pause(look: Look) -> Made:
    paused = _handled(look).with_state(phase="Paused", held=True)
    return paused, None


def _resume(look: Look) -> Made:
    """Continue the step that a user had paused, or go to the step after a Manual pause."""
    going = _handled(look)
    if look.release.step < look.last and steps.is_manual(look.strategy, look.release.step):
        entered = _enter(going, look.release.step + 1)
    else:
        entered = going.with_state(phase="Progressing", held=False)
    return entered, _event("Resumed", f"promoted; {entered.step_words} goes on")


def _pass_failure(look: Look) -> Made:
    """Go past the step whose analysis failed; if a step's weight is not set yet, go to that step."""
    past = look.granted and look.release.step < look.last
    going = _handled(_judged_anew(look))
    if past:
        entered = _enter(going, look.release.step + 1)
        words = f"past {look.step_words}; {entered.step_words} begins"
    else:
        entered = going.with_state(phase="Progressing", held=False)
        words = f"{entered.step_words} goes on"
    note = f"promoted although its analysis failed: {words}, and is judged by the requests from now on"
    return entered, _event("Resumed", note)


def _judged_anew(look: Look) -> Look:
    """Return the look without evidence: an interval begins as if the routers had just got the weight.

    NB: to drop the verdicts alone is not enough. The current interval contains earlier requests, which would
    count against the candidate a second time.
    """
    fresh = replace(look, release=replace(look.release, verdicts=()))
    return fresh.with_state(settled=None, judged=None)


def _skip(look: Look) -> Made:
    entered = _enter(_handled(look), look.release.step + 1)
    return entered, _event("StepSkipped", f"promoted; {look.step_words} is skipped")


def _promote_full(look: Look) -> Made:
    """Give the candidate all requests at once; after a rollback, begin a new release for it."""
    if _phase(look) == "RolledBack":
        look, _ = _begin(look)
    going = _judged_anew(look) if look.failed else look
    entered = _enter(_handled(going), look.last, phase="Progressing")
    return entered, _event("StepSkipped", "promoted in full; all steps that were left are skipped")


def _promoted(look: Look) -> Made:
    state = look.release.state
    note = f"{state.candidate} has all requests; {state.stable} keeps its pods while it answers any"
    over = look.with_state(
        phase="Promoted", ended=text(look.seen.now), reason="Promoted", message=note, idle_since=None
    )
    return over, _event("Promoted", note)


def _handled(look: Look) -> Look:
    """Note that the action was carried out or refused: the same value is not looked at again."""
    return look.with_state(handled=look.seen.action or look.release.state.handled, pending=None)


def _wait(look: Look) -> Made:
    """Keep an action pending until it can be carried out, with one Event for it."""
    if not look.asked or look.release.state.pending == look.seen.action:
        return look, None
    if look.action not in ACTIONS:
        return _refuse(look)
    if look.stable_waits:
        until = f"{look.release.state.stable} has a ready pod"
    elif steps.faults(look.strategy):
        until = "the strategy can be followed"
    else:
        until = f"there is a ModelBackend {look.release.state.stable} again"
    waiting = look.with_state(pending=look.seen.action)
    return waiting, _event("ActionPending", f"{look.action}: waits until {until}", warning=True)


def _refuse(look: Look) -> Made:
    return _handled(look), _event(REFUSED, _refusal(look), warning=True)


def _refusal(look: Look) -> str:
    action, state = look.action, look.release.state
    if action not in ACTIONS:
        return f"penstock.dev/release: expected one of {', '.join(ACTIONS)}, found {action!r}"
    if state.phase == "Progressing":
        if look.promoting:
            return f"{action}: promotion is under way"
        return f"{action}: {state.message}"
    if state.phase == "Paused":
        return f"{action}: the release is paused already"
    if state.phase == "RolledBack" and not look.seen.candidate.exists:
        return f"{action}: no such ModelBackend: {state.candidate}"
    return f"{action}: expected a release that is under way, found phase {state.phase}"


def _asked(*actions: str) -> Callable[[Look], bool]:
    return lambda look: look.action in actions


MOVES: tuple[Move, ...] = (
    Move(
        phases=_ANY,
        seen="there is no release yet, or it is of another pair",
        fits=_begins,
        becomes="Progressing, first step",
        weight="0",
        event="ReleaseStarted",
        make=_begin,
    ),
    Move(
        phases=_ANY,
        seen="the candidate is another one by its uid, or is back; the stable is there, and not retired",
        fits=_is_another,
        becomes="Progressing, first step",
        weight="0",
        event="ReleaseStarted",
        make=_begin,
    ),
    Move(
        phases=("Progressing", "Paused", "Promoted"),
        seen="the candidate is gone, the stable is there, and not retired",
        fits=lambda look: not look.seen.candidate.exists and not look.stable_stays_away,
        becomes="RolledBack",
        weight="0",
        event="CandidateMissing",
        make=_lose_candidate,
        serves=("abort",),
    ),
    Move(
        phases=_UNDER_WAY,
        seen="abort, and the stable is there",
        fits=lambda look: look.action == "abort" and look.seen.stable.exists,
        becomes="RolledBack",
        weight="0 once the stable has a ready pod",
        event="RolledBack",
        make=_abort,
        serves=("abort",),
    ),
    Move(
        phases=_UNDER_WAY,
        seen="a verdict is Fail, onFailure is Rollback, the stable is there",
        fits=lambda look: (
            bool(look.failed) and look.strategy.on_failure == "Rollback" and look.seen.stable.exists
        ),
        becomes="RolledBack",
        weight="0 once the stable has a ready pod",
        event="RolledBack",
        make=_fail,
    ),
    Move(
        phases=_UNDER_WAY,
        seen="the strategy cannot be followed",
        fits=lambda look: bool(steps.faults(look.strategy)),
        becomes="stays; actions wait",
        weight="stays, within capacity",
        event="ActionPending",
        make=_wait,
    ),
    Move(
        phases=_UNDER_WAY,
        seen="the steps were edited",
        fits=_edited,
        becomes="the first step with at least the weight that it has, else after the last",
        weight="stays",
        event="StepsEdited",
        make=_edit,
    ),
    Move(
        phases=("Progressing", "Paused", "RolledBack"),
        seen="promote-full, the candidate is there, promotion is not under way",
        fits=lambda look: look.action == "promote-full" and look.seen.candidate.exists and not look.promoting,
        becomes="Progressing, after the last step",
        weight="100 once capacity allows it",
        event="StepSkipped",
        make=_promote_full,
        serves=("promote-full",),
    ),
    Move(
        phases=_UNDER_WAY,
        seen="the stable is gone, and promotion is not under way",
        fits=lambda look: not look.seen.stable.exists and not look.promoting,
        becomes="stays; actions wait",
        weight="stays",
        event="ActionPending",
        make=_wait,
    ),
    Move(
        phases=("Progressing",),
        seen="a verdict is Fail, and onFailure is Pause or the stable is gone",
        fits=lambda look: bool(look.failed),
        becomes="Paused",
        weight="stays",
        event="",
        make=_pause,
        serves=("pause",),
    ),
    Move(
        phases=("Progressing",),
        seen="pause",
        fits=_asked("pause"),
        becomes="Paused",
        weight="stays",
        event="",
        make=_pause,
        serves=("pause",),
    ),
    Move(
        phases=("Paused",),
        seen="promote, and a verdict is Fail",
        fits=lambda look: look.action == "promote" and bool(look.failed),
        becomes="Progressing: the next step, or the same where its weight was not set yet; judged again",
        weight="the step's, once capacity allows it",
        event="Resumed",
        make=_pass_failure,
        serves=("promote",),
    ),
    Move(
        phases=("Paused",),
        seen="promote",
        fits=_asked("promote"),
        becomes="Progressing: the next step after a Manual pause, else the same",
        weight="the step's, once capacity allows it",
        event="Resumed",
        make=_resume,
        serves=("promote",),
    ),
    Move(
        phases=("Progressing",),
        seen="promote, and the step's weight was set",
        fits=lambda look: look.action == "promote" and look.granted and not look.promoting,
        becomes="the next step",
        weight="the step's, once capacity allows it",
        event="StepSkipped",
        make=_skip,
        serves=("promote",),
    ),
    Move(
        phases=("RolledBack",),
        seen="promote, while the candidate has requests and the stable no ready pod",
        fits=lambda look: look.action == "promote" and look.stable_waits,
        becomes="stays; promote waits",
        weight="stays",
        event="ActionPending",
        make=_wait,
    ),
    Move(
        phases=("RolledBack",),
        seen="promote, and the candidate is there",
        fits=lambda look: look.action == "promote" and look.seen.candidate.exists,
        becomes="Progressing, first step",
        weight="0",
        event="ReleaseStarted",
        make=_begin,
        serves=("promote",),
    ),
    Move(
        phases=_ANY,
        seen="any other action",
        fits=lambda look: look.asked,
        becomes="stays",
        weight="stays",
        event=REFUSED,
        make=_refuse,
    ),
    Move(
        phases=("Progressing",),
        seen="the step is done: taken up, its time over, judged, no verdict Waiting",
        fits=_done,
        becomes="the next step; Paused at a Manual pause, and after the last with promotion Manual",
        weight="the step's, once capacity allows it",
        event="StepStarted",
        make=_next,
    ),
    Move(
        phases=("Progressing",),
        seen="after the last step, all routers have 100",
        fits=lambda look: look.promoting and look.settled and look.enough,
        becomes="Promoted",
        weight="100",
        event="Promoted",
        make=_promoted,
    ),
)
"""All moves, in order: each look makes the first that fits."""
