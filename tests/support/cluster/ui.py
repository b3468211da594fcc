"""The page of `kubectl penstock ui`, served by a process of the command."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.support.cluster.k8s import Namespace


class UserPage:
    """The page that a process of the command serves."""

    def __init__(self, url: str) -> None:
        self.url, _, token = url.partition("#token=")
        self._headers = {"authorization": f"Bearer {token}"}

    def ask(self, path: str, body: Any = None) -> Any:
        """What the page gets, as JSON."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, data=data, headers=self._headers)  # noqa: S310 - of loopback
        with urlopen(request, timeout=60) as answer:  # noqa: S310
            return json.loads(answer.read())

    def view(self, kind: str, namespace: str, name: str) -> Any:
        """A view, as JSON."""
        return self.ask(f"api/view/{kind}/{namespace}/{name}")["view"]


@contextlib.contextmanager
def user_page(namespace: Namespace, folder: Path) -> Iterator[str]:
    """The URL of the page, which shows a namespace."""
    command = [sys.executable, "-m", "penstock_cli", "ui", "--no-browser", "-n", namespace.name]
    command += ["--kubeconfig", str(namespace.cluster.host_kubeconfig)]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[1]
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
