"""Decides which of several installations for the same namespaces acts; the others stand by.

Two operators that render differently would undo each other's work for ever. So the leader of an installation,
which holds the Lease in its own namespace, needs a second Lease, with the same name and namespace for all
installations. Its holder is named `NAMESPACE/SERVICE/POD`: the next leader of the same installation takes it
over at once, since the first Lease proves that its predecessor has stopped; another installation waits until
the holder is gone. At an end the second Lease is not given back, but kept for `KEPT` seconds, so that a
restart or an upgrade does not change the acting installation.

A limited operator, for one namespace, holds the Lease of that namespace, and also stands by while a global
operator, for all namespaces, leads. Operators limited to different namespaces act side by side.

Two installations never act at once, whatever happens to their Leases and to calls about these, if the wall
clocks of nodes differ by at most `lease.SKEW` (only rule 2 uses them). Two pods of one installation do if the
Lease in its own namespace is deleted, until the leader notices: they write the same. A leader leads until
`renew_within` after the beginning of its last successful call, by its own monotonic clock (`fence.py`); its
writes arrive by `LeaseTimes.settle` after that beginning. So:

1. A Lease that was made, or was free, is first only claimed: by a write that carries the version that was
   read, and no `acquireTime`. `settle` seconds after the answer, no operator acts by the Lease's former state
   any more (a global operator whose Lease was deleted while it could not call, an operator that made it at
   the same moment, a limited operator that saw no holder). Then the claim is written again, with
   `acquireTime` and the claim's version: if accepted, there was no other write since. A later writer claims
   the Lease and waits in turn, while we fail to renew it.
2. A Lease is taken without waiting from a leader of the same installation, which has stopped, if it has an
   `acquireTime`: without one, that leader may not have waited to the end. A global operator claims it first,
   and continues at once only if the claim came before the Lease's duration had passed since its `renewTime`:
   after that, a limited operator, which only reads it, may act. By the Lease of a namespace, only an operator
   that has written it acts.
3. A leader that finds its Lease deleted makes it again, and continues if it still leads when that is done:
   by rule 1 no other operator led then, and one that claims it later waits.
4. A limited operator only reads the Lease for all namespaces. It waits for `settle` seconds and reads again
   that there is none, or leads at once if the Lease's holder was silent for `duration`. (It cannot see a
   Lease that is made and deleted between two reads.)

This costs 10 s at the first start of an installation in a cluster, and when it takes over from another one;
for a limited operator, at each start without a Lease for all namespaces (20 s at its first); and after a
global operator was away for longer than its Lease lasted (`KEPT`, or 30 s). Other restarts, upgrades and
standbys of an installation do not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from penstock_operator.clock import Clock
from penstock_operator.kube.cluster import Cluster
from penstock_operator.kube.lease import Elector, LeaseTimes

LEASE_NAME = "penstock-installation"
"""Name of the Lease for all namespaces; a dot and a namespace are appended for that of one namespace."""

TIMES = LeaseTimes(duration=30.0, renew_within=7.0, retry=2.0, again=0.5)
"""The duration is longer than that between the pods of an installation: their leader can change within it.
`renew_within` is the same as theirs: a first start waits hardly longer than that."""

KEPT = 15
"""Seconds for which others wait for an installation after its end."""


class Leadership(Protocol):
    """The right to act, which must be held."""

    @property
    def until(self) -> float:
        """The time, in monotonic seconds, until which it is certainly ours without another renewal."""

    async def acquire(self) -> None:
        """Wait until it is ours."""

    async def hold(self) -> None:
        """Renew it until that fails, which raises `LeaseLost`."""

    async def release(self) -> None:
        """Give it back; best effort."""


class Both:
    """Two leaderships; the second is acquired only while the first is held.

    Args:
        first: acquired first, and held while the second is acquired.
    """

    def __init__(self, first: Leadership, second: Leadership, *, clock: Clock) -> None:
        self._first = first
        self._second = second
        self._clock = clock
        self._holding: asyncio.Task[None] | None = None

    @property
    def until(self) -> float:
        return min(self._first.until, self._second.until)

    async def acquire(self) -> None:
        while True:
            await self._first.acquire()
            self._holding = holding = asyncio.create_task(self._first.hold())
            taking = asyncio.create_task(self._second.acquire())
            try:
                await asyncio.wait({holding, taking}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                await _end(holding, taking)
                raise
            if not holding.done():
                taking.result()
                return
            await _end(holding, taking)

    async def hold(self) -> None:
        holding = self._holding or asyncio.create_task(self._first.hold())
        tasks = (holding, asyncio.create_task(self._second.hold()))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await _end(*tasks)

    async def release(self) -> None:
        if self._holding is not None:
            await _end(self._holding)
        if self._clock.time() < self._first.until:
            await self._second.release()
        await self._first.release()


async def _end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def identity_of(namespace: str, service: str, pod: str) -> str:
    """Make an operator's identity among installations."""
    return f"{namespace}/{service}/{pod}"


def among_installations(
    cluster: Cluster,
    first: Leadership,
    *,
    lease_namespace: str,
    watched: str,
    identity: str,
    clock: Clock,
    log: Callable[..., None],
    working: Callable[[], bool],
    waiting: Callable[[str], None],
    refused: Callable[[str], None] = lambda _why: None,
) -> Leadership:
    """Make the leadership that a pod of one of several installations needs in order to act.

    Args:
        first: the leadership of the pod's own installation.
        lease_namespace: namespace of the Leases of all installations.
        watched: the one namespace that the operator is limited to; empty: none.
        identity: as from `identity_of`.
        working: as for `Elector`.
        waiting: called with the identity of another installation's leader while that leads, with "" after.
        refused: called with the apiserver's message if it forbids the Lease, with "" after.
    """
    same = identity.rpartition("/")[0]

    def elector(name: str, *, takes: bool) -> Elector:
        def waits(holder: str) -> None:
            if holder:
                log(
                    "another installation leads", level="warning", holder=holder,
                    lease=f"{lease_namespace}/{name}",
                )  # fmt: skip
            waiting(holder)

        return Elector(
            cluster, namespace=lease_namespace, name=name, identity=identity, clock=clock, times=TIMES,
            log=log, working=lambda: working() and clock.time() < first.until,
            ours=lambda holder: holder.rpartition("/")[0] == same, waiting=waits, takes=takes,
            refused=refused,
            settles=True,
            read_by_others=name == LEASE_NAME and takes,
            kept_seconds=KEPT,
        )  # fmt: skip

    if not watched:
        return Both(first, elector(LEASE_NAME, takes=True), clock=clock)
    own = Both(elector(LEASE_NAME, takes=False), elector(f"{LEASE_NAME}.{watched}", takes=True), clock=clock)
    return Both(first, own, clock=clock)
