"""A model that answers each item with its own id and reports to a collector what it executed.

It runs in a pod (mounted from a ConfigMap) as `python -m penstock.serve ledger_model:Ledger`. The record is
sent before the answer, on one TCP connection a process, a JSON line a batch.
"""

from __future__ import annotations

import json
import os
import random
import socket
import threading
import time
from typing import Any

import penstock


class Ledger:
    """Echoes ids.

    Args:
        delay_ms: milliseconds that a batch takes.
        delay_item_ms: milliseconds that each item adds.
        load_cpu_ms: milliseconds of a core that it takes to load.
        fails: share of the items that it answers 500, drawn at random; it records them as the others.
    """

    def __init__(
        self,
        delay_ms: float = 1.0,
        delay_item_ms: float = 0.0,
        label: str = "",
        load_cpu_ms: float = 0.0,
        fails: float = 0.0,
    ) -> None:
        self.delay_ms = delay_ms
        self.delay_item_ms = delay_item_ms
        self.label = label
        self.fails = fails
        self.pod = os.environ.get("HOSTNAME", "")
        while time.process_time() < load_cpu_ms / 1000:
            pass
        self.lock = threading.Lock()
        host, _, port = os.environ.get("COLLECTOR", "").rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=10) if host else None

    @penstock.batched
    def predict(self, items: list[Any]) -> list[Any]:
        """One answer an item: its id, the pod, the size of the batch that it was in."""
        if self.socket is not None:
            record = {"pod": self.pod, "ids": list(map(_id, items))}
            with self.lock:
                self.socket.sendall(json.dumps(record).encode() + b"\n")
        time.sleep((self.delay_ms + self.delay_item_ms * len(items)) / 1000)
        return [self._answer(item, len(items)) for item in items]

    def _answer(self, item: Any, batch: int) -> Any:
        if random.random() < self.fails:
            return penstock.Response(500, body={"failed": self.label})
        return {"id": _id(item), "pod": self.pod, "batch": batch, "label": self.label}


def _id(item: Any) -> int:
    """The id of an item: an object's over HTTP, a tensor's number over gRPC."""
    number: int = item["id"] if isinstance(item, dict) else item
    return number
