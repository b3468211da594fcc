"""Fair queueing: equal shares of the slots for the senders of requests, by items (start-time fair queueing).

Each value of the fairness header is a flow with a tag: the items it was served, in virtual time. The flow
with the lowest tag goes next, and its tag rises by the items that were sent. The virtual time is the tag of
the flow that was served last. A flow that begins to wait starts at the virtual time: idle time earns no
credit. (Goyal, Vin, Cheng: Start-time Fair Queueing, SIGCOMM 1996; all weights equal.)

Where items count by what they are said to cost, batches show by their time which flow says too little: what
a batch takes beyond what was said is expected to be the sum of what each of its flows adds whenever it is in
one, and the difference corrects these numbers (least mean squares: Widrow and Hoff 1960). Each flow is
charged what it adds. Flows that are always in the same batches cannot be told apart, and share it.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection

MAX_IDLE = 1024
"""Flows without waiting requests that are remembered because they were served ahead of the others."""
_STEP = 0.25
"""Share of a difference by which a batch corrects what its flows are expected to add."""


class Flow:
    """One value of the fairness header: its `tag`, its waiting `items`, and the number of its `subqueues`.

    The items of requests without a value are not counted: they are the total less those of all flows.
    """

    __slots__ = ("items", "share", "subqueues", "tag")

    def __init__(self, share: bytes, tag: float) -> None:
        self.share = share
        self.tag = tag
        self.subqueues = 0
        self.items = 0


class Flows:
    """All flows with waiting requests, and the idle flows that were served ahead of the others."""

    __slots__ = ("_adds", "_common", "_flows", "_idle", "active", "virtual")

    def __init__(self) -> None:
        # Requests without a value share one flow, which stays: without fairness it is the only one.
        self._common = Flow(b"", 0.0)
        self._flows: dict[bytes, Flow] = {b"": self._common}
        self._idle: list[tuple[float, bytes]] = []
        # What each value's flow adds to a batch, beyond what it says; the latest measured comes last.
        self._adds: dict[bytes, float] = {}
        self.active = 0
        self.virtual = 0.0

    def __len__(self) -> int:
        return len(self._flows)

    def get(self, share: bytes) -> Flow | None:
        """The flow of a value, if it has waiting requests or was served ahead."""
        return self._flows.get(share)

    def enter(self, share: bytes) -> Flow:
        """Count one more filled sub-queue of a value's flow, and return the flow."""
        flow = self._flows.get(share)
        if flow is None:
            flow = self._flows[share] = Flow(share, self.virtual)
        if not flow.subqueues:
            self.active += 1
            flow.tag = max(flow.tag, self.virtual)
        flow.subqueues += 1
        return flow

    def leave(self, flow: Flow) -> None:
        """Count one filled sub-queue of a flow less."""
        flow.subqueues -= 1
        if flow.subqueues:
            return
        self.active -= 1
        if not self.active:
            # No flow waits, so none is ahead of another.
            self.virtual = self._common.tag = 0.0
            if len(self._flows) > 1:
                self._flows = {b"": self._common}
                self._idle.clear()
        elif flow is self._common:
            return
        elif flow.tag <= self.virtual:
            del self._flows[flow.share]
        else:
            self._remember(flow)

    def served(self, flow: Flow, items: float) -> None:
        """Record that `items` items of a flow were sent, or their work in items of the usual cost."""
        if flow.tag > self.virtual:
            self.virtual = flow.tag
            idle = self._idle
            while idle and idle[0][0] <= self.virtual:
                self._forget(*heapq.heappop(idle))
        self._count(flow, items)

    def charge(self, share: bytes, items: float) -> None:
        """Count a flow's use of the model beyond the items that it was served.

        Args:
            share: the flow's value.
            items: the use, converted to items.
        """
        if not self.active or not share:
            return  # no flow waits; or this is the common one
        flow = self._flows.get(share)
        if flow is None:
            flow = self._flows[share] = Flow(share, self.virtual)
        self._count(flow, items)

    def measured(self, shares: Collection[bytes], beyond: float) -> None:
        """Charge the flows of a batch for what it took beyond what was said of its items.

        Args:
            shares: the values of its flows.
            beyond: the difference, converted to items; negative if it took less.
        """
        adds = self._adds
        off = beyond - sum([adds.get(share, 0.0) for share in shares])
        for share in shares:
            # Nobody is owed anything for claiming too much: those beside it would pay for that.
            added = max(0.0, adds.pop(share, 0.0) + _STEP * off / len(shares))
            adds[share] = added
            if added > 0.0:
                self.charge(share, added)
        while len(adds) > MAX_IDLE:
            del adds[next(iter(adds))]

    def _count(self, flow: Flow, items: float) -> None:
        flow.tag += items
        if not flow.subqueues and flow.share and self.active:
            # NB: even if it fell empty with this very batch: what it was served must still count.
            self._flows[flow.share] = flow
            self._remember(flow)

    def _remember(self, flow: Flow) -> None:
        """Remember a flow that has no waiting requests and is ahead of the others."""
        heapq.heappush(self._idle, (flow.tag, flow.share))
        while len(self._idle) > MAX_IDLE:
            self._forget(*heapq.heappop(self._idle))

    def _forget(self, tag: float, share: bytes) -> None:
        flow = self._flows.get(share)
        if flow is not None and not flow.subqueues and flow.tag <= tag:
            del self._flows[share]
