"""Asks a Prometheus server for one number.

A user who can write a TrafficSplit chooses the query, and so can read whatever the operator can read there, a
number at a time. A query costs the server at most `SECONDS`, and the operator at most `MAX_BYTES`;
redirections are not followed, and only the number, or the reason why there is none, is passed on.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from penstock_wire.words import cut

SECONDS = 5.0
"""Most seconds for a query, connecting included."""
MAX_BYTES = 64 * 1024
"""Most bytes of an answer: one number takes 200; a refusal has a message."""
MAX_WORDS = 200
"""Most characters of the server's message about a query."""
TOKEN, AUTHORITIES = "token", "ca.crt"
"""Files of the credentials' folder."""
_QUERY_PATH = "/api/v1/query"
_REFUSED_QUERY = frozenset({400, 422})
"""Statuses of Prometheus for a query that it cannot parse or evaluate."""
_EXPECTED = "expected one number"


@dataclass(frozen=True, slots=True)
class NoValue:
    """A query's result without a number.

    Args:
        reason: why there is none, in words.
    """

    reason: str


class _Unusable(Exception):
    """A failure to get a number; its text is the reason."""


class _Sample(msgspec.Struct):
    """One series of an instant vector; a histogram has no value."""

    value: tuple[float, str] | None = None


class _Data(msgspec.Struct, rename="camel"):
    """The result of a query; its form depends on its type."""

    result_type: str
    result: msgspec.Raw


class _Answer(msgspec.Struct):
    """An answer of the HTTP API (https://prometheus.io/docs/prometheus/latest/querying/api)."""

    status: str
    data: _Data | None = None
    error: str = ""


class Prometheus:
    """A client of a server with Prometheus' HTTP API.

    Args:
        url: the server's URL, with the path before `/api/v1/query` if it has one; empty for no server.
        credentials: folder with a bearer token (`token`) and the certificates of authorities (`ca.crt`), both
            optional, and read again for each query; empty for none.
        seconds: most seconds for a query.
    """

    def __init__(self, url: str = "", credentials: str = "", *, seconds: float = SECONDS) -> None:
        self._url = url.rstrip("/")
        self._credentials = Path(credentials) if credentials else None
        self._seconds = seconds

    async def query(self, text: str) -> float | NoValue:
        """Return the current result of a query, or the reason why there is no number.

        Args:
            text: PromQL whose result is a scalar, or a vector of one series.
        """
        if not self._url:
            return NoValue(
                "no Prometheus is configured: expected the operator's flag --prometheus-url "
                "(value operator.prometheus.url of the chart)"
            )
        try:
            async with asyncio.timeout(self._seconds):
                return _number(await self._ask(text))
        except _Unusable as why:
            return NoValue(str(why))
        except TimeoutError:
            return NoValue(f"{self._url}: no answer within {self._seconds:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            words = str(error) or type(error).__name__
            return NoValue(f"{self._url} could not be asked: {cut(words, MAX_WORDS)}")

    async def _ask(self, text: str) -> bytes:
        """Return the body of an answer with a result (raises _Unusable)."""
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if token := self._credential(TOKEN):
            headers["Authorization"] = f"Bearer {token}"
        # NB: one connection a query: both credentials can change, and queries are seconds apart.
        connector = aiohttp.TCPConnector(ssl=self._tls(), force_close=True)
        async with (
            aiohttp.ClientSession(connector=connector, auto_decompress=False) as session,
            session.get(
                self._url + _QUERY_PATH,
                params={"query": text, "timeout": f"{self._seconds:g}s"},
                headers=headers,
                allow_redirects=False,
            ) as answer,
        ):
            body = await _read(answer.content)
            if answer.status == 200:
                return body
            words = _error_of(body) if answer.status in _REFUSED_QUERY else ""
            raise _Unusable(f"{self._url}: HTTP status {answer.status}" + (f": {words}" if words else ""))

    def _credential(self, name: str) -> str:
        """Read a file of the credentials; empty if there is none (raises OSError)."""
        if self._credentials is None:
            return ""
        try:
            return (self._credentials / name).read_text("ascii").strip()
        except FileNotFoundError:
            return ""

    def _tls(self) -> ssl.SSLContext | bool:
        """Make the context to check a server's certificate: with the given authorities, else the system's."""
        authorities = self._credential(AUTHORITIES)
        return ssl.create_default_context(cadata=authorities) if authorities else True


async def _read(stream: aiohttp.StreamReader) -> bytes:
    body = bytearray()
    async for piece in stream.iter_any():
        body += piece
        if len(body) > MAX_BYTES:
            raise _Unusable(f"{_EXPECTED}, found an answer of more than {MAX_BYTES} bytes: of many series?")
    return bytes(body)


def _decoded(body: bytes | msgspec.Raw, kind: Any) -> Any:
    """Decode JSON of a form (raises _Unusable)."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _Unusable(f"expected an answer of Prometheus' HTTP API, found another one: {error}") from None


def _error_of(body: bytes) -> str:
    """Return the server's message about a query that it refuses; empty if the body is not an API error."""
    try:
        answer: _Answer = _decoded(body, _Answer)
    except _Unusable:
        return ""
    return cut(answer.error, MAX_WORDS)


def _number(body: bytes) -> float:
    """Return the single number of an answer (raises _Unusable)."""
    answer: _Answer = _decoded(body, _Answer)
    if answer.status != "success" or answer.data is None:
        raise _Unusable(f"{_EXPECTED}, found an error: {cut(answer.error, MAX_WORDS)}")
    if answer.data.result_type == "scalar":
        sample: tuple[float, str] = _decoded(answer.data.result, tuple[float, str])
        return _finite(sample[1])
    if answer.data.result_type != "vector":
        raise _Unusable(f"{_EXPECTED}, found a result of type {answer.data.result_type[:MAX_WORDS]}")
    series: list[_Sample] = _decoded(answer.data.result, list[_Sample])
    if len(series) != 1:
        actual = f"{len(series)}: sum or choose" if series else "none: is the metric there?"
        raise _Unusable(f"expected one series, found {actual}")
    (only,) = series
    if only.value is None:
        raise _Unusable(f"{_EXPECTED}, found a histogram")
    return _finite(only.value[1])


def _finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise _Unusable(f"{_EXPECTED}, found {text[:MAX_WORDS]!r}") from None
    if not math.isfinite(number):
        raise _Unusable(f"{_EXPECTED}, found {text[:MAX_WORDS]}: was it divided by zero?")
    return number
