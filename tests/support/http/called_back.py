"""Calls back with what a coroutine returns, as `Upstream.begin` does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from penstock_wire.http import GivenUp, GiveUp, SenderFailed, UpstreamError


def call_back(answer: Coroutine[Any, Any, Any], opened: Callable[[Any], None]) -> GiveUp:
    """Run a coroutine, and call back once with its result or failure, in a later turn of the loop."""
    asked = asyncio.ensure_future(answer)

    def ended(_: object) -> None:
        if asked.cancelled():
            opened(GivenUp("given up"))
        elif isinstance(error := asked.exception(), Exception):
            opened(error if isinstance(error, UpstreamError) else SenderFailed("fake", error))
        else:
            opened(asked.result())

    asked.add_done_callback(ended)
    return asked.cancel
