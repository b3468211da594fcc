"""Warm-up: requests that a new model must answer 2xx, one after the other, before its pod is ready.

They go to the model as they are, past the queue: their times would not be those of batches.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import yaml

from penstock_sidecar.interfaces import Send
from penstock_wire import yaml_text
from penstock_wire.errors import DocumentError
from penstock_wire.headers import HOP_BY_HOP, REQUEST_ID, Headers
from penstock_wire.http import Request, UpstreamError
from penstock_wire.process import log

RETRY_FIRST, RETRY_LONGEST = 0.25, 5.0
"""Seconds until a request that failed is sent again; doubled each time."""

_METHOD = re.compile(r"[A-Z]{1,16}")
_TARGET = re.compile(r"/[!-~]*")
_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD_VALUE = re.compile(r"[\t -~]*")


class _Written(msgspec.Struct, forbid_unknown_fields=True, rename={"body_b64": "bodyB64"}):
    path: str
    method: str = "POST"
    headers: dict[str, str] = {}
    body: Any = None
    body_b64: str | None = None


def read(path: Path) -> tuple[Request, ...]:
    """Read a file of warm-up requests.

    Args:
        path: JSON or YAML, a list of `{path, method, headers, body | bodyB64}`; a body that is text is sent
            as it is, any other body as JSON.

    Raises:
        DocumentError: the file cannot be used; with what was expected and found, and where.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DocumentError(f"warm-up: expected a file that can be read: {error}") from error
    return decode(data)


def decode(data: bytes) -> tuple[Request, ...]:
    """Read the requests from the bytes of a warm-up file (raises DocumentError)."""
    try:
        # NB: JSON first: YAML takes most of it, but reads 1e3 as text and runs slowly.
        document: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        try:
            document = yaml_text.read(data)
        except yaml.YAMLError as error:
            raise DocumentError(f"warm-up: expected JSON or YAML, found neither: {error}") from error
    try:
        written = msgspec.convert(document, list[_Written])
    except msgspec.ValidationError as error:
        raise DocumentError(f"warm-up: {error}") from error
    return tuple(_request(element, f"$[{index}]") for index, element in enumerate(written))


def _request(written: _Written, where: str) -> Request:
    for name, value, pattern, wanted in (
        ("method", written.method, _METHOD, "an upper-case method such as POST"),
        ("path", written.path, _TARGET, "a path of visible ASCII that begins with /"),
        *((f"headers.{name}", name, _FIELD_NAME, "a field name") for name in written.headers),
        *((f"headers.{name}", text, _FIELD_VALUE, "ASCII text") for name, text in written.headers.items()),
    ):
        if not pattern.fullmatch(value):
            raise DocumentError(f"warm-up: {where}.{name}: expected {wanted}, found {value[:100]!r}")
    headers: list[tuple[bytes, bytes]] = []
    for header, text in written.headers.items():
        field = header.lower().encode()
        if field in HOP_BY_HOP or field == b"content-length":
            raise DocumentError(
                f"warm-up: {where}.headers.{header}: expected a field that is not about the connection"
            )
        headers.append((field, text.strip().encode()))
    names = {name for name, _ in headers}
    body = _body(written, where)
    if body and b"content-type" not in names:
        headers.append((b"content-type", b"application/json"))
    return Request(method=written.method, target=written.path, headers=tuple(headers), body=body)


def _body(written: _Written, where: str) -> bytes:
    if written.body_b64 is not None:
        if written.body is not None:
            raise DocumentError(f"warm-up: {where}: expected body or bodyB64, found both")
        try:
            return base64.b64decode(written.body_b64, validate=True)
        except (binascii.Error, ValueError) as error:
            raise DocumentError(f"warm-up: {where}.bodyB64: expected base64: {error}") from error
    if written.body is None:
        return b""
    if isinstance(written.body, str):
        return written.body.encode()
    try:
        return msgspec.json.encode(written.body)
    except (TypeError, ValueError) as error:  # a value that YAML has but JSON lacks
        raise DocumentError(f"warm-up: {where}.body: expected JSON: {error}") from error


class Warmup:
    """The warm-up of one process.

    Args:
        requests: the requests to send, in this order.
        timeout: time limit of each in seconds; a request that takes longer is logged and sent again.
        send: sends to the model.
        clock: the monotonic time in seconds.
    """

    def __init__(
        self, requests: tuple[Request, ...], *, timeout: float, send: Send, clock: Callable[[], float]
    ) -> None:
        self._requests = requests
        self._timeout = timeout
        self._send = send
        self._clock = clock
        self._wrong = ""
        self._step = 0

    def __bool__(self) -> bool:
        """Whether there is something to send."""
        return bool(self._requests)

    @property
    def message(self) -> str:
        """The progress of the warm-up, "" if there is nothing to send."""
        if not self._requests:
            return ""
        request = self._requests[min(self._step, len(self._requests) - 1)]
        at = f"warm-up request {self._step + 1} of {len(self._requests)}, {request.method} {request.path}"
        return f"{at}: {self._wrong}" if self._wrong else f"{at}: not answered yet"

    async def run(self, current: Callable[[], bool]) -> bool:
        """Send each request until it is answered 2xx.

        Args:
            current: whether the model is still the process that this began with; called before each request
                but the first.

        Returns:
            True when all were answered, False if the model changed.
        """
        for step, request in enumerate(self._requests):
            self._step, self._wrong = step, ""
            begun, logged, pause = self._clock(), False, RETRY_FIRST
            while wrong := await self._try(request, step):
                if not current():
                    return False
                late = self._clock() - begun >= self._timeout
                self._wrong = f"not answered 2xx within {self._timeout:g} s: {wrong}" if late else wrong
                if late and not logged:
                    logged = True
                    log("warm-up failed", level="error", error=self.message)
                await asyncio.sleep(pause)
                if not current():  # the next process is given its userConfig first
                    return False
                pause = min(2 * pause, RETRY_LONGEST)
            if not current():
                return False
        if self._requests:
            log("warmed up", requests=len(self._requests))
        return True

    async def _try(self, request: Request, step: int) -> str:
        """Send one request once; returns what was wrong, "" for nothing."""
        ours: Headers = ((REQUEST_ID, b"warmup-%d" % (step + 1)),)
        own = any(name == REQUEST_ID for name, _ in request.headers)
        sent = Request(request.method, request.target, request.headers + (() if own else ours), request.body)
        try:
            answer = await self._send(sent, self._timeout)
        except UpstreamError as error:
            return str(error)
        return "" if 200 <= answer.status < 300 else f"expected a 2xx, found {answer.status}"
