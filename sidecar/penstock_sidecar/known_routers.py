"""Knows whose `x-penstock-*` fields of a router count: those of the namespace's routers. Pure."""

from __future__ import annotations

from collections.abc import Iterable

_MAPPED = "::ffff:"
"""Before an IPv4 address that has come to a socket of both families."""


class KnownRouters:
    """The addresses of routers, as the operator names them.

    Only what it has named is known. Until a request has come from such an address, all are trusted: a proxy
    between router and sidecar (a mesh) may replace the addresses, and nobody may have named any.
    """

    __slots__ = ("_addresses", "_seen")

    def __init__(self) -> None:
        self._addresses: frozenset[str] = frozenset()
        self._seen = False

    def are(self, addresses: Iterable[str]) -> None:
        """Replace the addresses.

        Args:
            addresses: all that routers of the namespace have.
        """
        self._addresses = frozenset(addresses)

    def trusts(self, peer: str) -> bool:
        """Whether a router's fields count in a request.

        Args:
            peer: the address that it came from.
        """
        if peer.removeprefix(_MAPPED) in self._addresses:
            self._seen = True
            return True
        return not self._seen
