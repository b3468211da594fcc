"""`@penstock.batch` inside an application of yours: `uvicorn fastapi_app:app`, and no process of Penstock's.

Each request awaits its own item; the model gets lists. `GET /spell` streams from a batched generator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse

import penstock

app = FastAPI()


class Model:
    """Stands for a real one: it takes a list, and blocks."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    @penstock.batch(max_batch_size=32, timeout=10)
    def score(self, texts: list[str]) -> list[Any]:
        """One score a text; an empty text is an error of its own request alone."""
        self.batches.append(len(texts))
        return [len(text) if text else ValueError("expected a text, found an empty one") for text in texts]

    @penstock.batch
    def spell(self, texts: list[str]) -> Iterator[list[Any]]:
        """Each step has the next letter of every text."""
        for step in range(max(len(text) for text in texts)):
            yield [text[step] if step < len(text) else penstock.END for text in texts]


model = Model()


@app.get("/score")
async def score(text: str) -> dict[str, Any]:
    """Work for one request around a batch for many."""
    try:
        return {"text": text, "score": await model.score(text.strip())}
    except ValueError as error:
        raise HTTPException(422, str(error)) from error


@app.get("/spell")
async def spell(text: str) -> StreamingResponse:
    """Each client reads its own stream; one that leaves costs the others nothing."""
    return StreamingResponse(model.spell(text), media_type="text/plain")
