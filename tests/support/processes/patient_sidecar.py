"""A sidecar whose propagation delay ends at SIGUSR1: `python -m tests.support.processes.patient_sidecar`.

So a test that needs the delay says itself how long that is, whatever the machine's pace.
"""

from __future__ import annotations

import signal
import sys

from penstock_sidecar import __main__ as sidecar
from penstock_sidecar.app import Sidecar
from penstock_wire import process


class Patient(Sidecar):
    """Everybody who sends here has learned of the drain when SIGUSR1 comes."""

    async def run(self) -> int:
        process.on_signal(signal.SIGUSR1, self._drain.hurry)
        return await super().run()


if __name__ == "__main__":
    sidecar.Sidecar = Patient  # type: ignore[misc]
    sys.exit(sidecar.main())
