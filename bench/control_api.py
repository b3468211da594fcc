"""The bench's own way to the apiserver, and the operator's process as the kernel and `/metrics` show it.

The client is as lean as one gets in Python (bodies are encoded beforehand, answers are not parsed unless they
are wanted): what the operator is compared with must not be slow by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Self

import aiohttp

Obj = dict[str, Any]
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


class ApiError(Exception):
    """The apiserver refused; has what it said."""


class Api:
    """The apiserver as its administrator.

    Args:
        pki: folder with `ca.crt`, `admin.crt` and `admin.key`.
        server: base URL.
        connections: kept at once.
    """

    def __init__(self, pki: Path, server: str, *, connections: int = 16) -> None:
        self._server = server
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(str(pki / "admin.crt"), str(pki / "admin.key"))
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=connections),
            timeout=aiohttp.ClientTimeout(total=60),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def send(self, method: str, path: str, body: bytes | None = None, *, form: str = MERGE) -> bytes:
        """Make one call and return what it answered, unread.

        Raises:
            ApiError: the answer is an error.
        """
        headers = {"content-type": form if method == "PATCH" else "application/json"}
        async with self._session.request(method, self._server + path, data=body, headers=headers) as answer:
            data = await answer.read()
            if answer.status >= 300:
                raise ApiError(f"{method} {path}: {answer.status} {data[:300].decode(errors='replace')}")
            return data

    async def call(self, method: str, path: str, body: Obj | None = None, *, form: str = MERGE) -> Obj:
        """Make one call and read its answer."""
        answer: Obj = json.loads(
            await self.send(method, path, None if body is None else json.dumps(body).encode(), form=form)
        )
        return answer

    async def items(self, path: str) -> list[Obj]:
        """A list, in one page."""
        objects: list[Obj] = (await self.call("GET", path)).get("items") or []
        return objects

    async def watch(
        self, path: str, *, opened: Callable[[], None] = lambda: None
    ) -> AsyncIterator[tuple[str, Obj]]:
        """The changes of a collection from now on: type and object.

        Args:
            path: the collection's.
            opened: called when nothing is missed any more.
        """
        version = (await self.call("GET", f"{path}?limit=1"))["metadata"]["resourceVersion"]
        url = f"{self._server}{path}?watch=true&resourceVersion={version}"
        forever = aiohttp.ClientTimeout(total=None)
        async with self._session.get(url, timeout=forever) as answer:
            opened()
            buffer = b""
            async for chunk in answer.content.iter_any():
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    yield event["type"], event["object"]

    async def many(self, calls: Sequence[tuple[str, str, bytes, str]], *, workers: int) -> float:
        """Make calls (method, path, body, form), so many at once; returns seconds."""
        left = iter(calls)

        async def work() -> None:
            for method, path, body, form in left:
                await self.send(method, path, body, form=form)

        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(workers):
                tasks.create_task(work())
        return time.monotonic() - began


_SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? ([0-9.eE+-]+|NaN|\+Inf)$", re.MULTILINE)


class Operator:
    """One run of the operator.

    Args:
        command: how it is started.
        url: its control server's.
        log: file that its lines are added to.
        env: its environment.
    """

    def __init__(self, command: Sequence[str], *, url: str, log: Path, env: dict[str, str]) -> None:
        self._url, self._log = url, log
        self.began = time.monotonic()
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env
            )
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End it, in order where it follows."""
        await self._session.close()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, 20)
        if self._process.poll() is None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    async def metrics(self) -> dict[tuple[str, str], float]:
        """The server's counters: (name, labels) → value; empty until it answers."""
        self._check()
        try:
            async with self._session.get(f"{self._url}/metrics") as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError):
            return {}
        return {(name, labels): float(value) for name, labels, value in _SAMPLE.findall(text)}

    async def writes(self) -> dict[str, float]:
        """The writes so far: `verb Kind` → count."""
        counts = {}
        for (name, labels), value in (await self.metrics()).items():
            if name == "penstock_operator_writes_total":
                pairs = dict(re.findall(r'(\w+)="([^"]*)"', labels))
                counts[f"{pairs['verb']} {pairs['kind']}"] = value
        return counts

    async def quiet(self, *, seconds: float, within: float) -> tuple[float, float]:
        """Wait until it has had nothing to do for so long.

        Args:
            seconds: how long without a reconcile.
            within: how long to wait at most.

        Returns:
            When it last began or ended a reconcile, monotonic, and how many it made.
        """
        deadline = time.monotonic() + within
        last, changed = -1.0, time.monotonic()
        while time.monotonic() < deadline:
            metrics = await self.metrics()
            runs = sum(
                value
                for (name, _), value in metrics.items()
                if name in ("penstock_operator_reconcile_duration_seconds_count", "workqueue_adds_total")
            )
            waiting = sum(value for (name, _), value in metrics.items() if name == "workqueue_depth")
            if not metrics or runs != last or waiting or not runs:
                last, changed = runs, time.monotonic()
            elif time.monotonic() - changed >= seconds:
                done = metrics.get(("workqueue_work_duration_seconds_count", 'name="reconcile"'), 0.0)
                return changed, done
            await asyncio.sleep(1.0)  # oftener, an address gets no metrics
        raise TimeoutError(f"the operator was not quiet for {seconds} s within {within} s")

    def _check(self) -> None:
        if self._process.poll() is not None:
            raise RuntimeError(f"the operator ended: {self._log.read_text()[-1500:]}")

    def cpu(self) -> float:
        """CPU seconds that it has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def runnable(self) -> bool:
        """Whether one of its threads runs now, or waits for a processor.

        Raises:
            RuntimeError: it has ended.
        """
        self._check()
        for task in Path(f"/proc/{self._process.pid}/task").iterdir():
            with contextlib.suppress(OSError):
                if (task / "stat").read_text().rpartition(") ")[2].startswith("R"):
                    return True
        return False

    def threads(self) -> str:
        """CPU seconds of its busiest threads, as `name seconds`; the main thread bears the program's name."""
        used = []
        for task in Path(f"/proc/{self._process.pid}/task").iterdir():
            with contextlib.suppress(OSError):
                name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(") ")
                fields = rest.split()
                seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                used.append((seconds, f"{name or task.name} {seconds:.1f}"))
        return ", ".join(text for _, text in sorted(used, reverse=True)[:4])

    def memory(self) -> tuple[float, float]:
        """Resident memory now and at its highest, MB (10^6 bytes)."""
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        sizes = dict(re.findall(r"^(VmRSS|VmHWM):\s*(\d+) kB", text, re.MULTILINE))
        return int(sizes["VmRSS"]) * 1024 / 1e6, int(sizes["VmHWM"]) * 1024 / 1e6
