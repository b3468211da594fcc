"""Several models vote; the same class is bound three times: `penstock run ensemble:app`.

curl -s localhost:8000 -d '{"instances": [0.5]}'    # {"predictions":[{"yes":2,"no":1}]}
"""

from __future__ import annotations

import asyncio
from typing import Any

import penstock


@penstock.backend(spec={"batching": {"maxBatchSize": 16}})
class Voter:
    """Says yes above a threshold."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    @penstock.batched
    def vote(self, values: list[float]) -> list[bool]:
        """One run for a whole batch."""
        return [value >= self.threshold for value in values]


@penstock.backend
class Ensemble:
    """Asks all at once, and does without those that fail."""

    def __init__(self, voters: list[Any]) -> None:
        self.voters = [voter.options(timeout=2.0) for voter in voters]

    async def __call__(self, value: float) -> dict[str, int]:
        """As slow as the slowest, and no slower."""
        votes = await asyncio.gather(*[voter(value) for voter in self.voters], return_exceptions=True)
        return {"yes": votes.count(True), "no": votes.count(False)}


app = Ensemble.bind([Voter.bind(0.2), Voter.bind(0.4), Voter.bind(0.8)])
