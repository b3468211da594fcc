"""Reads settings from a file (a mounted ConfigMap, or one that a user edits) and from the operator.

Each change of a document counts as new, whatever its `version` says. Without an operator, the file is all
there is. With one (`--report-to`), the file is only for a start while no operator answers: whoever may write
ConfigMaps can put anything there. From the operator's first document on, the file has no effect any more.

A document that cannot be used is logged and changes nothing. A file that has changed is read a second time
before it takes effect: an editor may have emptied it, and still be writing.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from penstock_wire.control.documents import digest
from penstock_wire.errors import DocumentError
from penstock_wire.process import log

POLL_SECONDS = 0.5
SETTLE_SECONDS = 0.25
"""How long a changed file must stay as it is."""


PACKED = ".gz"
"""What the name of a file with a large document ends with instead: it is compressed, by gzip."""

MAX_PACKED_BYTES = 64 * 1024 * 1024
"""The most bytes of a document that came compressed."""


class Versioned(Protocol):
    """A settings document."""

    @property
    def version(self) -> int | None:
        """The number of changes so far; None if they are not counted."""
        ...


T = TypeVar("T", bound=Versioned)


class SettingsSource(Generic[T]):
    """Holds the document in effect and hands each other one to `apply`.

    Args:
        path: the file, or None if there is none.
        decode: bytes (JSON or YAML) to document; raises DocumentError.
        apply: takes another document, whole, between two steps of the event loop.
        reports: whether the process reports to an operator. Then it takes only documents with a version, and
            the file by the rule above.
        named: the name of a document; empty for the digest of its bytes.
    """

    def __init__(
        self,
        *,
        path: Path | None,
        decode: Callable[[bytes], T],
        apply: Callable[[T], None],
        reports: bool,
        named: Callable[[T], str] = lambda _: "",
    ) -> None:
        self._path = path
        self._decode = decode
        self._apply = apply
        self._reports = reports
        self._named = named
        self._takes_file = not reports
        self._led = ""  # the digest of the operator's last usable document
        self._digest = self._seen = ""  # of the file as it was taken last, and as it was read last
        self._logged_error = ""
        self._unread: str | None = None
        self._refused = False
        self._wake = asyncio.Event()
        self.current: T | None = None

    @property
    def refused(self) -> bool:
        """Whether the latest document was unusable, or the file could not be read."""
        return self._refused or self._unread is not None

    @property
    def version(self) -> int:
        """Version of the operator's document in effect; 0 if what is in effect did not come from it."""
        return (self.current.version or 0) if self._led and self.current is not None else 0

    @property
    def digest(self) -> str:
        """Name of the operator's document in effect, or its digest; empty as for `version`."""
        return self._led

    def offer(self, data: bytes) -> bool:
        """Take a document of the operator, unless it is in effect; return whether it took effect."""
        name = digest(data)
        if name == self._led or not self._take(data, origin="operator") or self.current is None:
            return False
        self._led, self._takes_file = self._named(self.current) or name, False
        return True

    def alone(self) -> None:
        """Use the file, as no operator answers, or it has no settings; not after it has given some."""
        if not self._led and not self._takes_file:
            self._takes_file = True
            self.read_file()

    def read_file(self, *, settled: bool = False) -> bool:
        """Read the file if it counts and has changed; return whether another document took effect.

        Args:
            settled: take it only if it was the same when it was read last.
        """
        if self._path is None or not self._takes_file:
            return False
        try:
            data = _read(self._path)
        except OSError as error:
            if error.strerror != self._unread:
                self._unread = error.strerror
                log("settings file cannot be read", level="error", path=str(self._path), error=error.strerror)
            return False
        self._unread = None
        name = digest(data)
        before, self._seen = self._seen, name
        if name == self._digest or (settled and name != before):
            return False
        self._digest = name
        return self._take(data, origin=str(self._path))

    def _take(self, data: bytes, *, origin: str) -> bool:
        try:
            document = self._decode(data)
            if document.version is None and self._reports:
                raise DocumentError(f"{origin}: expected a version, found none")
        except DocumentError as error:
            self._refused = True
            if str(error) != self._logged_error:
                self._logged_error = str(error)
                kept = {} if self.current is None else {"in_effect": "the settings before"}
                log("settings refused", level="error", origin=origin, error=str(error), **kept)
            return False
        self._logged_error = ""
        self._refused = False
        self.current = document
        self._apply(document)
        log("settings applied", origin=origin, version=document.version)
        return True

    def reload_now(self) -> None:
        """Read the file at once (SIGHUP), whether it changed or not."""
        self._digest = ""
        self._wake.set()

    async def watch(self) -> None:
        """Follow the file until cancelled; a change takes effect within a second."""
        while True:
            self.read_file(settled=not self._wake.is_set())
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS if self._seen == self._digest else SETTLE_SECONDS):
                    await self._wake.wait()


def _read(path: Path) -> bytes:
    """Read a file, or the compressed one that stands in its place."""
    packed = path.with_name(path.name + PACKED)
    if path.exists() or not packed.exists():
        return path.read_bytes()
    try:
        return unpacked(packed.read_bytes())
    except DocumentError as error:
        raise OSError(0, str(error)) from error


def unpacked(data: bytes) -> bytes:
    """Return what gzip has compressed (raises DocumentError)."""
    reader = zlib.decompressobj(wbits=31)
    try:
        whole = reader.decompress(data, MAX_PACKED_BYTES)
    except zlib.error as error:
        raise DocumentError(f"expected a document compressed by gzip, found other bytes: {error}") from error
    if not reader.eof:
        raise DocumentError(f"expected at most {MAX_PACKED_BYTES} bytes of a whole document, found others")
    return whole
