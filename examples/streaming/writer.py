"""One model run writes for many clients at once: `python -m penstock.serve writer:Writer --port 8080`.

    curl -sN localhost:8080/write -H 'accept: text/event-stream' -d '{"instances": ["a penstock"]}'

Each step makes the next word of every text. A text that is complete has `END`, one that cannot be written an
exception; neither costs the others anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import penstock

WORDS = ["is", "the", "gated", "pipe", "that", "feeds", "a", "turbine"]


class Writer:
    """Goes on with texts, word by word."""

    @penstock.batched
    def write(self, beginnings: list[str], *, words: int = 8) -> Iterator[list[Any]]:
        """Each step has one word for each text."""
        texts = [beginning.split() for beginning in beginnings]
        for step in range(words + 1):
            yield [self.word(text, step, words) for text in texts]

    @staticmethod
    def word(text: list[str], step: int, words: int) -> Any:
        """The next word of one text."""
        if not text:
            return ValueError("expected a text to go on with, found none")
        return WORDS[step] if step < min(words, len(WORDS)) else penstock.END
