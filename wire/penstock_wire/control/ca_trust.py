"""The authorities by which a reporter checks the operator's certificate.

Two sources, as with settings: the file mounted beside them, and the operator's answers, which bring a change
at once. An authority in either is trusted: a rotation adds a new one to both long before it uses it, and
removes an old one from both.
"""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path

from penstock_wire.errors import DocumentError
from penstock_wire.process import log

HEADER = b"x-penstock-authorities"
"""Header field of a report: the process's authorities, as `digest` writes them."""


def digest(authorities: bytes) -> str:
    """Return a short name for a set of authorities.

    Args:
        authorities: their certificates, PEM.
    """
    return hashlib.sha256(authorities).hexdigest()[:16]


def client_context(authorities: bytes) -> ssl.SSLContext:
    """Make a client's TLS context that trusts only these authorities, and checks the server's name.

    Args:
        authorities: their certificates, PEM; if empty, no server is trusted.

    Raises:
        DocumentError: they cannot be read.
    """
    # NB: not ssl.create_default_context: it loads the system's authorities, which must not count here.
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
        path: the mounted file, read again for each new connection.
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
        """The digest of the latest answer's authorities, or else of the file's."""
        return digest(self._received or self._file).encode()

    def verified(self) -> None:
        """Keep the file's authorities, which have verified the operator, whatever the file says later."""
        if not self._received and self._made_from is not None:
            self._received = self._made_from[0]

    def take(self, authorities: str) -> None:
        """Take the authorities of an operator's answer.

        Args:
            authorities: certificates, PEM; unusable ones are logged and change nothing.
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
        """Return the TLS context to check the operator with; it is rebuilt only if a source has changed."""
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
