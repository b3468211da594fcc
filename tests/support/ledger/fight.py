"""Scalers that disagree about one backend, under load, beside the tests that run meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import Load, Namespace, endpoint, ledger_backend, ledger_code
from tests.support.cluster.watched import watched

TURN = 5.0
"""Seconds between two reconciliations that the controller forces; a person scales at every fourth."""
PERSON = 0.4
"""Part of the time after which the person stops."""
HPA = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "b"},
    "spec": {
        "scaleTargetRef": {"apiVersion": "penstock.dev/v1alpha1", "kind": "ModelBackend", "name": "b"},
        "minReplicas": 2,
        "maxReplicas": 2,
    },
}


class Fight:
    """An HPA holds 2, a person wants 3, a controller reconciles again and again, and the load wants 4.

    The person stops after a part of the time. A context manager that begins it and, if it has not ended by
    itself, ends it.

    Args:
        path: a file for the states of the backend.
    """

    def __init__(self, namespace: Namespace, load: Load, *, seconds: float, path: Path) -> None:
        self.namespace = namespace
        self.seconds = seconds
        self.states: list[dict[str, Any]] = []
        """Of the backend, once it has ended."""
        self._load = load
        self._path = path
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._summary: dict[str, Any] | None = None
        self._failure: Exception | None = None
        self._watch = ExitStack()

    def __enter__(self) -> Self:
        namespace = self.namespace
        scaling = {
            "minReplicas": 1, "maxReplicas": 4, "targetLoad": 2, "stableWindow": "4s", "downscaleDelay": "2s",
        }  # fmt: skip
        slow = {"delay_ms": 400}
        backend = ledger_backend("b", collector=self._load.port, init_kwargs=slow, autoscaling=scaling)
        namespace.apply(ledger_code(), backend, endpoint("e", "b"))
        namespace.wait_ready("modelendpoint", "e")
        self._load.start(namespace.url("e"), rate=30)

        def grown() -> bool:
            return bool((namespace.get("modelbackend", "b") or {})["spec"].get("replicas", 0) >= 3)

        wait_for("the autoscaler to want more than the HPA will", grown)
        namespace.apply(HPA)
        namespace.wait_object("modelbackend", "b", "ScalingActive", "False", reason="ForeignScaler")
        self.states = self._watch.enter_context(watched(namespace, "b", self._path))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def ended(self) -> dict[str, Any]:
        """Wait for its end; returns the summary of the load.

        Raises:
            Exception: why there is none.
        """
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        assert self._summary is not None, "it was stopped before its end"
        return self._summary

    def _run(self) -> None:
        try:
            with self._watch:
                self._disagree()
            if not self._stopped.is_set():
                self._summary = self._load.stop()
        except Exception as error:  # of this thread: `ended` raises it in the test
            self._failure = error

    def _disagree(self) -> None:
        begun = time.monotonic()
        for turn in itertools.count():
            past = time.monotonic() - begun
            if past > self.seconds or self._stopped.wait(TURN):
                break
            self._kubectl("annotate", "--overwrite", "modelbackend", "b", f"example.com/turn={turn}")
            if turn % 4 == 0 and past < self.seconds * PERSON:
                self._kubectl("scale", "modelbackend", "b", "--replicas=3")
        self._kubectl("delete", "hpa", "b")

    def _kubectl(self, *arguments: str) -> None:
        """Whatever comes of it: the watch says what has been written."""
        # NB: not as `Namespace` does it, which records the answers for the waits of other tests.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.namespace.cluster.kubectl("-n", self.namespace.name, *arguments, check=False)
