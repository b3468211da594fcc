"""Fair queueing: equal shares of the slots for the senders of requests, by items (start-time fair queueing).

Each value of the fairness header is a flow with a tag: the items it was served, in virtual time. The flow
with the lowest tag goes next, and its tag rises by the items that went. The virtual time is the tag of the
flow that was served last. A flow that begins to wait starts at the virtual time: having been idle saves
nothing up. (Goyal, Vin, Cheng: Start-time Fair Queueing, SIGCOMM 1996; all weights equal.)
"""

from __future__ import annotations

import heapq

MAX_IDLE = 1024
"""Flows that are remembered while nothing of theirs waits, because they were served ahead of the others."""


class Flow:
    """One value of the fairness header: `tag`, its `items` that wait, and the sub-queues that hold them.

    The items of requests without a value are not counted: they are those that no other flow has.
    """

    __slots__ = ("items", "share", "subqueues", "tag")

    def __init__(self, share: bytes, tag: float) -> None:
        self.share = share
        self.tag = tag
        self.subqueues = 0
        self.items = 0


class Flows:
    """All flows that have something waiting, and those that still have to make up for what they got."""

    __slots__ = ("_common", "_flows", "_idle", "active", "virtual")

    def __init__(self) -> None:
        # Requests without a value share one flow, which stays: without fairness it is the only one.
        self._common = Flow(b"", 0.0)
        self._flows: dict[bytes, Flow] = {b"": self._common}
        self._idle: list[tuple[float, bytes]] = []
        self.active = 0
        self.virtual = 0.0

    def __len__(self) -> int:
        return len(self._flows)

    def get(self, share: bytes) -> Flow | None:
        """The flow of a value, where it has something waiting or was served ahead."""
        return self._flows.get(share)

    def enter(self, share: bytes) -> Flow:
        """The flow of a value that has one more sub-queue with something waiting."""
        flow = self._flows.get(share)
        if flow is None:
            flow = self._flows[share] = Flow(share, self.virtual)
        if not flow.subqueues:
            self.active += 1
            flow.tag = max(flow.tag, self.virtual)
        flow.subqueues += 1
        return flow

    def leave(self, flow: Flow) -> None:
        """A flow has one sub-queue less with something waiting."""
        flow.subqueues -= 1
        if flow.subqueues:
            return
        self.active -= 1
        if not self.active:
            # No flow waits, so no share has to be made up for.
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

    def served(self, flow: Flow, items: int) -> None:
        """So many items of a flow went."""
        if flow.tag > self.virtual:
            self.virtual = flow.tag
            idle = self._idle
            while idle and idle[0][0] <= self.virtual:
                self._forget(*heapq.heappop(idle))
        self._count(flow, items)

    def charge(self, share: bytes, items: float) -> None:
        """Count what a flow used of the model beyond the items that it was served.

        Args:
            share: the flow's value.
            items: as so many items.
        """
        if not self.active or not share:
            return  # no flow waits; or this is the common one
        flow = self._flows.get(share)
        if flow is None:
            flow = self._flows[share] = Flow(share, self.virtual)
        self._count(flow, items)

    def _count(self, flow: Flow, items: float) -> None:
        flow.tag += items
        if not flow.subqueues and flow.share and self.active:
            # NB: also where it fell empty with this very batch: what it got is not forgotten with that.
            self._flows[flow.share] = flow
            self._remember(flow)

    def _remember(self, flow: Flow) -> None:
        """Nothing of a flow waits, and it is ahead of the others."""
        heapq.heappush(self._idle, (flow.tag, flow.share))
        while len(self._idle) > MAX_IDLE:
            self._forget(*heapq.heappop(self._idle))

    def _forget(self, tag: float, share: bytes) -> None:
        flow = self._flows.get(share)
        if flow is not None and not flow.subqueues and flow.tag <= tag:
            del self._flows[share]
