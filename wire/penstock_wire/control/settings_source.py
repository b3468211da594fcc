"""Reads settings from a file (a mounted ConfigMap, or one that a user edits) and from the report channel.

One rule for both: of documents with a `version`, the higher wins, from whichever channel. Documents without
one, which only a process without `--report-to` accepts, count each change as new. A document that cannot be
used is logged and changes nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from penstock_wire.errors import DocumentError
from penstock_wire.process import log

POLL_SECONDS = 0.5


class Versioned(Protocol):
    """A settings document."""

    @property
    def version(self) -> int | None:
        """The number of changes so far; None if they are not counted."""
        ...


T = TypeVar("T", bound=Versioned)


class SettingsSource(Generic[T]):
    """Holds the document in effect and hands each newer one to `apply`.

    Args:
        path: the file, or None if there is none.
        decode: bytes (JSON or YAML) to document; raises DocumentError.
        apply: takes a newer document, whole, between two steps of the event loop.
        versioned_only: refuse documents without a version (a process that reports to an operator).
    """

    def __init__(
        self,
        *,
        path: Path | None,
        decode: Callable[[bytes], T],
        apply: Callable[[T], None],
        versioned_only: bool,
    ) -> None:
        self._path = path
        self._decode = decode
        self._apply = apply
        self._versioned_only = versioned_only
        self._digest = b""
        self._told = ""
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
        """Version of the document in effect; 0 if there is none or it has no version."""
        return (self.current.version or 0) if self.current is not None else 0

    def offer(self, data: bytes, *, origin: str) -> bool:
        """Take a document if it is newer than the one in effect.

        Args:
            data: its bytes.
            origin: where it came from, for the log.

        Returns:
            Whether it took effect.
        """
        try:
            document = self._decode(data)
            if document.version is None and self._versioned_only:
                raise DocumentError(f"{origin}: expected a version, found none")
        except DocumentError as error:
            self._refused = True
            if str(error) != self._told:
                self._told = str(error)
                log("settings refused", level="error", origin=origin, error=str(error))
            return False
        self._told = ""
        self._refused = False
        if document.version is not None and self.current is not None and document.version <= self.version:
            return False
        self.current = document
        self._apply(document)
        log("settings applied", origin=origin, version=document.version)
        return True

    def read_file(self) -> bool:
        """Read the file if it changed; return whether a newer document took effect."""
        if self._path is None:
            return False
        try:
            data = self._path.read_bytes()
        except OSError as error:
            if error.strerror != self._unread:
                self._unread = error.strerror
                log("settings file cannot be read", level="error", path=str(self._path), error=error.strerror)
            return False
        self._unread = None
        digest = hashlib.sha256(data).digest()
        if digest == self._digest:
            return False
        self._digest = digest
        return self.offer(data, origin=str(self._path))

    def reload_now(self) -> None:
        """Read the file at once (SIGHUP), whether it changed or not."""
        self._digest = b""
        self._wake.set()

    async def watch(self) -> None:
        """Follow the file until cancelled; a change takes effect within a second."""
        while True:
            self.read_file()
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()
