"""The event loop for calls by blocking code: one thread for a process, started by the first call."""

from __future__ import annotations

import asyncio
import os
import threading

_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}


def shared_loop() -> asyncio.AbstractEventLoop:
    """Return the process's loop; a forked process has its own."""
    process = os.getpid()
    loop = _loops.get(process)
    if loop is None:
        with _lock:
            loop = _loops.get(process)
            if loop is None:
                loop = _loops[process] = _new_loop()
                threading.Thread(target=loop.run_forever, name="penstock-handles", daemon=True).start()
    return loop


def _new_lock() -> None:
    """Replace the lock in a forked process: a thread that holds it goes on in the parent alone."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ModuleNotFoundError:  # without the extra, all calls stay within the process
        return asyncio.new_event_loop()
    made: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return made
