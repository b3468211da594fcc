"""A program in a child process: its ready line, its output, its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from penstock.local.ending import Guard, end_group
from penstock.local.nodes import MARK, SETTINGS, NodeDocument, read
from penstock_wire.contract import LOCAL_ONLY_ENV

MAX_LINE = 1024 * 1024
"""The most characters of a line of output; a longer line is shown in parts."""

KEPT = ("PENSTOCK_ACCESS_LOG",)
"""The user's variables for our programs that apply: they change only what is shown."""

_OURS = rf"(ready data=\S+( admin=\S+)?|{MARK}\[\{{.*\}}\]|{SETTINGS}\{{.*\}})$"
"""A line of ours, after the child's mark: the ready line, an application's nodes, or a class's settings."""

Say = Callable[[str], None]
"""Takes a line of a child's output."""


class NotReady(Exception):
    """A child ended, by itself or by a signal, before it was ready."""


class IsApplication(Exception):
    """The target of a child is an application.

    Args:
        nodes: its nodes; clients call the last one.
    """

    def __init__(self, nodes: list[NodeDocument]) -> None:
        super().__init__(f"an application of {', '.join(node.name for node in nodes)}")
        self.nodes = nodes


class Child:
    """`python -P -m PROGRAM` in its own process group; made by `start`.

    Args:
        process: the started process.
        name: its name in messages.
        say: takes its lines, except for the ready line.
        guard: ends its group if this process ends first.
        mark: begins its lines of ours, so that user code in it prints none by chance.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, name: str, say: Say, guard: Guard, mark: str
    ) -> None:
        self.name = name
        self._process = process
        self._say = say
        self._guard = guard
        self._ours = re.compile(re.escape(mark) + _OURS)
        self._ready: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        self._settings: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._run = asyncio.create_task(self._follow())

    @classmethod
    async def start(
        cls,
        name: str,
        arguments: list[str],
        *,
        environment: Mapping[str, str],
        say: Say,
        guard: Guard,
        mark: str = "",
    ) -> Child:
        """Start a child.

        Args:
            name: its name in messages.
            arguments: the arguments after `python -m`.
            environment: its whole environment.
            say: takes its lines, except for the ready line.
            guard: ends its group if this process ends first.
            mark: see `Child`.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # no file here hides a module of Python's from ours
            "-m",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        guard.add(process.pid)
        return cls(process, name, say, guard, mark)

    async def ready(self) -> dict[str, str]:
        """Wait for the line `ready NAME=VALUE …`; return its values.

        Raises:
            NotReady: it ended before, and its own last line has the cause; or its output cannot be read.
            IsApplication: it listed an application's nodes instead.
        """
        return await asyncio.shield(self._ready)

    async def settings(self) -> dict[str, Any]:
        """Wait until a model server has imported its class; return the settings that the class gives.

        Raises:
            NotReady: as for `ready`.
            IsApplication: as for `ready`.
        """
        await asyncio.wait((self._settings, self._ready), return_when=asyncio.FIRST_COMPLETED)
        if not self._settings.done():
            await self.ready()
        return self._settings.result()

    async def ended(self) -> int:
        """Wait for its end, and for that of its output; return its exit code, negative for a signal."""
        return await asyncio.shield(self._run)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return not self._run.done()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it is running."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def end(self, number: signal.Signals, seconds: float) -> None:
        """Send a signal, wait for its end for some seconds, then kill it with all processes that it started.

        A child that is not ready has no work to complete, and is killed at once.
        """
        if self._ready.done():
            self.send(number)
            await asyncio.wait((self._run,), timeout=seconds)
        await self.kill()

    async def kill(self) -> None:
        """Kill it, with all processes that it started."""
        if self.running:
            end_group(self._process.pid)
        await self.ended()

    async def _follow(self) -> int:
        outputs = ((self._process.stdout, self._line), (self._process.stderr, self._say))
        readers = [
            asyncio.create_task(self._reads(stream, take)) for stream, take in outputs if stream is not None
        ]
        code = await self._process.wait()
        # Processes that it started can run on, and keep its output open.
        end_group(self._process.pid)
        self._guard.remove(self._process.pid)
        await asyncio.gather(*readers)
        if not self._ready.done():
            self._fail(NotReady(f"the {self.name} ended with exit code {code} before it was ready"))
        return code

    async def _reads(self, stream: asyncio.StreamReader, take: Say) -> None:
        try:
            await _read(stream, take)
        except Exception as error:
            if self._ready.done():
                raise
            self._fail(NotReady(f"the {self.name}'s output cannot be read: {error}"))
            while await stream.read(64 * 1024):  # else a full pipe keeps it from its end
                pass

    def _fail(self, error: Exception) -> None:
        self._ready.set_exception(error)
        self._ready.exception()  # mark as retrieved: possibly nothing waits for it

    def _line(self, line: str) -> None:
        # NB: user code can have printed before it, without the end of a line.
        ours = None if self._ready.done() else self._ours.search(line)
        if ours is None:
            self._say(line)
            return
        if ours.start():
            self._say(line[: ours.start()])
        line = ours[1]
        if line.startswith(SETTINGS):
            self._settings.set_result(json.loads(line.removeprefix(SETTINGS)))
        elif line.startswith(MARK):
            self._fail(IsApplication(read(line)))
        else:
            fields = (part.partition("=") for part in line.split()[1:])
            self._ready.set_result({name: value for name, _, value in fields})


async def _read(stream: asyncio.StreamReader, take: Say) -> None:
    rest = b""
    while chunk := await stream.read(64 * 1024):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_LINE:
            lines, rest = [*lines, rest], b""
        for line in lines:
            take(line.decode("utf-8", "replace").rstrip("\r"))
    if rest:
        take(rest.decode("utf-8", "replace"))


class Children:
    """All children of a session, including those that are being started.

    Args:
        guard: ends the remaining children if this process ends first.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._starts: set[asyncio.Task[Child]] = set()

    async def start(
        self, name: str, arguments: list[str], *, environment: Mapping[str, str], say: Say, mark: str = ""
    ) -> Child:
        """Start a child; arguments as for `Child.start`."""
        start = Child.start(name, arguments, environment=environment, say=say, guard=self._guard, mark=mark)
        starting = asyncio.create_task(start)
        self._starts = {each for each in self._starts if not each.done() or _runs(each)} | {starting}
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:  # the caller does not get the child, so end it here
            await (await starting).kill()
            raise

    async def end(self, number: signal.Signals, seconds: float) -> None:
        """End all of them.

        Args:
            number: the signal to send.
            seconds: time that they have to end by themselves.
        """
        started = [child for child in await asyncio.gather(*self._starts) if child.running]
        await asyncio.gather(*(child.end(number, seconds) for child in started))


def _runs(start: asyncio.Task[Child]) -> bool:
    return start.exception() is None and start.result().running


def environment(**more: str) -> dict[str, str]:
    """Return a child's environment: the user's, without variables that would reconfigure our programs.

    Web pages of other sites reach none of its ports (`LOCAL_ONLY_ENV`).

    Args:
        more: variables to add.
    """
    ours = ("PENSTOCK_", "KUBERNETES_")
    theirs = os.environ.items()
    kept = {name: value for name, value in theirs if name in KEPT or not name.startswith(ours)}
    return kept | {LOCAL_ONLY_ENV: "1"} | more
