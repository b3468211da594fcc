"""One generation of the target: a pair for each of its nodes, started and ended together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.local.child import Children, IsApplication, NotReady
from penstock.local.front import Front
from penstock.local.nodes import NodeDocument
from penstock.local.options import Options
from penstock.local.pair import Pair
from penstock.local.terminal import Terminal
from penstock_wire.http.client.pool import H1Upstream

MakePair = Callable[[NodeDocument, Mapping[str, str]], Pair]
"""Makes the pair of a node, given the URLs of the endpoints for its handles."""


class Generation:
    """A generation of the target; can be started once.

    Args:
        options: options of the command.
        front: assigns ports to endpoints.
        make: see `MakePair`.
    """

    def __init__(self, options: Options, *, front: Front, make: MakePair) -> None:
        self.pairs: list[Pair] = []
        """The pairs; the last is that of the node that clients call."""
        self._options = options
        self._front = front
        self._make = make

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the nodes, in the order of `pairs`."""
        return tuple(pair.name for pair in self.pairs)

    @property
    def targets(self) -> dict[str, str]:
        """The sidecars' addresses by node."""
        return {pair.name: pair.address for pair in self.pairs}

    async def start(self, *, alone: bool) -> None:
        """Start all pairs and wait until they can take requests.

        Args:
            alone: whether no other generation is serving: then each node is called as soon as it is ready,
                also by the constructors of later nodes.

        Raises:
            NotReady: a program ended before; all are then ended.
        """
        options = self._options
        only = NodeDocument(name=options.name, target=options.target, init_kwargs=dict(options.init_kwargs))
        self.pairs = [self._make(only, {})]
        try:
            await self.pairs[0].start()
        except IsApplication as application:
            if options.settings is not None:
                raise NotReady(
                    "expected --settings for one class, found an application: its classes have "
                    "@penstock.backend(batching={…})"
                ) from None
            await self._start_nodes(application.nodes, alone=alone)

    async def _start_nodes(self, nodes: list[NodeDocument], *, alone: bool) -> None:
        urls = self._front.urls([node.name for node in nodes])
        self.pairs = [self._make(node, urls) for node in nodes]
        ready: dict[str, str] = {}

        async def start(pair: Pair) -> None:
            await pair.start()
            ready[pair.name] = pair.address
            if alone:
                self._front.serve(self.names, ready)

        if alone:
            self._front.serve(self.names, ready)
        starts = [asyncio.create_task(start(pair)) for pair in self.pairs]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for task in starts:
                task.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            await self.kill()
            raise

    async def ended(self) -> str:
        """Wait until a program ends; return a message about it."""
        ends = [asyncio.create_task(pair.ended()) for pair in self.pairs]
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ends:
                task.cancel()
        return "; ".join(task.result() for task in done)

    async def retire(self) -> None:
        """Let all pairs answer their accepted requests, callers before called nodes, and end them."""
        for pair in reversed(self.pairs):
            await pair.retire()

    async def kill(self) -> None:
        """Kill all pairs."""
        await asyncio.gather(*(pair.kill() for pair in self.pairs))


def pair_maker(
    options: Options, folder: Path, children: Children, upstream: H1Upstream, terminal: Terminal
) -> MakePair:
    """Make a function that makes the pairs of a session; arguments as for `Pair`."""

    def make(node: NodeDocument, urls: Mapping[str, str]) -> Pair:
        return Pair(
            node, options, urls=urls, folder=folder, children=children, upstream=upstream, terminal=terminal
        )

    return make
