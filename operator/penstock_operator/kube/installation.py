"""Which installation acts: of several that look after the same namespaces one, and the others stand by.

Two operators that render otherwise would undo each other's work for ever. So whoever leads its own
installation, by the Lease in its own namespace, needs another Lease, whose name and namespace are the same
for all installations. Its holder is named `NAMESPACE/SERVICE/POD`: the next leader of the same installation
takes it over at once, since the first Lease says that its predecessor has stopped; another installation waits
until the holder is gone. It is not given back at an end, but kept for `KEPT` seconds, so that a restart or an
upgrade changes no installation.

One that is limited to a namespace has the Lease of that namespace, and stands by as well while an operator
for all namespaces leads: those who are limited to different namespaces act side by side.

Two installations never act at once, whatever becomes of their Leases and of calls about these, where the wall
clocks of nodes differ by at most `lease.SKEW` (only 2 uses them). Two pods of one installation do where the
Lease in its own namespace is deleted, until the leader has seen that: they write the same. Whoever leads does
so until `renew_within` after the beginning of its last call that succeeded, by its own monotonic clock
(`fence.py`); what it sent by then arrives by `LeaseTimes.settle` after it. So

1. A Lease that was made, or was free, is first only claimed: by a write that carries the version that was
   read, and without `acquireTime`. `settle` seconds after its answer nobody acts any more by what the Lease
   was before (an operator for all namespaces whose Lease was deleted under it while it could not call, one
   that made it at the same moment, one that is limited to a namespace and saw nobody). Then the claim is
   written once more, with `acquireTime` and with the version of the claim: taken, it proves that nobody else
   has written since. Whoever writes after that claims it and waits in turn, while we fail to renew it.
2. Without waiting it is taken from a leader of the same installation, which has stopped, if there is an
   `acquireTime`: else that one may not have waited to the end. An operator for all namespaces claims it
   first, and goes on at once only if its claim came before the Lease had stood still for its duration, by its
   `renewTime`: after that, one that is limited to a namespace may act, which only reads it. With the Lease of
   a namespace nobody acts who has not written it.
3. A leader that finds its Lease deleted makes it anew and goes on if it still leads when that is done:
   nobody else did then, by 1, and whoever claims it after that waits.
4. One that is limited to a namespace only reads the Lease for all namespaces. It waits as long until it has
   read again that there is none, or leads at once by one whose holder was silent for `duration`. (It cannot
   see a Lease that is made and deleted again between two of its looks.)

It costs 10 s at the first start of an installation in a cluster, and where it takes over from another one;
of one that is limited to a namespace, at each start where there is no Lease for all namespaces (20 s at its
first); and where an operator for all namespaces was away for longer than its Lease lasted (`KEPT`, or 30 s).
Other restarts, upgrades and standbys of an installation do not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from penstock_operator.clock import Clock
from penstock_operator.kube.cluster import Cluster
from penstock_operator.kube.lease import Elector, LeaseTimes

LEASE_NAME = "penstock-installation"
"""Of an operator for all namespaces; with a dot and the namespace behind it, of one that is limited to it."""

TIMES = LeaseTimes(duration=30.0, renew_within=7.0, retry=2.0, again=0.5)
"""The duration is longer than that between the pods of an installation: these change places while it lasts.
`renew_within` is as theirs: a first start waits for hardly more."""

KEPT = 15
"""Seconds after its end for which an installation is waited for."""


class Leadership(Protocol):
    """What has to be held in order to act."""

    @property
    def until(self) -> float:
        """Until when, in monotonic seconds, it is surely ours if it is not renewed again."""
        ...

    async def acquire(self) -> None:
        """Wait until it is ours."""
        ...

    async def hold(self) -> None:
        """Renew it until that fails, which raises `LeaseLost`."""
        ...

    async def release(self) -> None:
        """Give it back; best effort."""
        ...


class Both:
    """Two of them, of which the second is asked for only while the first is ours.

    Args:
        first: asked for first, and held while the second is waited for.
        second: asked for then.
        clock: time.
    """

    def __init__(self, first: Leadership, second: Leadership, *, clock: Clock) -> None:
        self._first = first
        self._second = second
        self._clock = clock
        self._holding: asyncio.Task[None] | None = None

    @property
    def until(self) -> float:
        """See `Leadership`."""
        return min(self._first.until, self._second.until)

    async def acquire(self) -> None:
        """See `Leadership`."""
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
        """See `Leadership`."""
        holding = self._holding or asyncio.create_task(self._first.hold())
        tasks = (holding, asyncio.create_task(self._second.hold()))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await _end(*tasks)

    async def release(self) -> None:
        """See `Leadership`."""
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
    """What an operator calls itself among installations.

    Args:
        namespace: of its own.
        service: of its own.
        pod: its name.
    """
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
    """What has to be held in order to act, for a pod of one of several installations.

    Args:
        cluster: where the Leases are.
        first: what makes the pod the leader of its own installation.
        lease_namespace: where those of all installations are.
        watched: the one namespace that it is limited to; empty: none.
        identity: as `identity_of`.
        clock: time.
        log: called with a constant message and fields.
        working: as of `Elector`.
        waiting: called with the identity of another installation's leader while that has it, with "" after.
        refused: called with what the apiserver says where the Lease may not be asked for, with "" after.
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
