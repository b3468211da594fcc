"""A router whose event loop is busy from SIGUSR1 on: `python -m tests.support.processes.stalling_router`.

It computes until the file that the environment's `STALL_UNTIL` names is there. With `STILL_SECONDS` in the
environment, a loop that makes no turn for so long stands still.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from penstock_router import __main__ as router
from penstock_router.admin import thread as admin_thread
from penstock_wire.process import log, on_signal


class Stalling(router.Process):
    """Its loop makes no turn between SIGUSR1 and the file."""

    async def serve(self) -> int:
        on_signal(signal.SIGUSR1, self._stall)
        return await super().serve()

    def _stall(self) -> None:
        log("stalls")
        until = Path(os.environ["STALL_UNTIL"])
        while not until.exists():
            sum(range(1000))
        log("goes on")


if __name__ == "__main__":
    router.Process = Stalling  # type: ignore[misc]
    admin_thread.STILL_SECONDS = float(os.environ.get("STILL_SECONDS", admin_thread.STILL_SECONDS))
    sys.exit(router.main())
