"""Cuts texts for people, in logs, statuses and errors, where a word ends."""

from __future__ import annotations

import re


def cut(text: str, most: int) -> str:
    """Cut a long text after a word; it then ends in "…".

    Args:
        text: any text.
        most: its most characters.
    """
    if len(text) <= most:
        return text
    words = re.match(r".*\S(?=\s)", text[:most], re.DOTALL)
    # One long word (base64, a stack of brackets) would leave nothing.
    kept = words[0] if words and len(words[0]) > most // 2 else text[: most - 1]
    return kept + "…"
