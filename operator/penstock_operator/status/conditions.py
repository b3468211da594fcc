"""Makes conditions, and merges new ones with old ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from penstock_operator.api import Condition
from penstock_wire.words import cut

Truth = Literal["True", "False", "Unknown"]

_MESSAGE_LIMIT = 2048
_NAMED = 3
"""Names in a message; further ones are only counted."""


def condition(kind: str, status: Truth, reason: str, message: str = "") -> Condition:
    """Make a condition without generation and time, which `merge` fills in; a long message is cut."""
    return Condition(type=kind, status=status, reason=reason, message=cut(message, _MESSAGE_LIMIT))


def find(conditions: Iterable[Condition], kind: str) -> Condition | None:
    """Return the condition of a type, None if there is none."""
    return next((item for item in conditions if item.type == kind), None)


def stands(before: Condition | None, generation: int) -> bool:
    """Whether a condition was True for this very generation: it stays so while it is merely unknown."""
    return before is not None and before.status == "True" and before.observed_generation == generation


def merge(
    old: Sequence[Condition], new: Iterable[Condition], *, generation: int, now: str
) -> list[dict[str, Any]]:
    """Return the conditions to write: Ready first, then by type; an unchanged status keeps its time.

    Old conditions of a type that is not among the new ones are dropped.

    Args:
        now: the time, as RFC 3339 in UTC, such as 2026-01-31T12:00:00Z.
    """
    merged = []
    for item in sorted(new, key=lambda item: (item.type != "Ready", item.type)):
        before = find(old, item.type)
        same = before is not None and before.status == item.status and before.last_transition_time
        since = before.last_transition_time if before is not None and same else now
        merged.append(
            item.model_copy(
                update={"observed_generation": generation, "last_transition_time": since}
            ).document()
        )
    return merged


def flags(ready: Condition, *, reconciling: bool, stalled: bool) -> list[Condition]:
    """`Reconciling` and `Stalled` (kstatus), each only if True, with the summary's reason and message."""
    wanted = {"Reconciling": reconciling and not stalled, "Stalled": stalled}
    return [condition(kind, "True", ready.reason, ready.message) for kind, holds in wanted.items() if holds]


def some(names: Iterable[str]) -> str:
    """Format up to three names, and the number of further ones: `a, b, c and 4 more`."""
    all_names = sorted(names)
    more = len(all_names) - _NAMED
    return ", ".join(all_names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def shares(weights: Iterable[tuple[str, int]]) -> str:
    """Format names and their percentages of the sum, for people: `one 90%, two 10%`."""
    pairs = list(weights)
    total = sum(weight for _, weight in pairs)
    return ", ".join(f"{name} {100 * weight / max(total, 1):.3g}%" for name, weight in pairs)


def parse_failed(stored: Mapping[str, Any], error: str, *, now: str) -> dict[str, Any]:
    """The status of a stored object that does not parse: Ready=False and Stalled=True, reason Unreadable.

    The rest of its status stays, as the objects made for it do; except its load, and names of others.
    """
    generation = stored.get("metadata", {}).get("generation", 0)
    old = [
        Condition.model_validate(raw)
        for raw in (stored.get("status") or {}).get("conditions") or ()
        if isinstance(raw, Mapping) and {"type", "status", "reason"} <= raw.keys()
    ]
    ready = condition("Ready", "False", "Unreadable", error)
    conditions = [ready, *flags(ready, reconciling=False, stalled=True)]
    before, moves = stored.get("status") or {}, ("load", "policies")
    kept = {name: value for name, value in before.items() if name not in moves}
    return kept | {
        "observedGeneration": generation,
        "conditions": merge(old, conditions, generation=generation, now=now),
    }
