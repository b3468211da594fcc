"""Lists the user's Python files, and detects changes by polling ten times a second."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

LOOK_SECONDS = 0.1
SHARE = 0.05
"""The share of a processor's time that polling can take: large folders are polled less often."""
NOT_SOURCE = ("__pycache__", "node_modules", "site-packages")

State = dict[str, tuple[int, int, int]]
"""Inode, modification time and size by path."""


def look(folder: Path) -> State:
    """List the Python files below a folder; hidden folders and virtual environments are left out.

    Args:
        folder: the folder.
    """
    files: State = {}
    folders = [str(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as listed:
                entries = list(listed)
        except OSError:  # it was deleted meanwhile, or cannot be read
            continue
        if any(entry.name == "pyvenv.cfg" for entry in entries):
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith(".") and entry.name not in NOT_SOURCE:
                        folders.append(entry.path)
                elif entry.name.endswith(".py"):
                    state = entry.stat()
                    files[entry.path] = (state.st_ino, state.st_mtime_ns, state.st_size)
            except OSError:
                continue
    return files


async def changed(folder: Path, before: State) -> list[str]:
    """Wait for a change, and until no other follows at once; return the files that changed.

    Args:
        folder: as for `look`.
        before: the earlier result of `look`.
    """
    last = before
    while True:
        began = time.monotonic()
        now = await asyncio.to_thread(look, folder)
        if now == last != before:
            return sorted(
                path.removeprefix(f"{folder}/")
                for path in now.keys() | before.keys()
                if now.get(path) != before.get(path)
            )
        last = now
        await asyncio.sleep(max(LOOK_SECONDS, (time.monotonic() - began) / SHARE))
