"""Reads the metrics of pods through the API server's proxy, while a view that shows them is open.

So it needs no right but the user's own (`get` of `pods/proxy`), and no way to the pods.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from penstock_cli.cluster import Cluster, body, cause
from penstock_cli.ui.store import Store
from penstock_wire.page.measures import Scraped

EVERY = 2.0
"""Seconds between two scrapes of a pod."""
IDLE = 15.0
"""Seconds after which a pod that no view asks for is forgotten."""
SECONDS = 4.0
"""The most that a scrape takes."""
AT_ONCE = 8
MOST_A_SECOND = 4
"""Scrapes; of more pods each is read less often. Four cost the API server some 2 % of a core, ten 4 % (its
CPU seconds in 12 s with them, less those in 12 s without; two loaded cores, a port that refuses)."""
AGAIN = 15.0
"""Seconds until a pod that could not be read is tried again: others do not wait for it each time."""
MOST_BYTES = 4 * 1024 * 1024
"""Of a scrape."""


@dataclass(frozen=True, slots=True)
class Target:
    """A pod's metrics.

    Args:
        namespace: the pod's.
        pod: its name.
        port: of its metrics.
        prefix: of the names of the metrics that are kept.
        of: the namespace whose series are asked for, of a pod that serves many; empty for all series.
    """

    namespace: str
    pod: str
    port: int
    prefix: str
    of: str = ""


class Scrapes:
    """The scrapes of all pods that open views show.

    Args:
        cluster: where to read.
        store: is told of new values.
    """

    def __init__(self, cluster: Cluster, store: Store) -> None:
        self._cluster = cluster
        self._store = store
        self._lock = threading.Lock()
        self._known: dict[Target, Scraped] = {}
        self._closed = threading.Event()
        self._work: queue.Queue[tuple[Target, Scraped] | None] = queue.Queue()
        names = (self._run, *(self._scrape_some,) * AT_ONCE)
        self._threads = [threading.Thread(target=each, daemon=True, name="scrapes") for each in names]

    def start(self) -> None:
        """Begin to scrape what is asked for."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Scrape nothing more."""
        self._closed.set()
        for _ in range(AT_ONCE):
            self._work.put(None)

    def of(self, targets: Iterable[Target]) -> dict[str, Scraped]:
        """What is known of some pods, by name; they are scraped from now on while they are asked for.

        Args:
            targets: the pods.
        """
        now = time.monotonic()
        found = {}
        with self._lock:
            for target in targets:
                scraped = self._known.setdefault(target, Scraped(now))
                scraped.asked = now
                found[target.pod] = scraped
        return found

    def _run(self) -> None:
        while not self._closed.wait(0.2):
            began = time.monotonic()
            with self._lock:
                for target in [each for each, known in self._known.items() if known.asked < began - IDLE]:
                    del self._known[target]
                known = [each for each in self._known.items() if each[1].due <= began]
            if not known:
                continue
            for each in known:
                self._work.put(each)
            self._work.join()
            self._store.touch()
            self._closed.wait(max(EVERY, len(known) / MOST_A_SECOND) - (time.monotonic() - began))

    def _scrape_some(self) -> None:
        # NB: not an executor's threads, which the end of the process would wait for.
        while (work := self._work.get()) is not None:
            try:
                self._scrape(*work)
            except Exception as error:  # what a pod answers may break the parser in any way
                known = isinstance(error, LookupError | ValueError)
                # A pod's 404 says nothing of the API group, of which `cause` speaks.
                work[1].problem = repr(error) if known else cause(error).partition("; does it serve")[0]
                work[1].due = time.monotonic() + AGAIN
            finally:
                self._work.task_done()

    def _scrape(self, target: Target, scraped: Scraped) -> None:
        of = dataclasses.replace(self._cluster, namespace=target.namespace)
        path, query = f"pods/{target.pod}:{target.port}/proxy/metrics", {"namespace": target.of}
        answer = of.call(of.path(path), query if target.of else {}, seconds=SECONDS)
        text, whole = body(answer, most=MOST_BYTES, seconds=SECONDS)
        if not whole:
            raise ValueError(f"expected all metrics within {MOST_BYTES} bytes and {SECONDS:g} s")
        scraped.add(text, target.prefix)
        scraped.problem = ""
