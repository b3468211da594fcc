"""Finds an endpoint: in this process, by an environment variable (on a laptop), or in the cluster's DNS."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
import socket
import urllib.parse
from typing import Any, Protocol

import msgspec

from penstock.errors import EndpointNotFound
from penstock.handles.arguments import HandleCall
from penstock.handles.stream import Pieces
from penstock_wire.contract import ENDPOINTS_ENV, NAMESPACE_ENV

PATH = "/"
"""Path of requests, unless a URL has another. It does not name a method, so the default method answers."""


class LocalEndpoint(Protocol):
    """An endpoint that is served in this process (`penstock.testing`).

    Attributes:
        loop: the loop in which it runs.
    """

    loop: asyncio.AbstractEventLoop

    async def answer(self, call: HandleCall) -> Any:
        """Return the value of the answer.

        Raises:
            UpstreamError: it failed.
        """
        ...

    async def stream(self, call: HandleCall) -> Pieces:
        """Return the pieces of a generator's answer.

        Raises:
            UpstreamError: it failed before the first piece.
        """
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Remote:
    """An endpoint that is called by HTTP.

    Args:
        host: host of its Service, or of a router.
        port: port there.
        target: path of requests.
    """

    host: str
    port: int
    target: str


Place = LocalEndpoint | Remote

_local: dict[str, LocalEndpoint] = {}


def add_local(name: str, served: LocalEndpoint) -> None:
    """Let handles with a name call an endpoint of this process from now on.

    Args:
        name: the endpoint's name.
        served: the endpoint.

    Raises:
        ValueError: the process already serves an endpoint with this name.
    """
    if name in _local:
        raise ValueError(f"expected one endpoint {name!r} in this process at a time, found two")
    _local[name] = served


def remove_local(name: str) -> None:
    """Undo `add_local`."""
    _local.pop(name, None)


def place_of(endpoint: str, namespace: str | None, url: str | None) -> Place:
    """Find an endpoint.

    Args:
        endpoint: its name.
        namespace: a handle's namespace; None = the process's own.
        url: a handle's URL; it takes precedence over the rest.

    Raises:
        EndpointNotFound: its address is unknown.
        ValueError: the URL is not a valid http URL.
    """
    if url is not None:
        return read_url(url)
    if namespace is None and (local := _local.get(endpoint)) is not None:
        return local
    own = os.environ.get(NAMESPACE_ENV)
    table = os.environ.get(ENDPOINTS_ENV)
    if table is not None and namespace in (None, own):
        urls = _urls(table)
        if endpoint not in urls:
            raise EndpointNotFound(
                f"expected one of the endpoints {', '.join(sorted(urls)) or '(none)'} of {ENDPOINTS_ENV}, "
                f"found {endpoint!r}",
                endpoint=endpoint,
            )
        return read_url(urls[endpoint])
    namespace = namespace or own
    if namespace:
        return Remote(f"{endpoint}.{namespace}.svc", 80, PATH)
    raise EndpointNotFound(
        f"expected to be in a pod, in `penstock run`, or in penstock.testing.serving with an endpoint "
        f"{endpoint!r}, found none of these: give the handle a namespace, or the endpoint's url",
        endpoint=endpoint,
    )


def look_up(place: Place, endpoint: str) -> None:
    """Check by DNS that the endpoint's Service exists; a failed look-up does not raise.

    Args:
        place: its place.
        endpoint: its name.

    Raises:
        EndpointNotFound: the name does not exist.
    """
    if isinstance(place, Remote):
        try:
            socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if is_unknown(error):
                raise unknown(endpoint, place) from error


def is_unknown(error: BaseException | None) -> bool:
    """Whether an error means that a DNS name does not exist."""
    return isinstance(error, socket.gaierror) and error.errno in (socket.EAI_NONAME, socket.EAI_NODATA)


def unknown(endpoint: str, place: Remote) -> EndpointNotFound:
    """Make the error for an endpoint without a Service."""
    return EndpointNotFound(
        f"expected a ModelEndpoint {endpoint!r}, found no Service at {place.host}", endpoint=endpoint
    )


@functools.lru_cache(256)
def read_url(url: str) -> Remote:
    """Parse a URL into a place.

    Raises:
        ValueError: it is not an http URL.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"expected a URL such as http://host:8000, found {url!r}: {error}") from None
    odd = parts.scheme != "http" or parts.query or parts.fragment or parts.username or not url.isascii()
    if odd or host is None or any(mark.isspace() for mark in url):
        raise ValueError(f"expected a URL such as http://host:8000 or http://host/path, found {url!r}")
    return Remote(host, port or 80, parts.path or PATH)


@functools.lru_cache(8)
def _urls(table: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(table, type=dict[str, str])
    except msgspec.MsgspecError as error:
        raise ValueError(
            f"expected {ENDPOINTS_ENV} to be a JSON object of names and URLs, found {table[:64]!r}: {error}"
        ) from error
