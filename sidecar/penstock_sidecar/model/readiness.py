"""Prepares a model that answers its ready path, so that its pod can be ready: its userConfig and its warm-up.

One coroutine does both, in this order, and again after each restart of the model. When the model is ready, it
sends each further userConfig. A model that is merely not ready for a while keeps its userConfig and warm-up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock_sidecar.model.reconfigure import Reconfigure
from penstock_sidecar.model.warmup import RETRY_FIRST, RETRY_LONGEST, Warmup


class Readiness:
    """The preparation of the model.

    Args:
        reconfigure: gives it its userConfig.
        warmup: warms it up.
        changed: called when `ready` changed.

    `ready`: the model is prepared. `busy`: the model may be executing a request of the preparation; it may
    then fail to answer probes although it is well.
    """

    def __init__(self, *, reconfigure: Reconfigure, warmup: Warmup, changed: Callable[[], None]) -> None:
        self._reconfigure = reconfigure
        self._warmup = warmup
        self._changed = changed
        self._wake = asyncio.Event()
        self._loaded = False
        self._life = 0
        self._warm = False
        self.ready = False
        self.busy = False

    @property
    def message(self) -> str:
        """Why the model is not ready, "" if it is."""
        if self.ready:
            return ""
        return self._reconfigure.message if self._reconfigure.needed else self._warmup.message

    @property
    def unprepared(self) -> str:
        """Why nothing may be sent yet to a model that takes connections, "" if it may."""
        if self.ready or not (self._reconfigure.needed or self._warmup):
            return ""
        return self.message

    def model_changed(self, *, ready: bool, gone: bool) -> None:
        """Note the model's state.

        Args:
            ready: its ready path answers.
            gone: its process has ended: the next one has to be prepared again.
        """
        self._loaded = ready
        if gone:
            self._life += 1
            self._warm = False
            self._reconfigure.forget()
            self._set(ready=False)
        elif ready and not self._reconfigure.needed and not self._warmup:
            self._set(ready=True)
        self._wake.set()

    def settings_changed(self) -> None:
        """Check the userConfig again."""
        self._wake.set()

    async def run(self) -> None:
        """Prepare the model after each start, and give it each userConfig, until cancelled."""
        pause = RETRY_FIRST
        life = self._life
        while True:
            if life != self._life:
                life, pause = self._life, RETRY_FIRST
            self.busy = True
            try:
                done = await self._step()
            finally:
                self.busy = False
            if done:
                pause = RETRY_FIRST
                await self._wake.wait()
            else:
                try:
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
                except TimeoutError:
                    pause = min(2 * pause, RETRY_LONGEST)
            self._wake.clear()

    async def _step(self) -> bool:
        """Do the next step of the preparation; returns False if it is to be tried again."""
        if not self._loaded or not self._reconfigure.settled:
            return True
        life = self._life
        if (self._reconfigure.needed or self._reconfigure.due) and not await self._reconfigure.apply():
            return life != self._life  # after a restart, the model is prepared again when it is back
        if not self._warm and life == self._life:
            self._warm = await self._warmup.run(lambda: life == self._life)
        if self._warm and life == self._life and not self._reconfigure.needed:
            self._set(ready=True)
        return not (self._loaded and self._reconfigure.due)

    def _set(self, *, ready: bool) -> None:
        if ready != self.ready:
            self.ready = ready
            self._changed()
