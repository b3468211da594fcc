"""All states of an object that a watch sees, and who has written its replicas in each."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.cluster.cluster_waits import wait_for
from tests.support.cluster.k8s import Namespace


@contextmanager
def watched(
    namespace: Namespace, name: str, path: Path, kind: str = "modelbackend"
) -> Iterator[list[dict[str, Any]]]:
    """Every state of the object that the API server tells a watch; complete when the context has ended."""
    states: list[dict[str, Any]] = []
    asked = ("get", kind, name, "--watch", "--show-managed-fields", "-o", "json")
    command = namespace.cluster.kubectl_command("-n", namespace.name, *asked)
    with path.open("wb") as output:
        watch = subprocess.Popen(command, stdout=output)
        try:
            wait_for("the watch to begin", lambda: path.stat().st_size > 0)
            yield states
        finally:
            watch.terminate()
            watch.wait()
    text, decoder, at = path.read_text(), json.JSONDecoder(), 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        try:
            state, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            break  # the last one, cut by the end
        states.append(state)


def writer_of_replicas(live: dict[str, Any]) -> str:
    """Who wrote `spec.replicas` through `/scale` last; empty before anybody did."""
    writers = [
        entry["manager"]
        for entry in live["metadata"]["managedFields"]
        if "f:replicas" in entry["fieldsV1"].get("f:spec", {}) and entry.get("subresource") == "scale"
    ]
    assert len(writers) <= 1, writers
    return str(writers[0]) if writers else ""
