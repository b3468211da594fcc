"""A page on loopback that shows what `kubectl penstock ui` shows of a backend: its queue, batches and times.

It reads the sidecars' admin ports only while a browser looks.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.local.live_view import Queue
from penstock.local.pair import Pair
from penstock.local.ports import HOST
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import Request
from penstock_wire.http.server.server import H1Front
from penstock_wire.page import measures
from penstock_wire.page.door import Door

EVERY = 1.0
"""Seconds between two looks at the sidecars."""
SAMPLES = 900
PLACE = "laptop"
"""What stands for a namespace."""

View = dict[str, Any]


class Page:
    """Serves the page.

    Args:
        pairs: gives what serves now.
    """

    def __init__(self, pairs: Callable[[], Sequence[Pair]]) -> None:
        self._pairs = pairs
        self._door = Door(self._answer)
        self._front = H1Front()
        self._scraped: dict[str, measures.Scraped] = {}
        self._samples: dict[str, deque[tuple[float, int, int, int, int, int]]] = {}
        self._looked = 0.0
        self._revision = 1
        self._looking = asyncio.Lock()

    async def start(self) -> str:
        """Listen on a free port; return the URL for a browser."""
        listener = await self._front.listen(HOST, 0, self._door.handle)
        return "http://{}:{}/{}".format(*listener.address, self._door.fragment())

    async def close(self) -> None:
        """End."""
        await self._front.close(0.0)

    async def _answer(self, request: Request) -> View:
        parts = request.path.removeprefix("/api/").split("/")
        if parts not in (["overview"], ["view", "ModelBackend", PLACE, parts[-1]]):
            raise PenstockError(Reason.NO_ROUTE, f"the page has no {request.path}")
        async with self._looking:
            if (rest := self._looked + EVERY - time.monotonic()) > 0 and request.target.endswith(
                f"since={self._revision}"
            ):
                await asyncio.sleep(rest)
            if self._looked + EVERY <= time.monotonic():
                await self._look()
        said = {"revision": self._revision, "problems": [], "listed": True}
        if parts == ["overview"]:
            rows = {f"ModelBackend/{PLACE}/{name}": self._head(name) for name in self._scraped}
            return said | {
                "server": "penstock run",
                "namespace": PLACE,
                "rows": rows,
                "gone": [],
                "whole": request.target.endswith("since=0"),
            }
        return said | {"view": self._view(parts[-1]) if parts[-1] in self._scraped else None}

    async def _look(self) -> None:
        pairs = {pair.name: pair for pair in self._pairs()}
        for gone in self._scraped.keys() - pairs.keys():
            self._scraped[gone].problem = "it does not run"
        for name, pair in pairs.items():
            (status, queue), (read, metrics) = await pair.ask("/queue"), await pair.ask("/metrics")
            scraped = self._scraped.setdefault(name, measures.Scraped(0.0))
            answers = status == read == 200
            scraped.problem = "" if answers else "its sidecar does not answer"
            if not answers:
                continue
            scraped.add(metrics, measures.SIDECAR)
            counts = msgspec.json.decode(queue, type=Queue)
            kept = self._samples.setdefault(name, deque(maxlen=SAMPLES))
            kept.append((time.time(), counts.queued, counts.ongoing, 0, 1, 1))
        self._looked = time.monotonic()
        self._revision += 1

    def _head(self, name: str) -> View:
        scraped = self._scraped[name]
        details = []
        if (rate := scraped.rate(f"{measures.SIDECAR}batch_items_sum")) is not None:
            details = [f"{rate:.0f} items/s"]
        return {
            "kind": "ModelBackend",
            "namespace": PLACE,
            "name": name,
            "created": "",
            "ready": "False" if scraped.problem else "True",
            "reason": "-",
            "details": details,
            "notes": [scraped.problem] if scraped.problem else [],
        }

    def _view(self, name: str) -> View:
        scraped, samples = self._scraped[name], list(self._samples.get(name, ()))
        _, queued, ongoing, *_ = samples[-1] if samples else (0.0, 0, 0)
        most = self._latest(scraped, "batch_limit_items")
        return self._head(name) | {
            "load": {"queued": queued, "ongoing": ongoing},
            "changes": [],
            "samples": samples,
            "batches": measures.batches([scraped], datetime.now(UTC)),
            "curve": measures.curve([scraped], {}, {"maxBatchSize": most}),
        }

    @staticmethod
    def _latest(scraped: measures.Scraped, name: str) -> float | None:
        latest = scraped.values[-1][1] if scraped.values else {}
        return measures.total(latest, measures.SIDECAR + name, {}) or None
