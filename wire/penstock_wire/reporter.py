"""The flow of control of a data-plane process: its report up, newer settings down, about once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from penstock_wire.errors import DocumentError
from penstock_wire.http import Request, Upstream, UpstreamError
from penstock_wire.process import log
from penstock_wire.report import decode_answer

INTERVAL_SECONDS = 1.0
TIMEOUT_SECONDS = 5.0


class Reporter:
    """Posts reports until cancelled.

    Args:
        url: base URL of the operator, `http://host:port`.
        kind: `sidecar` or `router`: the path `/reports/<kind>`.
        token_file: the projected service-account token, read anew each time since it is rotated; None = none.
        upstream: sends the report.
        make: makes the report's bytes; its argument is the sequence number.
        on_settings: takes the settings document's bytes of an answer.
    """

    def __init__(
        self,
        *,
        url: str,
        kind: str,
        token_file: Path | None,
        upstream: Upstream,
        make: Callable[[int], bytes],
        on_settings: Callable[[bytes], None],
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"expected an operator URL such as http://host:8015, found {url!r}")
        self._host = parts.hostname
        self._port = parts.port or 80
        self._target = f"{parts.path.rstrip('/')}/reports/{kind}"
        self._token_file = token_file
        self._upstream = upstream
        self._make = make
        self._on_settings = on_settings
        self._now = asyncio.Event()
        self._sequence = 0
        self._told = ""

    def report_now(self) -> None:
        """Report at once: the first arrival after idleness, a change of state."""
        self._now.set()

    async def run(self) -> None:
        """Report until cancelled; a failure is told once and tried again at the next turn."""
        interval = INTERVAL_SECONDS
        while True:
            try:
                interval = await self._report()
                if self._told:
                    log("reports are taken again")
                self._told = ""
            except (UpstreamError, DocumentError, OSError) as error:
                interval = INTERVAL_SECONDS
                if str(error) != self._told:
                    self._told = str(error)
                    log("report failed", level="warning", error=str(error))
            try:
                async with asyncio.timeout(interval):
                    await self._now.wait()
            except TimeoutError:
                continue
            self._now.clear()

    async def _report(self) -> float:
        """Send one report; returns the seconds until the next."""
        self._sequence += 1
        headers = [(b"host", f"{self._host}:{self._port}".encode()), (b"content-type", b"application/json")]
        if self._token_file is not None:
            headers.append((b"authorization", b"Bearer " + self._token_file.read_bytes().strip()))
        request = Request(
            method="POST", target=self._target, headers=tuple(headers), body=self._make(self._sequence)
        )
        answer = await self._upstream.send(self._host, self._port, request, timeout=TIMEOUT_SECONDS)
        if answer.status != 200:
            found = answer.body[:300].decode("utf-8", "replace")
            raise DocumentError(f"report answer: expected status 200, found {answer.status}: {found}")
        document, settings = decode_answer(answer.body)
        if settings is not None:
            self._on_settings(settings)
        return max(0.1, document.next_report_ms / 1000)
