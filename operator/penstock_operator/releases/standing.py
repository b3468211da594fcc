"""Computes the weight and the mirror of a release, and its reason and message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from penstock_operator.releases import capacity, steps
from penstock_operator.releases.evidence import MOST_MESSAGE
from penstock_operator.releases.look import OVER, Look, text
from penstock_wire.words import cut

Truth = Literal["True", "False", "Unknown"]

TRUTHS: dict[str, Truth] = {
    "StepRunning": "True",
    "Analyzing": "True",
    "InsufficientEvidence": "True",
    "CapacityShort": "True",
    "Promoted": "True",
    "Paused": "Unknown",
    "AwaitingPromotion": "Unknown",
    "AnalysisFailed": "Unknown",
    "RolledBack": "False",
    "CandidateMissing": "False",
    "StableMissing": "False",
    "StableNotReady": "False",
    "InvalidStrategy": "False",
}
"""The status of the condition Progressing, by its reason."""

ANNOUNCED = (
    "InsufficientEvidence",
    "CapacityShort",
    "Paused",
    "AwaitingPromotion",
    "AnalysisFailed",
    "StableMissing",
    "StableNotReady",
    "InvalidStrategy",
)
"""Reasons for which a release waits; each is an Event when it begins."""

WARNINGS = ("CapacityShort", "AnalysisFailed", "StableMissing", "StableNotReady", "InvalidStrategy")
"""Reasons in ANNOUNCED with an Event of type Warning."""

UNDECIDED = "not decided when the release ended"
"""Beginning of the message of a metric that was still Waiting when the release ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One row of the table: a condition, and the reason and message that follow from it.

    Args:
        phase: the phase in words.
        seen: the rest of the condition, in words.
        fits: phase and condition in code; the first row that fits holds.
        weight: the candidate's percent, in words; `weigh` is the code.
        message: makes its message; None if a move has set both already.
    """

    phase: str
    seen: str
    fits: Callable[[Look], bool]
    weight: str
    reason: str
    message: Callable[[Look], str] | None = None


def _paused(look: Look) -> bool:
    return look.release.state.phase == "Paused"


def _stable_missing(look: Look) -> bool:
    return not look.seen.stable.exists and not look.promoting


def _capacity(look: Look) -> bool:
    """Whether the candidate's pods are too few for the step."""
    state = look.release.state
    if not look.granted:
        return True  # it would have been set
    copied = steps.mirror(look.strategy, look.release.step)
    return state.weight < state.target or state.mirror < copied


def _capacity_words(look: Look) -> str:
    state, candidate = look.release.state, look.seen.candidate
    wanted, name = look.wanted, state.candidate
    if wanted == 0:
        return f"{look.step_words}: expected a ready pod of {name}, found none{_scaling(look, 1)}"
    pods = capacity.needed(wanted, state.replicas)
    served = f"all requests take {state.replicas}"
    now = f"it has {state.weight}% for now"
    expected = f"expected {pods} ready pods of {name} for {wanted}% ({served}), found {candidate.ready}"
    return f"{look.step_words}: {expected}; {now}{_scaling(look, pods)}"


def _scaling(look: Look, pods: int) -> str:
    """Name the setting that a user has to change before there can be so many pods."""
    candidate = look.seen.candidate
    if candidate.most is not None and candidate.most < pods:
        return f"; its maxReplicas is {candidate.most}"
    if candidate.most is None and candidate.replicas < pods:
        return f"; its replicas are {candidate.replicas}, and nothing scales it"
    return ""


def _held(look: Look) -> str:
    """Words for the weight that a release holds, also if pods were lost."""
    state = look.release.state
    if state.weight == state.target:
        return f"{state.candidate} keeps {state.weight}%"
    return f"{state.candidate} has {state.weight}% instead of {state.target}%, for want of ready pods"


def _manual_words(look: Look) -> str:
    return f"{look.step_words}: {_held(look)} until a user promotes or aborts the release"


def _failed_words(look: Look) -> str:
    return f"{failures(look)}; {_manual_words(look)}"


def failures(look: Look) -> str:
    """The failed verdicts in words."""
    return "; ".join(f"{each.metric}: {each.message}" for each in look.failed)


def _running_words(look: Look) -> str:
    state = look.release.state
    copies = f", and copies of {state.mirror}%" if state.mirror else ""
    asked = f"{look.step_words}: {state.candidate} gets {state.weight}%{copies}"
    if look.seen.applied != state.weight or state.settled is None:
        return f"{asked} once all routers have taken it up"
    return asked if look.due is None else f"{asked} until {text(look.due)} at least"


def _analyzing_words(look: Look) -> str:
    begun, end = look.release.state.judged, look.next_judgement
    if end is None or begun is None:
        return f"{look.step_words}: waits for the first interval"
    return f"{look.step_words}: the requests since {begun} are judged at {text(end)}"


def _missing_words(look: Look) -> str:
    if look.overdue:
        return f"{look.step_words}: nothing was judged since {look.release.state.judged}"
    return f"{look.step_words}: {'; '.join(look.missing)}"


def _waited(look: Look) -> str:
    """The end of a rollback's message while the stable has no ready pod."""
    return f"; {look.release.state.stable} has no ready pod"


def _unready_words(look: Look) -> str:
    state, stable = look.release.state, look.seen.stable
    if stable.most is None and stable.replicas == 0:
        why = "; its replicas are 0, and nothing scales it"
    else:
        why = ""
    kept = f": {state.candidate} keeps {state.weight}% until it has one{why}"
    reason = state.message.partition(_waited(look))[0]
    return f"{reason[: 1024 - len(kept) - 100]}{_waited(look)}{kept}"


STANDINGS: tuple[Standing, ...] = (
    Standing(
        phase="RolledBack",
        seen="the candidate has requests, and the stable no ready pod",
        fits=lambda look: look.stable_waits,
        weight="stays",
        reason="StableNotReady",
        message=_unready_words,
    ),
    Standing(
        phase="RolledBack",
        seen="the stable has a ready pod again, or the candidate none",
        fits=lambda look: (
            look.release.state.phase == "RolledBack" and look.release.state.reason == "StableNotReady"
        ),
        weight="0",
        reason="RolledBack",
        message=lambda look: look.release.state.message.partition(_waited(look))[0],
    ),
    Standing(
        phase="RolledBack",
        seen="",
        fits=lambda look: look.release.state.phase == "RolledBack",
        weight="0",
        reason="RolledBack, CandidateMissing",
    ),
    Standing(
        phase="Promoted",
        seen="",
        fits=lambda look: look.release.state.phase == "Promoted",
        weight="100",
        reason="Promoted",
    ),
    Standing(
        phase="Progressing, Paused",
        seen="the strategy cannot be followed",
        fits=lambda look: bool(steps.faults(look.strategy)),
        weight="stays, within capacity",
        reason="InvalidStrategy",
        message=lambda look: "; ".join(steps.faults(look.strategy)),
    ),
    Standing(
        phase="Progressing, Paused",
        seen="the stable is gone, and promotion is not under way",
        fits=_stable_missing,
        weight="stays",
        reason="StableMissing",
        message=lambda look: (
            f"no such ModelBackend: {look.release.state.stable}; the weights stay as they are "
            "until it is back, or promote-full gives all requests to the candidate"
        ),
    ),
    Standing(
        phase="Paused",
        seen="a verdict is Fail",
        fits=lambda look: _paused(look) and bool(look.failed),
        weight="stays, within capacity",
        reason="AnalysisFailed",
        message=_failed_words,
    ),
    Standing(
        phase="Paused",
        seen="after the last step",
        fits=lambda look: _paused(look) and look.release.step >= look.last,
        weight="stays, within capacity",
        reason="AwaitingPromotion",
        message=_manual_words,
    ),
    Standing(
        phase="Paused",
        seen="",
        fits=_paused,
        weight="stays, within capacity",
        reason="Paused",
        message=_manual_words,
    ),
    Standing(
        phase="Progressing",
        seen="the candidate has too few ready pods for the step",
        fits=_capacity,
        weight="the last step's, within capacity",
        reason="CapacityShort",
        message=_capacity_words,
    ),
    Standing(
        phase="Progressing",
        seen="a ready router has not taken it up, or a pause is not over",
        fits=lambda look: not look.settled or (look.due is not None and look.seen.now < look.due),
        weight="the step's",
        reason="StepRunning",
        message=_running_words,
    ),
    Standing(
        phase="Progressing",
        seen="no whole interval at this weight was judged",
        fits=lambda look: not (look.judged or look.overdue or look.promoting) and look.due is None,
        weight="the step's",
        reason="Analyzing",
        message=_analyzing_words,
    ),
    Standing(
        phase="Progressing",
        seen="a verdict is Waiting, or none has come for two intervals",
        fits=lambda look: not look.promoting and bool(look.missing or (look.due is None and not look.judged)),
        weight="the step's",
        reason="InsufficientEvidence",
        message=_missing_words,
    ),
    Standing(
        phase="Progressing",
        seen="the step is done",
        fits=lambda _: True,
        weight="the step's",
        reason="StepRunning",
        message=_running_words,
    ),
)


def weigh(look: Look) -> Look:
    """Set the step's weight if the candidate's pods allow it, and never more than they allow.

    A weight that fell with the pods comes back with them; that of the next step is set only as a whole. If
    the stable is gone, the candidate keeps its weight: no other backend can take the requests, and no answers
    are left to compare with. It also keeps it after a rollback while the stable has no ready pod. A step that
    waited for pods begins when its weight is set.
    """
    state, seen = look.release.state, look.seen
    target, weight, copies = state.target, state.weight, state.mirror
    if look.stable_waits:
        target, copies = 0, 0
    elif state.phase in OVER:
        target = weight = 100 if state.phase == "Promoted" else 0
        copies = 0
    elif _stable_missing(look):
        copies = 0
    else:
        free = state.phase == "Progressing" and not steps.faults(look.strategy)
        target = look.wanted if free and look.allowed >= look.wanted else target
        weight = max(min(target, look.allowed), 0 if seen.stable.exists else weight)
        copies = steps.mirror(look.strategy, look.release.step) if seen.candidate.ready else 0
    changed = (weight, copies) != (state.weight, state.mirror)
    if (target != state.target or copies > state.mirror) and look.due is None:
        look = replace(look, release=replace(look.release, step_started=seen.now))
    return look.with_state(
        target=target, weight=weight, mirror=copies, settled=None if changed else state.settled
    )


def rest(look: Look) -> Look:
    """Keep a release in place while its split is not its endpoint's, or has no endpoint.

    Its weight still falls with the candidate's pods, since it applies as soon as the split is accepted again.
    """
    state, seen = look.release.state, look.seen
    another = (state.stable, state.candidate) != (look.strategy.stable, look.strategy.candidate)
    if another or state.phase in OVER or not seen.stable.exists:
        return look
    weight, copies = min(state.weight, look.allowed), state.mirror if seen.candidate.ready else 0
    changed = (weight, copies) != (state.weight, state.mirror)
    return look.with_state(weight=weight, mirror=copies, settled=None if changed else state.settled)


def say(look: Look) -> Look:
    """Give the release the reason and the message of the first row that fits."""
    row = next(each for each in STANDINGS if each.fits(look))
    if row.message is None:
        return look
    return look.with_state(reason=row.reason, message=cut(row.message(look), 1024))


def conclude(look: Look) -> Look:
    """Turn verdicts that are still Waiting when the release is over into Inconclusive."""
    release = look.release
    if release.state.phase not in OVER or all(each.verdict != "Waiting" for each in release.verdicts):
        return look
    verdicts = tuple(
        each.model_copy(
            update={"verdict": "Inconclusive", "message": cut(f"{UNDECIDED}: {each.message}", MOST_MESSAGE)}
        )
        if each.verdict == "Waiting"
        else each
        for each in release.verdicts
    )
    return replace(look, release=replace(release, verdicts=verdicts))
