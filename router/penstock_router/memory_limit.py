"""How much memory this process may have, and how much of it its connections may keep."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

DEFAULT_LIMIT = 1024 * 1024 * 1024
"""Bytes that a process takes for its limit where nothing says another: the chart's limit."""
OWN_BYTES = 64 * 1024 * 1024
"""Of the limit, for the process itself."""
KEPT_SHARE = 3
"""Of the rest, one part in so many is for what connections keep. With pieces that are half sent, and memory
that is free and does not fit what comes, a process takes up to 2.2 times that; the rest is for the kernel."""
LEAST_BYTES = 16 * 1024 * 1024
"""Connections may keep so much in any case."""


def container_limit(root: Path = Path("/")) -> int | None:
    """The least limit of memory of this process's cgroup (v2) and those above it, in bytes; None for none.

    Args:
        root: where `proc` and `sys` are.
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
    """What gives free memory back to the machine; nothing is done where the C library is none of GNU's.

    That library keeps what is free between what is not: where bodies come and go for long, several times as
    much as they take.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return lambda: None
    return lambda: trim(0)


def most_kept(limit: int) -> int:
    """Bytes that all connections may keep together.

    Args:
        limit: bytes that the process may have.
    """
    return max(LEAST_BYTES, (limit - OWN_BYTES) // KEPT_SHARE)
