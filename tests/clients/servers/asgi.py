"""A FastAPI model for uvicorn, hypercorn and gunicorn's UvicornWorker."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

SECONDS = 0.01


def ready() -> str:
    """Answer the probe."""
    return "ready"


async def predict(body: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Answer each instance with itself."""
    await asyncio.sleep(SECONDS)
    if "bad" in body["instances"]:
        raise RuntimeError("a bug that one instance meets")
    return {"predictions": [{"got": instance} for instance in body["instances"]]}


async def refuse(_: Request) -> Response:
    """Refuse a body without reading it."""
    return Response("too large", 413)


calls: list[int] = []
"""Texts of each call for embeddings."""


async def embeddings(request: Request) -> Response:
    """Embed each text, for callers with a key: its length, and the length of the key."""
    key, texts = request.headers.get("api-key"), (await request.json())["input"]
    texts = texts if isinstance(texts, list) else [texts]
    calls.append(len(texts))
    await asyncio.sleep(SECONDS)
    if key is None:
        return JSONResponse({"error": {"message": "expected an api-key"}}, 401)
    data = [
        {"object": "embedding", "index": index, "embedding": [len(text), len(key)]}
        for index, text in enumerate(texts)
    ]
    usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
    return JSONResponse({"object": "list", "data": data, "model": "m", "usage": usage})


async def explain(_: Request, error: Exception) -> JSONResponse:
    """Answer an exception as the client's fault; Starlette raises it again behind that answer."""
    return JSONResponse({"error": str(error)}, 422)


app = FastAPI()
explained = FastAPI(exception_handlers={Exception: explain})
for each in (app, explained):
    each.get("/")(ready)
    each.post("/predict")(predict)
    each.post("/refuse")(refuse)
    each.post("/openai/deployments/m/v1/embeddings")(embeddings)
    each.get("/calls")(lambda: calls)
