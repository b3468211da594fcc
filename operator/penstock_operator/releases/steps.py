"""The targets of a strategy's steps, and the faults for which a stored strategy cannot be followed."""

from __future__ import annotations

import hashlib
import json

from penstock_operator.api.strategy import LONGEST_PAUSE, MANUAL, ReleaseStep, Strategy
from penstock_wire import durations


def target(strategy: Strategy, step: int) -> int:
    """The candidate's percent at a step: that of the last `setWeight` up to it.

    Args:
        step: index of the step; the number of steps stands for promotion.
    """
    if step >= len(strategy.steps):
        return 100
    weights = [each.set_weight for each in strategy.steps[: step + 1] if each.set_weight is not None]
    return weights[-1] if weights else 0


def mirror(strategy: Strategy, step: int) -> int:
    """The percent of the requests that a step copies to the candidate: 0 once it has requests of its own."""
    if target(strategy, step) > 0:
        return 0
    percent = 0
    for each in strategy.steps[: step + 1]:
        if each.mirror is not None:
            percent = each.mirror
        elif each.set_weight:
            percent = 0
    return percent


def is_manual(strategy: Strategy, step: int) -> bool:
    """Whether a step lasts until a user promotes the release."""
    if step >= len(strategy.steps):
        return strategy.promotion == "Manual"
    return strategy.steps[step].pause == MANUAL


def pause_ms(strategy: Strategy, step: int) -> int | None:
    """The shortest duration of a step's pause, in milliseconds; None if it has no pause, or a Manual one."""
    pause = strategy.steps[step].pause if step < len(strategy.steps) else None
    if pause is None or pause == MANUAL:
        return None
    return min(durations.parse_ms(pause), durations.parse_ms(LONGEST_PAUSE))


def resumed_at(strategy: Strategy, weight: int) -> int:
    """The step at which a release continues after its steps changed: the first of at least its weight."""
    steps = range(len(strategy.steps))
    return next((step for step in steps if target(strategy, step) >= weight), len(steps))


def fingerprint(strategy: Strategy) -> str:
    """A hash of the steps, to detect edits."""
    text = json.dumps([step.document() for step in strategy.steps], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def words(strategy: Strategy, step: int) -> str:
    """A step in words: `step 2 of 5 (setWeight 50)`, or `promotion` after the last."""
    if step >= len(strategy.steps):
        return "promotion"
    return f"step {step + 1} of {len(strategy.steps)} ({_asked(strategy.steps[step])})"


def _asked(step: ReleaseStep) -> str:
    if step.set_weight is not None:
        return f"setWeight {step.set_weight}"
    return f"mirror {step.mirror}" if step.mirror is not None else f"pause {step.pause}"


def faults(strategy: Strategy) -> tuple[str, ...]:
    """Describe the faults for which a strategy cannot be followed, with their paths.

    The API server refuses all of them; a strategy that was stored before it did can still have some.

    A weight below the previous one is allowed: a step may go back.
    """
    texts = []
    for number, step in enumerate(strategy.steps):
        weight = target(strategy, number)
        if step.mirror and weight:
            texts.append(
                f"spec.strategy.steps[{number}].mirror: expected a candidate without requests of its own, "
                f"found weight {weight} by the steps before"
            )
        pause = step.pause or MANUAL
        if pause != MANUAL and durations.parse_ms(pause) > durations.parse_ms(LONGEST_PAUSE):
            texts.append(
                f"spec.strategy.steps[{number}].pause: expected {LONGEST_PAUSE} at most, or {MANUAL}, "
                f"found {pause}"
            )
    mirrored = any(step.mirror for step in strategy.steps)
    for number, metric in enumerate(strategy.analysis.metrics):
        path = f"spec.strategy.analysis.metrics[{number}]"
        if metric.name == "prometheus" and not (metric.query or "").strip():
            texts.append(f"{path}.query: expected PromQL, found an empty text")
        if metric.name in ("errorRatio", "mismatch") and (metric.threshold or 0) > 1:
            texts.append(f"{path}.threshold: expected a share from 0 to 1, found {metric.threshold:g}")
        if metric.name == "mismatch" and not mirrored:
            texts.append(f"{path}.name: expected a step with mirror above 0 for mismatch, found none")
    return tuple(texts)
