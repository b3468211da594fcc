"""What the tests of a release share: a registry on loopback, keys, images, a chart and packages."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devcluster import machine, programs
from release.version import Commit
from tests.support.processes.ports import free_port

COMMIT = Commit(version="0.1.0", revision="0" * 40, epoch=1_700_000_000)
_CONFIG = """version: 0.1
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@contextmanager
def serving(command: list[str | Path], log: Path, page: str) -> Iterator[None]:
    """Run a server until the body ends; it starts once the server answers.

    Args:
        command: the server's.
        log: a file for what it prints.
        page: host, port and path of a page of it.
    """
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                urllib.request.urlopen(f"http://{page}", timeout=2).close()
                break
            except OSError:
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="session")
def registry_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a registry of the Distribution project."""
    machine.ensure_packages({"docker-registry": "docker-registry"})
    folder = tmp_path_factory.mktemp("registry")
    config = folder / "config.yml"
    config.write_text(_CONFIG.format(root=folder / "data", port=free_port()))
    return config


@pytest.fixture(scope="session")
def local_registry(registry_config: Path) -> Iterator[str]:
    """That registry on loopback; host and path of what is in it."""
    host = registry_config.read_text().split('"')[1]
    command: list[str | Path] = ["docker-registry", "serve", registry_config]
    with serving(command, registry_config.with_name("log"), f"{host}/v2/"):
        yield f"{host}/penstock"


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a pair of cosign's keys."""
    programs.ensure("cosign")
    folder = tmp_path_factory.mktemp("keys")
    cosign = [str(programs.program("cosign", "cosign")), "generate-key-pair"]
    subprocess.run(cosign, cwd=folder, env={"COSIGN_PASSWORD": "", "HOME": str(folder)}, check=True)
    return folder
