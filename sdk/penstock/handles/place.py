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
from penstock.handles.arguments import Call
from penstock.handles.stream import Pieces
from penstock_wire.contract import ENDPOINTS_ENV, NAMESPACE_ENV

PATH = "/"
"""Where requests go unless a URL says so. It ends in no method's name: the default method answers there."""


class LocalEndpoint(Protocol):
    """An endpoint that is served in this process (`penstock.testing`).

    Attributes:
        loop: where it runs.
    """

    loop: asyncio.AbstractEventLoop

    async def answer(self, call: Call) -> Any:
        """The value of the answer.

        Raises:
            UpstreamError: it failed.
        """
        ...

    async def stream(self, call: Call) -> Pieces:
        """The pieces of a generator's answer.

        Raises:
            UpstreamError: it failed before the first one.
        """
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Remote:
    """An endpoint that is called by HTTP.

    Args:
        host: of its Service, or of a router.
        port: likewise.
        target: of requests.
    """

    host: str
    port: int
    target: str


Place = LocalEndpoint | Remote

_local: dict[str, LocalEndpoint] = {}


def add_local(name: str, served: LocalEndpoint) -> None:
    """From now on handles of this name call an endpoint of this process.

    Args:
        name: of the endpoint.
        served: the endpoint.

    Raises:
        ValueError: the process serves another one of this name.
    """
    if name in _local:
        raise ValueError(f"expected one endpoint {name!r} in this process at a time, found two")
    _local[name] = served


def remove_local(name: str) -> None:
    """Take `add_local` back."""
    _local.pop(name, None)


def place_of(endpoint: str, namespace: str | None, url: str | None) -> Place:
    """Find an endpoint.

    Args:
        endpoint: its name.
        namespace: as a handle has it; None = that of the process.
        url: as a handle has it; where it is given nothing else counts.

    Raises:
        EndpointNotFound: nobody can say.
        ValueError: a URL that cannot be called.
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
    """Ask the DNS whether the endpoint's Service is there; what prevents the question raises nothing.

    Args:
        place: where it is.
        endpoint: its name.

    Raises:
        EndpointNotFound: there is no such name.
    """
    if isinstance(place, Remote):
        try:
            socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if is_unknown(error):
                raise unknown(endpoint, place) from error


def is_unknown(error: BaseException | None) -> bool:
    """Whether an error says that a name does not exist."""
    return isinstance(error, socket.gaierror) and error.errno in (socket.EAI_NONAME, socket.EAI_NODATA)


def unknown(endpoint: str, place: Remote) -> EndpointNotFound:
    """The error of an endpoint that no Service has the name of."""
    return EndpointNotFound(
        f"expected a ModelEndpoint {endpoint!r}, found no Service at {place.host}", endpoint=endpoint
    )


@functools.lru_cache(256)
def read_url(url: str) -> Remote:
    """The place that a URL names.

    Raises:
        ValueError: it is no http URL.
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
