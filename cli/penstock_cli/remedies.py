"""What a condition's reason means, and what to do: the tables of docs/operations/repair.md, by a test."""

from __future__ import annotations

import functools
import importlib.resources
import json

Remedies = dict[str, tuple[str, str, str]]


@functools.cache
def known() -> Remedies:
    """Group, meaning and remedy by reason, in the order of the page; a remedy may be empty."""
    text = (importlib.resources.files("penstock_cli") / "remedies.json").read_text("utf-8")
    return {reason: (group, meaning, remedy) for reason, (group, meaning, remedy) in json.loads(text).items()}


def in_progress(reason: str) -> bool:
    """Whether a reason is one to wait for.

    Args:
        reason: a condition's.
    """
    return known().get(reason, ("",))[0] == "In progress"


def of(reason: str) -> tuple[str, str]:
    """Meaning and remedy; empty of a reason that is not known.

    Args:
        reason: a condition's.
    """
    _, meaning, remedy = known().get(reason, ("", "", ""))
    return meaning, remedy
