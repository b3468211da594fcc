"""Finds the one file of a format, and refuses what an item may not be."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.errors import LoadError
from penstock.response import Response

MOUNTED = "/mnt/models"
"""Where `spec.model.artifact` puts the files by default."""


def only_file(path: str, *endings: str) -> Path:
    """The file at a path, or the one file with such an ending anywhere below it.

    Raises:
        LoadError: there is none, or several.
    """
    at = Path(path)
    if not at.is_dir():
        found = [at] if at.is_file() and at.name.endswith(endings) else []
    else:
        found = sorted(file for file in at.rglob("*") if file.name.endswith(endings) and file.is_file())
    if len(found) != 1:
        some = ", ".join(str(file) for file in found[:3]) or "none"
        raise LoadError(f"expected one file that ends in {' or '.join(endings)} at {path}, found {some}")
    return found[0]


def processors() -> int:
    """How many processors this process may use, by its affinity and its container's CPU limit; 1 at least."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(count, -(-int(quota) // int(period))))
    except (OSError, ValueError):  # no cgroup, or "max"
        return count


def misfit(expected: str) -> Response:
    """The answer to an item that the model cannot take, which fails no other of its batch."""
    return Response(422, body={"detail": expected})
