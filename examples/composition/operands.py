"""Two models work at once, and a third gets both answers: `penstock run operands:app`.

curl -s localhost:8000 -d '{"instances": ["a penstock"]}'    # {"predictions":["2 words, 10 letters"]}
"""

from __future__ import annotations

from typing import Any

import penstock


@penstock.backend
class Words:
    """Counts words."""

    @penstock.batched
    def count(self, texts: list[str]) -> list[int]:
        """One run for a whole batch."""
        return [len(text.split()) for text in texts]


@penstock.backend
class Letters:
    """Counts letters."""

    @penstock.batched
    def count(self, texts: list[str]) -> list[int]:
        """One run for a whole batch."""
        return [len(text) for text in texts]


@penstock.backend
class Sentence:
    """Makes a sentence of two numbers."""

    def __call__(self, words: int, letters: int) -> str:
        """The item is an object of the two."""
        return f"{words} words, {letters} letters"


@penstock.backend
class Both:
    """Asks two, and gives both answers to a third."""

    def __init__(self, words: Any, letters: Any, sentence: Any) -> None:
        self.words = words
        self.letters = letters
        self.sentence = sentence

    async def __call__(self, text: str) -> Any:
        """Neither answer is awaited here: the handle waits for both at once."""
        return await self.sentence(words=self.words(text), letters=self.letters(text))


app = Both.bind(Words.bind(), Letters.bind(), Sentence.bind())
