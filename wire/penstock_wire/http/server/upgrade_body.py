"""Parses bodies of upgrade requests, which httptools does not: it stops after a head with `Upgrade`."""

from __future__ import annotations

from typing import Any, Protocol

import httptools


class ParserCallbacks(Protocol):
    """The callbacks of httptools."""

    def on_message_begin(self) -> None:
        """A message begins."""
        ...

    def on_url(self, part: bytes) -> None:
        """A part of the request's target."""
        ...

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header field."""
        ...

    def on_headers_complete(self) -> None:
        """The head is complete."""
        ...

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        ...

    def on_message_complete(self) -> None:
        """The message is complete."""
        ...


class _MutedCallbacks:
    """Hides a parser's callbacks from the reader until `listens` is set."""

    def __init__(self, reader: ParserCallbacks) -> None:
        self.listens = False
        self.on_body = reader.on_body
        self.on_message_complete = reader.on_message_complete
        self._reader = reader

    def on_message_begin(self) -> None:
        if self.listens:
            self._reader.on_message_begin()

    def on_url(self, part: bytes) -> None:
        if self.listens:
            self._reader.on_url(part)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.listens:
            self._reader.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.listens:
            self._reader.on_headers_complete()


def parser_in_body(reader: ParserCallbacks, left: int) -> Any:
    """Make a parser that has read a head and expects its body.

    Args:
        reader: its callbacks get the body, and what follows it.
        left: bytes of the body; negative if it is chunked.
    """
    listener = _MutedCallbacks(reader)
    parser = httptools.HttpRequestParser(listener)
    framing = b"transfer-encoding: chunked" if left < 0 else b"content-length: %d" % left
    parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
    listener.listens = True
    return parser
