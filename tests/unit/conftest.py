"""A test in this folder starts no process and opens no TCP port: one that does belongs in tests/process."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clocks.fake_loop import FakeLoop

STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"})
_running: list[str] = []
"""The test that runs now."""


def _guard(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook, which stays for the life of the process: so it also runs between tests."""
    if not _running:
        return
    if event in STARTS:
        raise AssertionError(f"{_running[0]} starts a process: it belongs in tests/process")
    if event == "socket.bind":
        bound: socket.socket = arguments[0]
        if bound.family in {socket.AF_INET, socket.AF_INET6} and bound.type == socket.SOCK_STREAM:
            raise AssertionError(f"{_running[0]} opens a port: it belongs in tests/process")


sys.addaudithook(_guard)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    # NB: pytest calls this hook for the tests of every folder.
    _running[:] = [item.nodeid] if item.path.is_relative_to(Path(__file__).parent) else []
    try:
        return (yield)
    finally:
        _running.clear()


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, type[asyncio.SelectorEventLoop]]:
    """Coroutines of the router's and the sidecar's tests run on a loop whose time jumps to the next timer."""
    faked = {"router", "sidecar"}.intersection(item.path.relative_to(Path(__file__).parent).parts)
    return {"loop": FakeLoop if faked else asyncio.SelectorEventLoop}
