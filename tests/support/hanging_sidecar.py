"""A sidecar whose event loop can be blocked: `python -m tests.support.hanging_sidecar`, with its flags.

SIGUSR1 blocks it for `HANG_SECONDS`, which is longer than a turn may last here; it says so on stderr first.
"""

from __future__ import annotations

import signal
import sys
import time

from penstock_sidecar import __main__ as sidecar
from penstock_sidecar import app

HANG_SECONDS = 3.0
LONGEST_TURN = 1.5


def hang(*_: object) -> None:
    """Do nothing, and let nobody else."""
    print("hanging", file=sys.stderr, flush=True)
    time.sleep(HANG_SECONDS)


if __name__ == "__main__":
    app.LONGEST_TURN = LONGEST_TURN
    signal.signal(signal.SIGUSR1, hang)
    sys.exit(sidecar.main())
