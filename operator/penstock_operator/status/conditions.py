"""Conditions: how one is made, and how new ones take the place of old ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from penstock_operator.api import Condition

Truth = Literal["True", "False", "Unknown"]


def condition(kind: str, status: Truth | bool, reason: str, message: str = "") -> Condition:
    """A condition without generation and time, which `merge` fills in."""
    raise NotImplementedError


def merge(
    old: Sequence[Condition], new: Iterable[Condition], *, generation: int, now: str
) -> list[dict[str, Any]]:
    """The conditions to write: the new ones, sorted by type; one whose status did not change keeps its time.

    Old conditions of a type that is not among the new ones go.

    Args:
        old: the conditions of the live status.
        new: what holds now.
        generation: the resource's metadata.generation.
        now: the time, as RFC 3339 in UTC, such as 2026-01-31T12:00:00Z.
    """
    raise NotImplementedError


def parse_failed(stored: Mapping[str, Any], error: str, *, now: str) -> dict[str, Any]:
    """The status of a stored object that does not parse: Ready=False and Stalled=True, reason Unreadable.

    Args:
        stored: the object as stored.
        error: the ResourceError's message.
        now: the time, as in `merge`.
    """
    raise NotImplementedError
