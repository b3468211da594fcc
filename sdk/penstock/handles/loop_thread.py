"""The event loop of calls that blocking code makes: one thread for a process, begun by the first of them."""

from __future__ import annotations

import asyncio
import os
import threading

_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}


def shared_loop() -> asyncio.AbstractEventLoop:
    """The loop; in a forked process another one."""
    process = os.getpid()
    loop = _loops.get(process)
    if loop is None:
        with _lock:
            loop = _loops.get(process)
            if loop is None:
                loop = _loops[process] = _new_loop()
                threading.Thread(target=loop.run_forever, name="penstock-handles", daemon=True).start()
    return loop


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ModuleNotFoundError:  # without the extra there are calls within the process alone
        return asyncio.new_event_loop()
    made: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return made
