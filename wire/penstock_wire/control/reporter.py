"""Sends a data-plane process's report to the operator about once a second and takes newer settings."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from penstock_wire import contract
from penstock_wire.addresses import join
from penstock_wire.control.artifact import ArtifactTurn
from penstock_wire.control.ca_trust import HEADER, Trust
from penstock_wire.control.report import decode_answer
from penstock_wire.errors import DocumentError
from penstock_wire.http import Request, UpstreamError
from penstock_wire.http.client.pool import H1Upstream
from penstock_wire.http.sending import send
from penstock_wire.process import log
from penstock_wire.words import cut

INTERVAL_SECONDS = 1.0
LONGEST_SECONDS = 60.0
"""The longest interval that an operator can ask for; beyond it a pod would look dead."""
TIMEOUT_SECONDS = 5.0
CONNECT_SECONDS = 2.0
"""Includes the handshake. Short: after a change of leader the first tries can go to a pod that is gone."""
LONGEST_RETRY_SECONDS = 2.0
"""The longest wait after a failure, before it is spread, where the operator asks for reports as often."""
BUSY_RETRY_SECONDS = 6.0
"""The same where it asks for them more seldom, or has not taken any yet."""
IDLE_SECONDS = 70.0
"""How long an idle connection is kept: beyond the longest interval, so that a report costs no handshake."""
UNTRUSTED = "the operator's certificate is not trusted"


def retry_after(failures: int, interval: float) -> float:
    """The seconds until the next try, before they are spread.

    A busy operator asks for reports more seldom. Where it takes some too late all the same, retries as
    frequent as those to an idle one would keep it busy for good.

    Args:
        failures: in a row, the last one included.
        interval: seconds between reports, as the operator last asked.
    """
    longest = max(LONGEST_RETRY_SECONDS, min(interval, BUSY_RETRY_SECONDS))
    return min(longest, INTERVAL_SECONDS * 1.25 ** min(failures, 20))


class Reporter:
    """Posts reports until cancelled, on one persistent connection.

    Args:
        url: base URL of the operator, `https://host:port`. With `http://` everything, the token too, travels
            in plain text: for a process on one's own machine, and for pods that an older operator rendered.
        kind: `sidecar` or `router`: the path `/reports/<kind>`.
        token_file: the projected service-account token, read each time since it is rotated; None = none.
        authorities: file with the certificates that can sign the operator's; required with `https`.
        make: makes the report's bytes; its argument is the sequence number.
        on_settings: takes the bytes of an answer's settings document.
        on_alone: called when no operator answers as it should, and when an answer brings no settings; not if
            it cannot prove who it is: an operator is there, and the mounted files disagree with it.
        on_routers: takes the addresses of routers, if an answer has them.
        on_artifact: takes each answer's word on the pod's artifact.
        on_taken: takes the number of the report on which the next one can build, 0 for none.

    Raises:
        ValueError: the URL cannot be used.
    """

    def __init__(
        self,
        *,
        url: str,
        kind: str,
        token_file: Path | None,
        make: Callable[[int], bytes],
        on_settings: Callable[[bytes], object],
        on_alone: Callable[[], None] = lambda: None,
        authorities: Path | None = None,
        on_routers: Callable[[tuple[str, ...]], None] = lambda _: None,
        on_artifact: Callable[[ArtifactTurn | None], None] = lambda _: None,
        on_taken: Callable[[int], None] = lambda _: None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"expected an operator URL such as https://host:8016, found {url!r}")
        self._trust: Trust | None = None
        if parts.scheme == "https":
            if authorities is None:
                raise ValueError(f"expected a file of authorities to check {url} with, found none")
            self._trust = Trust(authorities)
        self._host = parts.hostname
        self._port = parts.port or (80 if self._trust is None else 443)
        self._target = f"{parts.path.rstrip('/')}{contract.REPORTS_PATH}{kind}"
        self._token_file = token_file
        self._upstream = H1Upstream(
            idle_seconds=IDLE_SECONDS,
            connect_seconds=CONNECT_SECONDS,
            tls=None if self._trust is None else self._trust.context,
        )
        self._make = make
        self._on_settings = on_settings
        self._on_alone = on_alone
        self._on_routers = on_routers
        self._on_artifact = on_artifact
        self._on_taken = on_taken
        self._now = asyncio.Event()
        self._sequence = 0
        self._logged_error = ""
        self._failures = 0
        self._interval = BUSY_RETRY_SECONDS

    def report_now(self) -> None:
        """Report at once, after the first arrival since idleness or a change of state."""
        self._now.set()

    async def run(self) -> None:
        """Report until cancelled; a failure is logged once and retried at the next turn."""
        try:
            while True:
                interval = await self._turn()
                try:
                    async with asyncio.timeout(interval):
                        await self._now.wait()
                except TimeoutError:
                    continue
                self._now.clear()
        finally:
            await self._upstream.close()

    async def _turn(self) -> float:
        """Report; return the seconds until the next report."""
        try:
            interval = await self._report()
        except (UpstreamError, DocumentError, OSError) as error:
            untrusted = isinstance(error.__cause__, ssl.SSLCertVerificationError)
            if not untrusted:
                self._on_alone()
            if str(error) != self._logged_error:
                self._logged_error = str(error)
                log(UNTRUSTED if untrusted else "report failed", level="warning", error=str(error))
            # Spread the retries: all reporters lost the same operator at the same moment, and each handshake
            # delays the next one more than a report does.
            self._failures += 1
            return retry_after(self._failures, self._interval) * random.uniform(0.6, 1.2)  # noqa: S311 - jitter
        if self._logged_error:
            log("reports are taken again")
        self._logged_error, self._failures, self._interval = "", 0, interval
        return interval

    async def _report(self) -> float:
        """Send one report; return the seconds until the next."""
        self._sequence += 1
        headers = [(b"host", join(self._host, self._port).encode()), (b"content-type", b"application/json")]
        if self._token_file is not None:
            headers.append((b"authorization", b"Bearer " + self._token_file.read_bytes().strip()))
        if self._trust is not None:
            headers.append((HEADER, self._trust.digest))
        request = Request(
            method="POST", target=self._target, headers=tuple(headers), body=self._make(self._sequence)
        )
        answer = await send(self._upstream, self._host, self._port, request, timeout=TIMEOUT_SECONDS)
        if answer.status != 200:
            detail = cut(answer.body[:1500].decode("utf-8", "replace"), 300)
            raise DocumentError(f"report answer: expected status 200, found {answer.status}: {detail}")
        document, settings = decode_answer(answer.body)
        if self._trust is not None:
            self._trust.verified()
            if document.authorities is not None:
                self._trust.take(document.authorities)
        if document.routers:
            self._on_routers(document.routers)
        if settings is not None:
            self._on_settings(settings)
        else:
            self._on_alone()
        self._on_artifact(document.artifact or None)
        self._on_taken(document.taken or 0)
        return min(LONGEST_SECONDS, max(0.1, document.next_report_ms / 1000))
