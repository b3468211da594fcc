"""A sidecar whose event loop can be blocked: `python -m tests.support.processes.hanging_sidecar …`.

SIGUSR1 blocks it for `HANG_SECONDS`, which is longer than a turn may last here, and until SIGUSR2 has come;
it says so on stderr first.
"""

from __future__ import annotations

import signal
import sys
import time

from penstock_sidecar import __main__ as sidecar
from penstock_sidecar import app

HANG_SECONDS = 3.0
LONGEST_TURN = 1.5


released = False


def hang(*_: object) -> None:
    """Block, so that no other task runs."""
    print("hanging", file=sys.stderr, flush=True)
    time.sleep(HANG_SECONDS)
    while not released:  # signals are handled in between
        time.sleep(0.01)


def release(*_: object) -> None:
    """It may go on."""
    global released
    released = True


if __name__ == "__main__":
    app.LONGEST_TURN = LONGEST_TURN
    signal.signal(signal.SIGUSR1, hang)
    signal.signal(signal.SIGUSR2, release)
    sys.exit(sidecar.main())
