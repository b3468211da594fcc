"""Computes how much memory this process may use, and how much of it its connections may keep."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

from penstock_wire.http.memory import MemoryBound

DEFAULT_LIMIT = 1024 * 1024 * 1024
"""The limit in bytes if none is configured: the chart's limit of routers and sidecars."""
OWN_BYTES = 64 * 1024 * 1024
"""The part of the limit that the process itself needs."""
KEPT_SHARE = 3
"""One part in so many of the rest is for data that connections keep. With half-sent pieces and fragmented
memory, a process takes up to 2.2 times that; the remainder is for the kernel."""
LEAST_BYTES = 16 * 1024 * 1024
"""Connections may keep at least this much."""


def container_limit(root: Path = Path("/")) -> int | None:
    """The lowest memory limit of this process's cgroup (v2) and its ancestors, in bytes; None for none.

    Args:
        root: the folder of `proc` and `sys`.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    group = next((line[3:].strip("/") for line in lines if line.startswith("0::")), None)
    if group is None or ".." in group:  # seen from another cgroup namespace, its path means nothing here
        return None
    mount = root / "sys/fs/cgroup"
    folder = mount / group
    limits: list[int] = []
    while True:
        try:
            text = (folder / "memory.max").read_text().strip()
        except OSError:
            text = ""
        if text.isdigit():
            limits.append(int(text))
        if folder == mount:
            return min(limits, default=None)
        folder = folder.parent


def trimmer() -> Callable[[], object]:
    """Make a function that returns free memory to the machine; it does nothing without the GNU C library.

    That library keeps free memory between blocks in use: if bodies come and go for long, several times as
    much as they take.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return lambda: None
    return lambda: trim(0)


def most_kept(limit: int) -> int:
    """How many bytes all connections together may keep.

    Args:
        limit: bytes that the process may use.
    """
    return max(LEAST_BYTES, (limit - OWN_BYTES) // KEPT_SHARE)


def bound(limit: int = 0) -> MemoryBound:
    """Make the bound on what all connections of this process keep together.

    Args:
        limit: bytes that the process may use; 0 = as its cgroup says, or else `DEFAULT_LIMIT`.
    """
    return MemoryBound(most_kept(limit or container_limit() or DEFAULT_LIMIT), trimmer())
