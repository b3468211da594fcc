"""Whom a reporter trusts to have signed the operator's certificate.

Two sources, as with settings: the file that is mounted beside them, and the operator's answers, which bring a
change at once. An authority that either names is trusted: a rotation puts it in both long before it uses a
new one and takes an old one out of both.
"""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path

from penstock_wire.errors import DocumentError
from penstock_wire.process import log

HEADER = b"x-penstock-authorities"
"""Of a report: which authorities the process has, as `digest` writes them."""


def digest(authorities: bytes) -> str:
    """A short name for a set of authorities.

    Args:
        authorities: their certificates, PEM.
    """
    return hashlib.sha256(authorities).hexdigest()[:16]


def client_context(authorities: bytes) -> ssl.SSLContext:
    """A client's TLS context that trusts these authorities alone, and checks the server's name.

    Args:
        authorities: their certificates, PEM; none: no server can be trusted.

    Raises:
        DocumentError: they cannot be read.
    """
    # NB: not ssl.create_default_context: it loads the system's authorities, which are not asked here.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if authorities.strip():
        try:
            context.load_verify_locations(cadata=authorities.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise DocumentError(f"authorities: expected certificates in PEM: {error}") from error
    return context


class Trust:
    """The authorities of one process.

    Args:
        path: the mounted file, read anew at each new connection.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = b""
        self._received = b""
        self._made_from: tuple[bytes, bytes] | None = None
        self._made: ssl.SSLContext | None = None
        self._unreadable = ""
        self._read()

    @property
    def digest(self) -> bytes:
        """The latest answer's authorities, or the file's, by name."""
        return digest(self._received or self._file).encode()

    def take(self, authorities: str) -> None:
        """Take what the operator's answer says.

        Args:
            authorities: certificates, PEM; those that cannot be used are logged and change nothing.
        """
        received = authorities.encode()
        try:
            client_context(received)
        except DocumentError as error:
            log("authorities refused", level="error", error=str(error))
            return
        self._received = received
        log("authorities received", digest=digest(received))

    def context(self) -> ssl.SSLContext:
        """What to check the operator's certificate with now; made anew only where a source has changed."""
        self._read()
        source = (self._file, self._received)
        if self._made is None or source != self._made_from:
            try:
                self._made = client_context(self._file + self._received)
            except DocumentError:
                self._made = client_context(self._received)  # the file's fault was logged when it was read
            self._made_from = source
        return self._made

    def _read(self) -> None:
        try:
            data = self._path.read_bytes()
            if data != self._file:
                client_context(data)
            self._file, self._unreadable = data, ""
        except (OSError, DocumentError) as error:
            if str(error) != self._unreadable:
                self._unreadable = str(error)
                log("authorities cannot be read", level="error", path=str(self._path), error=str(error))
