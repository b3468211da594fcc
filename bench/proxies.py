"""Starts the proxies between a caller and an origin, for the bench: the router, nginx, HAProxy.

All are set up to do nothing but pass requests on over kept connections, on one thread, with logs off.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import processes
from bench.processes import Server
from bench.venvs import NotInstalledError

PACKAGES = {"nginx": "nginx-light", "haproxy": "haproxy"}
"""The Debian package of each."""
_SBIN = "/usr/sbin:/usr/local/sbin"

NGINX = """daemon off;
pid {folder}/nginx.pid;
error_log stderr error;
worker_processes 1;
{user}
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream origin {{
    server 127.0.0.1:{origin};
    keepalive 256;
    keepalive_requests 1000000000;
  }}
  server {{
    listen 127.0.0.1:{port};
    keepalive_requests 1000000000;
    location / {{
      proxy_pass http://origin;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
    }}
  }}
}}
"""

HAPROXY = """global
  nbthread 1
  maxconn 4096
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend callers
  bind 127.0.0.1:{port}
  default_backend origin
backend origin
  server origin 127.0.0.1:{origin}
"""


def program(name: str) -> str:
    """The path of nginx or HAProxy.

    Raises:
        NotInstalledError: It is not installed; says what to do.
    """
    path = shutil.which(name) or shutil.which(name, path=_SBIN)
    if path is None:
        raise NotInstalledError(f"no {name} on PATH: apt-get install {PACKAGES[name]}")
    return path


def version(name: str) -> str:
    """The version of nginx or HAProxy as it says it itself (raises NotInstalledError)."""
    done = subprocess.run([program(name), "-v"], capture_output=True, text=True, check=False)
    match = re.search(r"\d+\.\d+\.\d+", done.stdout + done.stderr)
    return match[0] if match else "unknown"


@contextlib.contextmanager
def nginx(origin: Server, *, core: int) -> Iterator[Server]:
    """Start nginx before an origin (raises NotInstalledError)."""
    path, user = program("nginx"), "" if os.geteuid() else "user root;"
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        port, file = processes.free_port(), Path(folder) / "nginx.conf"
        file.write_text(NGINX.format(folder=folder, user=user, origin=origin.port, port=port))
        with _answering([path, "-p", folder, "-c", str(file)], origin, port, core=core) as server:
            yield server


@contextlib.contextmanager
def haproxy(origin: Server, *, core: int) -> Iterator[Server]:
    """Start HAProxy before an origin (raises NotInstalledError)."""
    path = program("haproxy")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        port, file = processes.free_port(), Path(folder) / "haproxy.cfg"
        file.write_text(HAPROXY.format(origin=origin.port, port=port))
        with _answering([path, "-db", "-q", "-f", str(file)], origin, port, core=core) as server:
            yield server


@contextlib.contextmanager
def _answering(command: Sequence[str], origin: Server, port: int, *, core: int) -> Iterator[Server]:
    with processes.running(command, core=core) as (process, log):
        server = dataclasses.replace(origin, port=port, pid=process.pid)
        processes.await_answer(server, process, log, seconds=20)
        yield server


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """A router that runs.

    Args:
        pid: its process.
        endpoints: where each of its endpoints answers, by name.
    """

    pid: int
    endpoints: Mapping[str, Server]


def settings(endpoints: Mapping[str, tuple[int, Sequence[int]]]) -> dict[str, Any]:
    """Settings of a router that runs alone.

    Args:
        endpoints: by name the port of each and those of its pods.
    """
    return {
        "v": 1,
        "endpoints": [
            {
                "name": name,
                "port": port,
                "backends": [{"name": f"{name}-backend", "targets": [f"127.0.0.1:{pod}" for pod in pods]}],
            }
            for name, (port, pods) in endpoints.items()
        ],
    }


@contextlib.contextmanager
def router(
    behind: Mapping[str, Sequence[Server]],
    *,
    core: int,
    under: Sequence[str] = (),
    seconds: float = 20,
) -> Iterator[Routed]:
    """Our router.

    Args:
        behind: the pods of each endpoint, by its name.
        core: the router's.
        under: a command that runs it, as valgrind.
        seconds: how long it may take to start.

    Raises:
        DidNotStartError: It did not, or an endpoint gives no right answer.
    """
    listening = dict(zip(behind, free_ports(len(behind)), strict=True))
    document = settings(
        {name: (listening[name], [pod.port for pod in pods]) for name, pods in behind.items()}
    )
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        file = Path(folder) / "settings.json"
        file.write_text(json.dumps(document))
        command = [
            *(*under, sys.executable, "-m", "penstock_router", f"--settings={file}"),
            *("--listen=127.0.0.1:0", "--admin=127.0.0.1:0", "--propagation-delay=0s"),
        ]
        with processes.running(command, core=core, env=processes.without_ours()) as (process, log):
            processes.await_line(process, log, "ready ", seconds=seconds)
            served = {
                name: Server(port=listening[name], pid=process.pid, path=pods[0].path, form=pods[0].form)
                for name, pods in behind.items()
            }
            # Of many, the first and the last: each answer makes a connection, which counts as memory.
            for name in list(served)[:: max(1, len(served) - 1)]:
                processes.await_answer(served[name], process, log, seconds=seconds)
            yield Routed(pid=process.pid, endpoints=served)


def free_ports(count: int) -> list[int]:
    """Distinct ports that are free now."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            probe = stack.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports.append(int(probe.getsockname()[1]))
        return ports
