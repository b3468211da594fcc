"""The known name that is nearest to an unknown one, for messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return the end of a message: the nearest of the known names; empty if none is near.

    Args:
        name: the unknown name.
        known: the known ones.
    """
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f": did you mean {near[0]}?" if near else ""
