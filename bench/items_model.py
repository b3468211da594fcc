"""The model of `bench.items`, for the SDK's server: 10 ms + 0.2 ms an item; even items are answered 422."""

from __future__ import annotations

import time

import penstock

A_SECONDS, B_SECONDS = 0.010, 0.0002


class Slow:
    """Sleeps as a device computes, then answers each item with itself, an even one with 422."""

    @penstock.batched
    def predict(self, items: list[int]) -> list[int | penstock.Response]:
        """Answer a batch."""
        time.sleep(A_SECONDS + B_SECONDS * len(items))
        return [penstock.Response(422, body={"detail": item}) if item % 2 == 0 else item for item in items]
