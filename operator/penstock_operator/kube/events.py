"""Sends Kubernetes Events one after the other, in the background.

An Event is for people; it must not delay the children and statuses of a thousand resources when an operator
starts. So reconcilers hand Events over and continue. Namespaces take turns. If more than `KEPT` wait, the
oldest of the namespace that has most are dropped, as client-go's recorder drops what it cannot send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from penstock_operator.errors import ClusterError
from penstock_operator.fair_turns import FairTurns
from penstock_operator.kinds import EVENT
from penstock_operator.kube.cluster import Obj, WriteObserver, Writer

KEPT = 1000
"""The most Events that wait."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    event: Obj


class Recorder:
    """A queue that sends the Events of a namespace in the order in which they came."""

    def __init__(self, cluster: Writer, observer: WriteObserver, log: Callable[..., None]) -> None:
        self._cluster = cluster
        self._observer = observer
        self._log = log
        self._waiting = FairTurns[_Waiting]()
        self._some = asyncio.Event()

    async def put(self, event: Obj) -> None:
        """Queue an Event; returns at once."""
        if len(self._waiting) == KEPT and (dropped := self._waiting.pop_of_most()) is not None:
            self._log("event dropped", level="debug", note=dropped.event.get("note"))
        self._waiting.add(event["metadata"].get("namespace"), _Waiting(event))
        self._some.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._some.wait()
            while (next_one := self._waiting.pop()) is not None:
                await send(next_one.event, self._cluster, self._observer, self._log)
            self._some.clear()


async def send(event: Obj, cluster: Writer, observer: WriteObserver, log: Callable[..., None]) -> None:
    """Send one Event; if it is refused, log that and drop it."""
    try:
        await cluster.create(EVENT, event)
    except ClusterError as error:
        log("event not written", level="debug", regarding=str(event.get("regarding")), error=str(error))
    else:
        observer.wrote("create", EVENT.kind)
