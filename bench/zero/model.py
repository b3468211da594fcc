"""The model of `bench.zero`: 20 ms a batch; it says of each batch what it holds and when it came.

It runs in a pod, mounted from a ConfigMap, as `python -m penstock.serve model:Recorder`. Processes of one
machine share the monotonic clock, whatever namespace they are in.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time

import penstock

BATCH_SECONDS = 0.02


class Recorder:
    """Answers each item with itself, after a record of the batch has gone to `$COLLECTOR`, a JSON line."""

    def __init__(self) -> None:
        host, _, port = os.environ["COLLECTOR"].rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._lock = threading.Lock()

    @penstock.batched
    def predict(self, items: list[int]) -> list[int]:
        """Record a batch, and answer it."""
        record = {"at": time.monotonic(), "items": items}
        with self._lock:
            self._socket.sendall(json.dumps(record).encode() + b"\n")
        time.sleep(BATCH_SECONDS)
        return items
