"""Other people's HTTP servers as processes that serve a model: what `tests/clients` runs a sidecar before."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

from bench import venvs
from tests.support.processes.ports import free_port
from tests.support.processes.sidecar_process import Pair

FOLDER = Path(__file__).parents[2] / "clients" / "servers"
EXPRESS = FOLDER / "express"
AXUM = FOLDER / "axum"
AXUM_BUILT = venvs.HERE / ".cache" / "axum"
INSTALL_SECONDS = 300


@dataclasses.dataclass(frozen=True, slots=True)
class ForeignServer:
    """How to run one server.

    Args:
        command: what to run for a port, in `FOLDER`.
        status: its answer to a request that meets an exception.
    """

    name: str
    command: Callable[[int], list[str]]
    status: int = 500


def _python(module: str, *arguments: str, bind: str) -> Callable[[int], list[str]]:
    def command(port: int) -> list[str]:
        python = venvs.ensure("clients-servers", lock=FOLDER / "requirements.txt")
        address = bind.format(port=port).split()
        return [str(python), "-m", module, *arguments, *address]

    return command


def _express(port: int) -> list[str]:
    node, npm = shutil.which("node"), shutil.which("npm")
    assert None not in (node, npm), "Express needs node and npm: install Node.js 18 or newer"
    if not (EXPRESS / "node_modules" / ".package-lock.json").exists():
        subprocess.run(
            [npm, "ci", "--no-audit", "--no-fund"], cwd=EXPRESS, check=True, timeout=INSTALL_SECONDS
        )
    return [node, str(EXPRESS / "server.js"), str(port)]


def _axum(port: int) -> list[str]:
    cargo = shutil.which("cargo")
    assert cargo is not None, "axum needs cargo: install Rust"
    subprocess.run(
        [cargo, "build", "--quiet", "--release", "--locked", "--target-dir", str(AXUM_BUILT)],
        cwd=AXUM,
        check=True,
        timeout=2 * INSTALL_SECONDS,
    )
    return [str(AXUM_BUILT / "release" / "penstock-axum-model"), str(port)]


_UVICORN = "--host 127.0.0.1 --port {port}"
_BIND = "--bind 127.0.0.1:{port}"
SERVERS = (
    ForeignServer("uvicorn, httptools", _python("uvicorn", "asgi:app", "--http=httptools", bind=_UVICORN)),
    ForeignServer("uvicorn, h11", _python("uvicorn", "asgi:app", "--http=h11", bind=_UVICORN)),
    ForeignServer(
        "uvicorn, exceptions explained",
        _python("uvicorn", "asgi:explained", "--http=httptools", bind=_UVICORN),
        status=422,
    ),
    ForeignServer("hypercorn", _python("hypercorn", "asgi:app", bind=_BIND)),
    ForeignServer("granian", _python("granian", "--interface=asgi", "asgi:app", bind=_UVICORN)),
    ForeignServer("gunicorn, sync", _python("gunicorn", "wsgi:app", "--workers=2", bind=_BIND)),
    ForeignServer("gunicorn, threads", _python("gunicorn", "wsgi:app", "--threads=8", bind=_BIND)),
    ForeignServer(
        "gunicorn, UvicornWorker",
        _python("gunicorn", "asgi:app", "--worker-class=uvicorn_worker.UvicornWorker", bind=_BIND),
    ),
    ForeignServer("Express", _express),
    ForeignServer("axum", _axum),
)


class ForeignModel:
    """A server's process, with those that it starts."""

    def __init__(self, command: list[str], log: Path) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, cwd=FOLDER, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    async def stop(self) -> None:
        """End it and its children."""
        os.killpg(self._process.pid, signal.SIGKILL)
        await asyncio.to_thread(self._process.wait)


class ForeignPair(Pair):
    """A foreign server and a sidecar before it."""

    def __init__(self, folder: Path, server: ForeignServer, *flags: str) -> None:
        super().__init__(folder, *flags)
        self._folder = folder
        self._server = server

    async def start_model(self) -> None:
        """Start the server; the sidecar is ready when it is."""
        port = free_port()
        command = await asyncio.to_thread(self._server.command, port)
        self.model = ForeignModel(command, self._folder / "model.log")  # type: ignore[assignment]
        self.model_url = f"http://127.0.0.1:{port}"


def versions() -> dict[str, str]:
    """The versions of what serves, by package."""
    pinned = dict(
        line.split(" ")[0].split("==") for line in (FOLDER / "requirements.txt").read_text().splitlines()
    )
    return {
        name: pinned[name] for name in ("uvicorn", "hypercorn", "granian", "gunicorn", "uvicorn-worker")
    } | {"python": sys.version.split()[0], "axum": _locked("axum")}


def _locked(name: str) -> str:
    """The version of a crate in axum's lock."""
    packages = tomllib.loads((AXUM / "Cargo.lock").read_text())["package"]
    return next(str(each["version"]) for each in packages if each["name"] == name)
