"""Follows the EndpointSlices of the backends in the router's namespace, or in all, by list and watch.

This uses aiohttp, which the router has anyway: with the `kubernetes` package's async client, the process
takes 67 MB instead of 42, and its start 1.2 s of CPU instead of 0.6 (Python 3.11), for one list and one
watch.

Known slices stay in effect whatever happens to the connection. A watch that ends resumes where it stopped;
a watch that gets 410 (its version is too old) is followed by a new list; a failure is retried after a growing
pause, and only a watch that delivered an event, or lasted a while, makes the pause short again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import aiohttp
import msgspec

from penstock_router.pods.api_server import ApiServer
from penstock_router.pods.endpoint_slices import SELECTOR, Address, merge
from penstock_wire.process import log
from penstock_wire.words import cut

WATCH_SECONDS = 60
"""The server ends a watch after this, or up to half as long again: it bounds how long a dead connection stays
unnoticed."""
LIST_SECONDS = 30
FIRST_PAUSE_SECONDS = 0.1
MOST_PAUSE_SECONDS = 10.0
SOUND_WATCH_SECONDS = 5.0
MAX_LINE_BYTES = 32 * 1024 * 1024


class WatchError(Exception):
    """The apiserver's answer cannot be used."""


class Gone(WatchError):
    """The version that the watch began at is too old: list again."""


class SliceWatch:
    """Follows the EndpointSlices of all backends of a namespace, or of all namespaces.

    Args:
        changed: called at each change, and after each list, with a namespace (if all are followed, else "")
            and all its ready addresses by backend.
        random_source: for jitter.
        everywhere: whether to follow all namespaces, not the router's own alone.
    """

    def __init__(
        self,
        api: ApiServer,
        *,
        changed: Callable[[str, Mapping[str, tuple[Address, ...]]], None],
        random_source: random.Random,
        everywhere: bool = False,
    ) -> None:
        self.synced = False
        """Whether the slices have been listed once."""
        self._api = api
        self._changed = changed
        self._random = random_source
        self._slices: dict[str, dict[str, dict[str, Any]]] = {}  # by namespace and name
        self._version: str | None = None
        self._failures = 0
        self._logged = ""
        self._everywhere = everywhere
        where = "" if everywhere else f"namespaces/{api.namespace}/"
        self._url = f"{api.url}/apis/discovery.k8s.io/v1/{where}endpointslices"

    async def run(self) -> None:
        """List and watch until cancelled."""
        connector = aiohttp.TCPConnector(ssl=self._api.tls(), limit=4)
        async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:
            while True:
                began = asyncio.get_running_loop().time()
                try:
                    if self._version is None:
                        self._version = await self._list(session)
                    await self._watch(session, self._version)
                except Gone:
                    self._version = None
                except (WatchError, aiohttp.ClientError, TimeoutError, OSError) as error:
                    self._log_failure(f"{type(error).__name__}: {error}")
                if asyncio.get_running_loop().time() - began > SOUND_WATCH_SECONDS:
                    self._failures = 0
                await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        pause: float = min(MOST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**self._failures)
        self._failures = min(self._failures + 1, 16)
        return pause * self._random.uniform(0.5, 1)

    def _log_failure(self, error: str) -> None:
        if error != self._logged:
            log("endpoint slices cannot be followed", level="warning", error=error, url=self._url)
        self._logged = error

    def _good(self) -> None:
        if self._logged:
            log("endpoint slices are followed again")
        self._logged = ""

    async def _list(self, session: aiohttp.ClientSession) -> str:
        async with session.get(
            self._url,
            params={"labelSelector": SELECTOR},
            headers=self._api.headers(),
            timeout=aiohttp.ClientTimeout(total=LIST_SECONDS),
        ) as answer:
            document = _decode(await _body(answer))
        version = str((document.get("metadata") or {}).get("resourceVersion") or "")
        if not version:
            raise WatchError("expected a list with a resourceVersion, found none")
        before, self._slices = self._slices, {}
        for slice_ in document.get("items") or ():
            self._put(slice_)
        self.synced = True
        self._good()
        self._tell({"", *before, *self._slices})
        return version

    def _key(self, slice_: Mapping[str, Any]) -> tuple[str, str]:
        metadata = slice_.get("metadata") or {}
        namespace = metadata.get("namespace") if self._everywhere else ""
        return str(namespace or ""), str(metadata.get("name") or "")

    def _tell(self, namespaces: Iterable[str]) -> None:
        for namespace in sorted(namespaces):
            self._changed(namespace, merge(self._slices.get(namespace, {}).values()))

    def _put(self, slice_: dict[str, Any]) -> None:
        namespace, name = self._key(slice_)
        self._slices.setdefault(namespace, {})[name] = slice_

    async def _watch(self, session: aiohttp.ClientSession, version: str) -> None:
        seconds = WATCH_SECONDS + self._random.randrange(WATCH_SECONDS // 2)
        params = {
            "labelSelector": SELECTOR,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
        }
        timeout = aiohttp.ClientTimeout(total=seconds + 10, sock_connect=5)
        async with session.get(
            self._url, params=params, headers=self._api.headers(), timeout=timeout
        ) as answer:
            if answer.status != 200:
                await _body(answer)
            self._good()
            rest = b""
            # NB: not line by line: aiohttp refuses lines over 128 KiB, and a slice may hold 1000 pods.
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    raise WatchError(f"expected events of at most {MAX_LINE_BYTES} bytes, found a longer one")
                self._take([line for line in lines if line.strip()])

    def _take(self, lines: list[bytes]) -> None:
        """Apply some events; their changes are reported once."""
        changed: set[str] = set()
        try:
            for line in lines:
                changed.update(self._event(_decode(line)))
        finally:
            self._tell(changed)

    def _event(self, event: dict[str, Any]) -> Iterable[str]:
        """Apply one event; returns the namespace whose slice changed, if one did."""
        kind, slice_ = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            message = f"{slice_.get('code')} {slice_.get('reason')}: {slice_.get('message')}"
            raise Gone(message) if slice_.get("code") == 410 else WatchError(message)
        version = (slice_.get("metadata") or {}).get("resourceVersion")
        if version:
            self._version = str(version)
        self._failures = 0
        namespace, name = self._key(slice_)
        if kind in ("ADDED", "MODIFIED"):
            self._put(slice_)
        elif kind == "DELETED":
            known = self._slices.get(namespace, {})
            known.pop(name, None)
            if not known:
                self._slices.pop(namespace, None)
        else:
            return ()
        return (namespace,)


def _decode(data: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WatchError(f"expected JSON, found bytes that are not: {error}") from error
    if not isinstance(document, dict):
        raise WatchError(f"expected an object, found {type(document).__name__}")
    return document


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    body = await answer.read()
    if answer.status == 200:
        return body
    text = cut(body[:1500].decode("utf-8", "replace"), 300)
    message = f"expected status 200, found {answer.status}: {text}"
    raise Gone(message) if answer.status == 410 else WatchError(message)
