"""Looks at the files that a pod's first step brings: how many are there, and whether they are right.

All pods of a backend have the files of the first download. The first step compares them with the digest that
its settings had; here they are compared with the operator's of now, which a user cannot write: two pods may
have begun before either was whole.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import msgspec

from penstock_wire.control.artifact import (
    ArtifactAdvice,
    ArtifactDemand,
    ArtifactState,
    ArtifactTurn,
    read_state,
)


class ArtifactCheck:
    """The artifact of one pod.

    Args:
        file: where the first step writes its state; None without an artifact.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._state: ArtifactState | None = None
        self.demand: ArtifactDemand | msgspec.UnsetType = msgspec.UNSET
        self.turn: ArtifactTurn | None = None
        self._answered = asyncio.Event()

    @property
    def state(self) -> ArtifactState | None:
        """How far the files are; it is read until they are whole."""
        if self._file is not None and not (self._state and self._state.digest):
            self._state = read_state(self._file)
        return self._state

    @property
    def message(self) -> str:
        """Why the model may not serve, "" if it may."""
        state, demand = self.state, self.demand
        if self._file is None:
            return ""
        if state is None:
            return "its files are not there yet: nothing of the first step"
        if not state.digest:
            return f"its files are not there yet: {state.words}"
        if demand is msgspec.UNSET or demand.source != state.source or demand.digest == state.digest:
            return ""
        return (
            f"expected files with digest {demand.digest}, as the first download had, found {state.digest}: "
            "delete this pod"
        )

    def answered(self, turn: ArtifactTurn | None) -> None:
        """Take the operator's word, as each of its answers has it."""
        self.turn = turn
        self._answered.set()

    async def advice(self, seconds: float) -> ArtifactAdvice:
        """What the first step may know, after the operator's next answer or so many seconds."""
        self._answered.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._answered.wait()
        demand, state = self.demand, self.state
        if demand is msgspec.UNSET or state is None or demand.source != state.source:
            return ArtifactAdvice(turn=self.turn)
        return ArtifactAdvice(turn=self.turn, digest=demand.digest)
