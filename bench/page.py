"""`python -m bench.page`: `kubectl penstock ui` in a real browser, on a cluster with a thousand backends.

The cluster is the kubeconfig's, with the chart or with `crds/` alone; `--cluster NAME` is a devcluster. The
bench makes a namespace of its own with suspended backends, and removes it. A round has the API server's CPU
(by its `/metrics`; with several API servers, of one) under changes of statuses, without the command and with
it and a page; between them the time to the first view, and from changes to the page. `--minutes 60` leaves a
page open instead, and says what it and the command hold on to.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import itertools
import re
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from kubernetes.client.api.core_v1_api import CoreV1Api

from bench.control_resources import backend, namespace
from bench.figures import Figures
from bench.processes import cpu_seconds, rss_mb
from devcluster.cluster import Cluster as Devcluster
from penstock_cli.cluster import GROUP, PLURALS, VERSION, Cluster

# NB: not by an import, which would have the tests' helpers checked as strictly as the product.
browser: Any = importlib.import_module("tests.support.processes.browser")

EVENTS = 8
"""Changes of a round whose way to the page is timed."""
REST_SECONDS = 1.0
KIND = "ModelBackend"
_VIEWED = """new MutationObserver((_, watcher) => {
  if (document.querySelectorAll(".rows > li").length < %d) return;
  watcher.disconnect();
  requestAnimationFrame(() => setTimeout(() => { window.viewed = Date.now(); }));
}).observe(document, {childList: true, subtree: true});"""
_SEEN = """return await new Promise(done => {
  const look = (_, watcher) => {
    const row = document.querySelector('[data-key="ModelBackend/%s"]').closest("li");
    if (!row.textContent.includes("%s")) return;
    watcher.disconnect();
    requestAnimationFrame(() => done(Date.now()));
  };
  new MutationObserver(look).observe(document.querySelector("main"), {childList: true, subtree: true});
});"""
_UNTIL = "while (!(%s)) await new Promise(done => setTimeout(done, 20)); return %s;"


def main(argv: list[str] | None = None) -> int:
    """Run the command."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--kubeconfig", help="of the cluster (default: kubectl's)")
    options.add_argument("--cluster", help="a devcluster's name instead")
    options.add_argument("--backends", type=int, default=1000)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=15, help="that the CPU is counted over")
    options.add_argument("--changes", type=float, default=10, help="of statuses, a second")
    options.add_argument("--minutes", type=float, default=0, help="leave one page open so long instead")
    asked = options.parse_args(argv)
    if asked.cluster:
        asked.kubeconfig = str(Devcluster(asked.cluster).host_kubeconfig)
    with Made(asked.kubeconfig, asked.backends) as made, tempfile.TemporaryDirectory() as folder:
        if asked.minutes:
            with made.changing(asked.changes):
                asyncio.run(left_open(made, asked.minutes, Path(folder)))
        else:
            asyncio.run(rounds(made, asked, Path(folder)))
    return 0


class Made:
    """A namespace with backends, whose statuses can be changed; a context manager.

    Args:
        kubeconfig: its path; None for kubectl's.
        count: how many backends.
    """

    def __init__(self, kubeconfig: str | None, count: int) -> None:
        self.name = f"bench-page-{secrets.token_hex(2)}"
        self.kubeconfig, self.count = kubeconfig, count
        self._numbers = itertools.count(2)
        self._cluster = Cluster.connect(kubeconfig, None, self.name)
        self._core: Any = CoreV1Api(self._cluster.api.api_client)

    def __enter__(self) -> Self:
        self._core.create_namespace(namespace(self.name))
        began = time.monotonic()
        try:
            with ThreadPoolExecutor(8) as workers:
                list(workers.map(self._make, range(self.count)))
        except BaseException:
            self.__exit__()
            raise
        print(f"{self.count} backends in {time.monotonic() - began:.0f} s", flush=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._core.delete_namespace(self.name)

    def of(self, number: int) -> str:
        """The name of a backend."""
        return f"model-{number % self.count:04}"

    def _make(self, number: int) -> None:
        body = backend(self.of(number), self.name)
        body["spec"]["suspend"] = True  # an operator that is there writes its status, and makes no pods
        where = (GROUP, VERSION, self.name, PLURALS[KIND])
        self._cluster.api.create_namespaced_custom_object(*where, body)
        self.change(number, 1)

    def change(self, number: int, queued: int) -> None:
        """Write a backend's load into its status."""
        self._cluster.api.patch_namespaced_custom_object_status(
            *(GROUP, VERSION, self.name, PLURALS[KIND], self.of(number)),
            {"status": {"load": {"queued": queued, "ongoing": 1}}},
            _content_type="application/merge-patch+json",
        )

    @contextlib.contextmanager
    def changing(self, rate: float) -> Iterator[None]:
        """Change backends one after the other, so many a second.

        Raises:
            ApiException: a change failed.
        """
        going = True

        def run() -> None:
            began = time.monotonic()
            for turn in itertools.count(1):
                time.sleep(max(0.0, began + turn / rate - time.monotonic()))
                if not going:
                    return
                number = next(self._numbers)  # not from the start again: what changes nothing is no event
                self.change(number * 7, number)

        with ThreadPoolExecutor(1) as worker:
            done = worker.submit(run)
            try:
                yield
            finally:
                going = False
            done.result()

    def cpu(self) -> float:
        """CPU seconds of the API server so far."""
        metrics = self._cluster.call("/metrics").data
        return float(re.findall(rb"(?m)^process_cpu_seconds_total (\S+)$", metrics)[0])


@contextlib.contextmanager
def command(made: Made, folder: Path) -> Iterator[tuple[str, int]]:
    """The page's URL, and the process id of the command that serves it."""
    words = [sys.executable, "-m", "penstock_cli", "ui", "--no-browser", "-n", made.name]
    words += ["--kubeconfig", made.kubeconfig] if made.kubeconfig else []
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().removeprefix("Penstock: ").strip()
            if not url:
                raise SystemExit(f"{' '.join(words)}: has ended, see above")
            # What it prints later must not fill the pipe, at which it would wait.
            threading.Thread(target=deque, args=(process.stdout, 0), daemon=True).start()
            yield url, process.pid
        finally:
            process.send_signal(signal.SIGTERM)


@contextlib.asynccontextmanager
async def viewed(made: Made, folder: Path, figures: Figures) -> AsyncIterator[tuple[Any, int]]:
    """A page with all rows: calls of its DevTools, and the command's process id."""
    profile = folder / secrets.token_hex(4)
    async with browser.devtools("about:blank", profile, seconds=None) as call:
        await call("Page.enable")
        await call("Page.addScriptToEvaluateOnNewDocument", source=_VIEWED % made.count)
        began = time.time()
        with command(made, folder) as (url, pid):
            printed = time.time()
            await call("Page.navigate", url=url)
            at = await browser.until_run(call, _UNTIL % ("window.viewed", "window.viewed"))
            figures.add("command prints its URL after", printed - began, "s")
            figures.add("first view after", at / 1000 - printed, "s")
            yield call, pid


async def rounds(made: Made, asked: argparse.Namespace, folder: Path) -> None:
    """Measure, and print each figure's least, median and greatest."""
    figures = Figures()
    for number in range(asked.rounds):
        sides: dict[bool, float] = {}
        for page in (True, False) if number % 2 else (False, True):
            async with contextlib.AsyncExitStack() as stack:
                pid = 0
                if page:
                    call, pid = await stack.enter_async_context(viewed(made, folder, figures))
                    await events(made, call, figures)
                await asyncio.sleep(REST_SECONDS)
                used = await counted(made, asked, pid, call if page else None, figures)
                sides[page] = used
                figures.add(f"API server's CPU {'with' if page else 'without'} a page", used, "% of a core")
        figures.add("API server's CPU for the page", sides[True] - sides[False], "% of a core")
        print(f"round {number + 1}: {sides[False]:.1f} % without, {sides[True]:.1f} % with", flush=True)
    for key, each in figures.document().items():
        print(
            f"{key}: {each['min']:.2f} {each['median']:.2f} {each['max']:.2f} {each['unit']} (n={each['n']})"
        )


async def events(made: Made, call: Any, figures: Figures) -> None:
    """Time changes until the page shows them."""
    for number in range(EVENTS):
        words = f"{secrets.randbelow(10**6) + 1000} queued"
        look = asyncio.create_task(browser.until_run(call, _SEEN % (made.of(number * 131), words)))
        await asyncio.sleep(0.3 + number * 0.07)  # it watches; and not always in the same part of its turn
        began = time.time()
        await asyncio.to_thread(made.change, number * 131, int(words.split()[0]))
        figures.add("a change is visible after", await look / 1000 - began, "s")


async def counted(made: Made, asked: argparse.Namespace, pid: int, call: Any, figures: Figures) -> float:
    """The API server's CPU under changes, in percent of a core; of command and browser, too."""
    with made.changing(asked.changes):
        await asyncio.sleep(REST_SECONDS)
        began, before = time.monotonic(), await asyncio.to_thread(made.cpu)
        own, busy = (cpu_seconds(pid), await task_seconds(call)) if pid else (0.0, 0.0)
        await asyncio.sleep(asked.seconds)
        if pid:
            took = time.monotonic() - began
            figures.add("command's CPU", (cpu_seconds(pid) - own) / took * 100, "% of a core")
            figures.add("page's main thread", (await task_seconds(call) - busy) / took * 100, "% of a core")
            figures.add("command's memory", rss_mb(pid), "MB")
        after = await asyncio.to_thread(made.cpu)
        return (after - before) / (time.monotonic() - began) * 100


async def task_seconds(call: Any) -> float:
    """What the page's main thread has worked so far."""
    await call("Performance.enable", timeDomain="threadTicks")
    said = await call("Performance.getMetrics")
    return float({each["name"]: each["value"] for each in said["result"]["metrics"]}["TaskDuration"])


async def left_open(made: Made, minutes: float, folder: Path) -> None:
    """Look each minute at what a page and its command hold.

    Before each look the page goes to a backend's view and back. Prints each look, and at the end the means of
    the middle half and of the last quarter.
    """
    kept: list[dict[str, float]] = []
    async with viewed(made, folder, Figures()) as (call, pid):
        ends = time.monotonic() + minutes * 60
        for number in itertools.count():
            begun = time.monotonic()
            place = f"#/{KIND}/{made.name}/{made.of(number)}"
            await turn(call, place, "document.querySelector('[data-panel=time]:not([hidden])')")
            await asyncio.sleep(max(0.0, min(20, ends - begun)))
            await turn(call, "#/", "document.querySelector('.rows > li')")
            await asyncio.sleep(max(2.0, begun + 58 - time.monotonic()))
            kept.append(await held(call, pid))
            print(f"{number + 1} min: " + ", ".join(f"{n} {v:.6g}" for n, v in kept[-1].items()), flush=True)
            if time.monotonic() >= ends:
                break
    quarter = len(kept) // 4
    for name in kept[-1]:
        middle, last = (
            statistics.mean(each[name] for each in part)
            for part in (kept[quarter : 3 * quarter] or kept, kept[3 * quarter :])
        )
        print(f"{name}: {middle:.6g} in the middle half, {last:.6g} in the last quarter")


async def turn(call: Any, place: str, wanted: str) -> None:
    """Go to a view and wait for something of it."""
    await browser.until_run(call, f"location.hash = {place!r}; " + _UNTIL % (wanted, "0"))


async def held(call: Any, pid: int) -> dict[str, float]:
    """What a page and its command hold after garbage was collected."""
    await call("HeapProfiler.collectGarbage")
    heap = (await call("Runtime.getHeapUsage"))["result"]
    counters = (await call("Memory.getDOMCounters"))["result"]
    return {
        "JS heap, MB": heap["usedSize"] / 1e6,
        "DOM nodes": counters["nodes"],
        "listeners": counters["jsEventListeners"],
        "documents": counters["documents"],
        "command, MB": rss_mb(pid),
        "sockets": await asyncio.to_thread(sockets, pid),
    }


def sockets(pid: int) -> float:
    """The sockets that a process has open."""
    count = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            count += each.readlink().name.startswith("socket:")
    return float(count)


if __name__ == "__main__":
    sys.exit(main())
