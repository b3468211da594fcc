"""A Flask model for gunicorn's sync and threaded workers."""

from __future__ import annotations

import time
from typing import Any

from flask import Flask, request

SECONDS = 0.01

app = Flask(__name__)


@app.get("/")
def ready() -> str:
    """Answer the probe."""
    return "ready"


@app.post("/predict")
def predict() -> dict[str, list[Any]]:
    """Answer each instance with itself."""
    time.sleep(SECONDS)
    instances = request.get_json()["instances"]
    if "bad" in instances:
        raise RuntimeError("a bug that one instance meets")
    return {"predictions": [{"got": instance} for instance in instances]}
