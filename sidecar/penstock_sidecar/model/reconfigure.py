"""Gives the model its `userConfig` while no batch is with it, and remembers which one it took.

The configuration is POSTed before the model counts as ready, after each of its restarts, and on each change.
If the model refuses it (not 2xx, or no answer), the last one stays in force; the next POST follows when
another configuration comes or the model has restarted. A model that never took any is not ready.

Each POST carries the pod's secret, which proves to a model server that it comes from its own sidecar, and a
random name. If a server reports the name in force at its ready path (the SDK's does), the sidecar detects
that another client has reconfigured it: the name is not the last one sent, and the sidecar sends its own
configuration again. If it is the name of a POST that got no answer in time, the model did take that one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from penstock_sidecar.interfaces import RequestPath, Send
from penstock_wire.control import report
from penstock_wire.headers import CONFIG, RECONFIGURE, REQUEST_ID, Headers, get
from penstock_wire.http import Request, UpstreamError
from penstock_wire.process import log
from penstock_wire.words import cut

SECONDS = 30.0
"""Maximum seconds that the model may take over a configuration; requests wait meanwhile."""
QUIET_SECONDS = 30.0
"""Maximum seconds to wait for the batches with the model; then requests go on, and it is tried again."""
MESSAGE = 1000
"""Maximum characters of the model's answer that are reported."""

OVERWRITTEN = "another client reconfigured the model"


class Reconfigure:
    """The configuration of one model.

    Args:
        path: path at which the model takes it, None if it takes none.
        send: sends to the model.
        requests: sends requests to the model, and is paused meanwhile.
        changed: called when `result` changed.
        settled: whether the settings are known already, so that without them there is no configuration.
        secret: proves to the model that the sidecar reconfigures it; empty = it is not sent.
    """

    def __init__(
        self,
        path: str | None,
        *,
        send: Send,
        requests: RequestPath,
        changed: Callable[[], None],
        settled: bool,
        secret: str = "",
    ) -> None:
        self._path = path
        self._send = send
        self._requests = requests
        self._changed = changed
        self._wanted: bytes | None = None
        self._version = 0
        self._in_force: bytes | None = None
        self._last_good: bytes | None = None
        self._refused: bytes | None = None
        self._life = 0
        self._secret = secret.encode()
        self._name: bytes | None = None  # that of the one in force, None before one was sent or seen
        self._tried = b""  # the name that was sent last
        self._tried_config: bytes | None = None
        self._posts = 0
        self._posting = False
        self._overwritten = False
        self.settled = settled
        self.result: report.Reconfigure | None = None

    def want(self, config: Any, version: int) -> None:
        """Note the settings' `userConfig`.

        Args:
            config: any JSON; None = there is none, and the model keeps its configuration.
            version: version of the settings that bring it.
        """
        self.settled = True
        if self._path is None:
            return
        wanted = None if config is None else msgspec.json.encode(config)
        if wanted == self._wanted:
            return
        self._wanted, self._version, self._refused = wanted, version, None
        self._overwritten = False
        if wanted is None:
            self._report(None)
        elif wanted == self._in_force:
            self._report(report.Reconfigure(version=version, ok=True))

    def forget(self) -> None:
        """Note that the model has restarted, and has no configuration."""
        self._life += 1
        self._in_force = self._refused = None
        self._name, self._tried, self._overwritten = None, b"", False

    @property
    def moment(self) -> int:
        """A number that changes when a configuration is sent, and when it is answered."""
        return self._posts

    def looked(self, headers: Headers, moment: int) -> bool:
        """Compare the configuration in force, as the model's ready path reports it, with the one sent.

        Args:
            headers: header fields of the ready path's answer.
            moment: `moment` when the probe was sent.

        Returns:
            Whether another client reconfigured the model: it is to be given its own configuration again.
        """
        name = get(headers, CONFIG)
        if name is None or self._posting or moment != self._posts:
            return False
        if self._name is None:  # the name may be from an earlier process of the sidecar
            self._name = name
        if name == self._name:
            return False
        if name == self._tried:  # it is in force, but its answer was lost or too late
            if name:
                self._took_late(name)
            return False
        if not self._overwritten:
            log(OVERWRITTEN, level="error", version=self._version)
        self._overwritten = True
        if self._wanted is None:
            self._report(self._lost())
            return False
        self._in_force = self._refused = None
        return True

    def _took_late(self, name: bytes) -> None:
        self._name = name
        self._in_force = self._last_good = self._tried_config
        self._refused = None
        if self._in_force == self._wanted:
            self._report(report.Reconfigure(version=self._version, ok=True))

    def _lost(self) -> report.Reconfigure:
        text = f"{OVERWRITTEN}, and there is no userConfig to restore; restart the pod"
        return report.Reconfigure(version=self._version, ok=False, message=text)

    @property
    def needed(self) -> bool:
        """Whether the model lacks a configuration, or it is not known yet whether there is one."""
        if self._path is None:
            return False
        return not self.settled or (self._wanted is not None and self._in_force is None)

    @property
    def due(self) -> bool:
        """Whether there is a configuration that the model neither has nor has refused."""
        wanted = self._wanted
        return wanted is not None and wanted != self._in_force and wanted != self._refused

    @property
    def message(self) -> str:
        """Why the model is not configured yet."""
        if not self.settled:
            return "no settings yet"
        if self.result is not None and not self.result.ok:
            return f"the model did not accept its userConfig: {self.result.message}"
        return "the userConfig is being sent to the model"

    async def apply(self) -> bool:
        """Give the model the wanted configuration; if it refuses after a restart, the one it had before.

        Returns:
            False if it is to be tried again: the batches did not end, or the model has no configuration now.
        """
        wanted, life = self._wanted, self._life
        if wanted is None:
            return True
        self._requests.pause()
        try:
            try:
                async with asyncio.timeout(QUIET_SECONDS):
                    await self._requests.quiet()
            except TimeoutError:
                log("reconfigure: batches did not end", level="warning", seconds=QUIET_SECONDS)
                return False
            if life != self._life:  # restarted meanwhile: the next process may need another configuration
                return False
            wrong = await self._post(wanted)
            in_force = self._in_force if wrong else wanted
            if in_force is None and life == self._life and (before := self._last_good) not in (None, wanted):
                in_force = None if await self._post(before) else before
        finally:
            self._requests.resume()
        if life != self._life:
            return False
        self._in_force = in_force
        if not wrong:
            self._last_good = wanted
        if wanted == self._wanted:
            self._refused = wanted if wrong else None
            message = wrong or (f"{OVERWRITTEN}; its userConfig was restored" if self._overwritten else "")
            self._report(report.Reconfigure(version=self._version, ok=not wrong, message=message))
        return self._in_force is not None

    async def _post(self, config: bytes | None) -> str:
        """POST a configuration; returns what was wrong, "" for nothing."""
        path, name = self._path or "/", secrets.token_hex(8).encode()
        headers: Headers = (
            (b"content-type", b"application/json"),
            (REQUEST_ID, b"reconfigure-%d" % self._version),
            (CONFIG, name),
        )
        if self._secret:
            headers = (*headers, (RECONFIGURE, self._secret))
        self._posts += 1
        self._posting, self._tried, self._tried_config = True, name, config
        try:
            answer = await self._send(Request("POST", path, headers, config or b"null"), SECONDS)
        except UpstreamError as error:
            return f"POST {path}: {error}"
        finally:
            self._posts += 1
            self._posting = False
        if 200 <= answer.status < 300:
            self._name = name
            return ""
        return f"POST {path}: expected a 2xx, found {answer.status}: {_error_message(answer.body)}"

    def _report(self, result: report.Reconfigure | None) -> None:
        # NB: the same message with another version is reported to the operator, but not logged.
        if result is not None and (self.result is None or self.result.message != result.message):
            level = "info" if result.ok else "error"
            log(
                "reconfigured" if result.ok else "reconfigure failed",
                level=level,
                version=result.version,
                error=result.message or None,
            )
        if result != self.result:
            self.result = result
            self._changed()


def _error_message(body: bytes) -> str:
    """The model's error message: the `detail` of a problem document, else the body's text."""
    try:
        document = msgspec.json.decode(body)
        if isinstance(document, dict) and isinstance(document.get("detail"), str):
            return cut(str(document["detail"]), MESSAGE)
    except (msgspec.DecodeError, RecursionError):
        pass
    return cut(body[: 4 * MESSAGE].decode("utf-8", "replace").strip(), MESSAGE) or "nothing more"
