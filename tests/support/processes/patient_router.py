"""A router whose propagation delay ends at SIGUSR1: `python -m tests.support.processes.patient_router`."""

from __future__ import annotations

import asyncio
import signal
import sys

from penstock_router import __main__ as router
from penstock_wire.process import on_signal


class Patient(router.Process):
    """Everybody who sends here has learned of the drain when SIGUSR1 comes."""

    async def serve(self) -> int:
        self._known = asyncio.Event()
        on_signal(signal.SIGUSR1, self._known.set)
        return await super().serve()

    async def _propagate(self) -> None:
        await self._known.wait()


if __name__ == "__main__":
    router.Process = Patient  # type: ignore[misc]
    sys.exit(router.main())
