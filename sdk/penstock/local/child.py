"""A program that runs as a child process: its ready line, its output, its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping

from penstock.local.ending import Guard, end_group
from penstock.local.nodes import MARK, Node, read

MAX_LINE = 1024 * 1024
"""Characters of a line of output; what is longer is shown in parts."""

Say = Callable[[str], None]
"""Takes a line of a child's output."""


class NotReady(Exception):
    """A child ended, or was ended, before it was ready."""


class IsApplication(Exception):
    """A child found that its target has several nodes.

    Args:
        nodes: the one that clients call is the last.
    """

    def __init__(self, nodes: list[Node]) -> None:
        super().__init__(f"an application of {', '.join(node.name for node in nodes)}")
        self.nodes = nodes


class Child:
    """`python -m PROGRAM` in a process group of its own; made by `start`.

    Args:
        process: as it was started.
        name: how people call it.
        say: takes its lines, without the ready line.
        guard: ends its group if this process ends first.
    """

    def __init__(self, process: asyncio.subprocess.Process, name: str, say: Say, guard: Guard) -> None:
        self.name = name
        self._process = process
        self._say = say
        self._guard = guard
        self._ready: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        self._run = asyncio.create_task(self._follow())

    @classmethod
    async def start(
        cls, name: str, arguments: list[str], *, environment: Mapping[str, str], say: Say, guard: Guard
    ) -> Child:
        """Start it.

        Args:
            name: how people call it.
            arguments: behind `python -m`.
            environment: all of its environment.
            say: takes its lines, without the ready line.
            guard: ends its group if this process ends first.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        guard.add(process.pid)
        return cls(process, name, say, guard)

    async def ready(self) -> dict[str, str]:
        """Wait for the line `ready NAME=VALUE …`; returns its values.

        Raises:
            NotReady: it ended before; its own last line says why.
            IsApplication: it names the nodes instead.
        """
        return await asyncio.shield(self._ready)

    async def ended(self) -> int:
        """Wait for its end, and that of its output; returns its exit code, negative for a signal."""
        return await asyncio.shield(self._run)

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return not self._run.done()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def end(self, number: signal.Signals, seconds: float) -> None:
        """Send a signal, wait for its end as long as this, then kill it with all that it started.

        One that is not ready has nothing to bring to an end, and is killed at once.
        """
        if self._ready.done():
            self.send(number)
            await asyncio.wait((self._run,), timeout=seconds)
        await self.kill()

    async def kill(self) -> None:
        """End it at once, with all that it started."""
        if self.running:
            end_group(self._process.pid)
        await self.ended()

    async def _follow(self) -> int:
        outputs = ((self._process.stdout, self._line), (self._process.stderr, self._say))
        readers = [asyncio.create_task(_read(stream, take)) for stream, take in outputs if stream is not None]
        code = await self._process.wait()
        # What it started may run on, and hold its output open.
        end_group(self._process.pid)
        self._guard.remove(self._process.pid)
        await asyncio.gather(*readers)
        if not self._ready.done():
            self._ready.set_exception(
                NotReady(f"the {self.name} ended with exit code {code} before it was ready")
            )
            self._ready.exception()  # whoever waits gets it; nobody has to
        return code

    def _line(self, line: str) -> None:
        if line.startswith("ready data=") and not self._ready.done():
            fields = (part.partition("=") for part in line.split()[1:])
            self._ready.set_result({name: value for name, _, value in fields})
        elif line.startswith(MARK) and not self._ready.done():
            self._ready.set_exception(IsApplication(read(line)))
            self._ready.exception()  # whoever waits gets it; nobody has to
        else:
            self._say(line)


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
    """All children of a session, those too that are being started.

    Args:
        guard: ends what is left if this process ends first.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._starts: set[asyncio.Task[Child]] = set()

    async def start(
        self, name: str, arguments: list[str], *, environment: Mapping[str, str], say: Say
    ) -> Child:
        """Start one; arguments as for `Child.start`."""
        start = Child.start(name, arguments, environment=environment, say=say, guard=self._guard)
        starting = asyncio.create_task(start)
        self._starts = {each for each in self._starts if not each.done() or _runs(each)} | {starting}
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:  # nobody else knows of it
            await (await starting).kill()
            raise

    async def end(self, number: signal.Signals, seconds: float) -> None:
        """End all of them.

        Args:
            number: a signal to each.
            seconds: what they have to end by themselves.
        """
        started = [child for child in await asyncio.gather(*self._starts) if child.running]
        await asyncio.gather(*(child.end(number, seconds) for child in started))


def _runs(start: asyncio.Task[Child]) -> bool:
    return start.exception() is None and start.result().running


def environment(**more: str) -> dict[str, str]:
    """The user's environment without what would make one of our programs another than the command says.

    Args:
        more: variables beside it.
    """
    ours = ("PENSTOCK_", "KUBERNETES_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | more
