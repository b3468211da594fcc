"""Runs `penstock run` from start to Ctrl-C: generations of the target come and go behind one router."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TextIO

from penstock.local import live_view, source_files
from penstock.local.child import Children, NotReady
from penstock.local.ending import Guard
from penstock.local.front import Front
from penstock.local.generation import Generation, pair_maker
from penstock.local.options import Options
from penstock.local.page import Page
from penstock.local.pair import Pair
from penstock.local.ports import PortTaken, check
from penstock.local.terminal import Terminal
from penstock.try_page import DOCS_PATH
from penstock_wire.http.client.pool import H1Upstream
from penstock_wire.process import on_signal, run

VIEW_SECONDS = 0.5
END_SECONDS = 4.0
"""Time that children have to end after Ctrl-C: the model's hook `close` can take 3 s."""


def serve(options: Options) -> int:
    """Run until Ctrl-C; return the exit code.

    Args:
        options: options of the command.
    """
    try:
        check(options.port)
    except PortTaken as error:
        print(f"penstock run: {error}", file=sys.stderr)
        return 1
    guard = Guard()
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-run-") as folder:
            return run(lambda: _session(options, Path(folder), guard))
    finally:
        guard.close()


async def _session(options: Options, folder: Path, guard: Guard) -> int:
    return await Session(options, folder=folder, guard=guard).run()


def _in_front(out: TextIO) -> bool:
    """Whether an output is a terminal on which this process runs in front, not in the background (`&`)."""
    if not out.isatty():
        return False
    try:
        return os.tcgetpgrp(out.fileno()) == os.getpgrp()
    except OSError:  # a terminal of nobody's
        return True


class Session:
    """One run of the command; must be made inside the running loop.

    Args:
        options: options of the command.
        folder: folder of this session's files.
        guard: ends the children if this process is killed.
    """

    def __init__(self, options: Options, *, folder: Path, guard: Guard) -> None:
        self._options = options
        self._folder = folder
        self._terminal = Terminal(sys.stderr, live=_in_front(sys.stderr))
        self._children = Children(guard)
        self._upstream = H1Upstream()
        self._front = Front(options.port, folder=folder, children=self._children, terminal=self._terminal)
        self._make = pair_maker(options, folder, self._children, self._upstream, self._terminal)
        self._address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._current: Generation | None = None
        self._page = Page(lambda: () if self._current is None else self._current.pairs)
        self._announced = False
        self._beside: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()
        self._stop = asyncio.Event()
        self._at_once = asyncio.Event()

    async def run(self) -> int:
        """Serve until a signal, or until a program ends that is not restarted; return the exit code."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # `nohup`
                on_signal(number, self._signalled)
        stop = asyncio.create_task(self._stop.wait())
        work = {asyncio.create_task(each) for each in (self._follow(), self._keep_front(), self._view())}
        await asyncio.wait({stop, *work}, return_when=asyncio.FIRST_COMPLETED)
        code = 0 if stop.done() else 1
        for task in (stop, *work, *self._beside):
            task.cancel()
        self._terminal.show(())
        await self._end()
        for result in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        await self._page.close()
        await self._upstream.close()
        return code

    def _signalled(self) -> None:
        if self._stop.is_set():
            self._at_once.set()
        self._stop.set()

    async def _end(self) -> None:
        """End all children by SIGINT; after a while, or at a second Ctrl-C, kill them."""
        ending = asyncio.create_task(self._children.end(signal.SIGINT, END_SECONDS))
        at_once = asyncio.create_task(self._at_once.wait())
        await asyncio.wait((ending, at_once), return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        at_once.cancel()
        await asyncio.gather(ending, at_once, return_exceptions=True)
        await self._children.end(signal.SIGKILL, 0.0)

    async def _keep_front(self) -> None:
        """Start the router, and return when it has ended."""
        try:
            self._address.set_result(await self._front.start(self._options.name))
            self._say_error(await self._front.ended())
        except NotReady as error:
            self._say_error(str(error))

    async def _follow(self) -> None:
        """Start the target, and again after each change; return if it fails and is not restarted."""
        while True:
            # NB: list the files before the target is imported, so that no change is missed.
            files = await asyncio.to_thread(source_files.look, Path.cwd()) if self._options.reload else {}
            starting = asyncio.create_task(self._replace())
            change = asyncio.create_task(self._next_change(files))
            try:
                await asyncio.wait((starting, change), return_when=asyncio.FIRST_COMPLETED)
                if starting.done():
                    starting.result()
            except NotReady as error:
                self._say_error(str(error))
                if not self._options.reload:
                    return
                served = "the version before serves on" if self._current else "requests wait"
                self._say(f"{served}; save a change to try again")
            finally:
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
            names = await change
            if not names:
                return
            self._say(f"changed: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}")

    async def _next_change(self, files: source_files.State) -> list[str]:
        """Wait for the next change and return its paths; without --reload, wait for the target's end."""
        if self._options.reload:
            return await source_files.changed(Path.cwd(), files)
        await self._over.wait()
        return []

    async def _replace(self) -> None:
        """Start a generation; when it is ready, send new requests to it, and retire the previous one."""
        fresh = Generation(self._options, front=self._front, make=self._make)
        await fresh.start(alone=self._current is None)
        address = await asyncio.shield(self._address)
        before, self._current = self._current, fresh
        self._front.serve(fresh.names, fresh.targets)
        self._do_beside(self._watch(fresh))
        if before is not None:
            self._do_beside(before.retire())
        if self._announced:
            self._say("the new version serves")
        else:
            self._announced = True
            self._terminal.show(())
            url = f"http://{address}"
            print(f"ready {url}  (to try it: {url}{DOCS_PATH})", flush=True)
            self._say(f"to look at it: {await self._page.start()}")

    async def _watch(self, generation: Generation) -> None:
        """Handle the end of a generation while it serves."""
        error = await generation.ended()
        if generation is not self._current:
            return  # it was retired
        self._current = None
        self._front.serve(generation.names, {})
        self._say_error(error)
        self._over.set()
        if self._options.reload:
            self._say("requests wait; save a change to start again")
        await generation.kill()

    async def _view(self) -> None:
        """Show queue and batches, if on a terminal."""
        before: dict[Pair, live_view.Sample] = {}
        while True:
            await asyncio.sleep(VIEW_SECONDS)
            if not self._terminal.live:
                continue
            pairs = [] if self._current is None else self._current.pairs
            samples: dict[Pair, live_view.Sample] = {}
            for pair in pairs:
                (status, queue), (_, metrics) = await pair.ask("/queue"), await pair.ask("/metrics")
                if status == 200:
                    samples[pair] = live_view.read(queue, metrics)
            lines = [live_view.line(pair.name, before.get(pair), sample) for pair, sample in samples.items()]
            self._terminal.show(lines or [f"{self._options.name}  not ready"])
            before = samples

    def _do_beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    def _say(self, text: str) -> None:
        self._terminal.say(f"penstock run: {text}")

    def _say_error(self, text: str) -> None:
        self._terminal.say(f"penstock run: {text}", level="error")
