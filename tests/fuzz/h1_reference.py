"""A second, strict reading of HTTP/1.1: RFC 9112's grammar as regular expressions, whole bytes only.

Written apart from the front, the upstream and their parser, to say where what they took must end.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator

TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
# RFC 9112 section 3: words may be set apart by more than one space.
_REQUEST_LINE = re.compile(rb"(" + TOKEN + rb") +([!-~\x80-\xff]+) +HTTP/(1\.[01])\r\n")
_STATUS_LINE = re.compile(rb"HTTP/(1\.[01]) ([1-5][0-9]{2})(?: [^\r\n]*)?\r\n")
_FIELD = re.compile(rb"(" + TOKEN + rb"):[ \t]*([\t -~\x80-\xff]*)\r\n")
_QUOTED = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"'
# NB: names and values of extensions may be empty here, and a quoted text can be behind a token, which RFC
# 9112 section 7.1.1 does not say: llhttp takes that, we ignore extensions, and they cannot pass for data as
# long as they do not contain CR or LF.
_WORD = rb"(?:" + TOKEN + rb")?"
_EXTENSION = rb"[ \t]*;[ \t]*" + _WORD + rb"(?:[ \t]*=[ \t]*" + _WORD + rb"(?:" + _QUOTED + rb")?)?"
_CHUNK = re.compile(rb"([0-9A-Fa-f]+)((?:" + _EXTENSION + rb")*)\r\n")
_CLOSES = re.compile(rb"(?:^|,)[ \t]*close[ \t]*(?:,|$)", re.IGNORECASE)

_KEEPS = re.compile(rb"(?:^|,)[ \t]*keep-alive[ \t]*(?:,|$)", re.IGNORECASE)


class Unreadable(Exception):
    """The bytes are not a request."""


class Incomplete(Exception):
    """The bytes are the beginning of a request at most."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """One request, as received."""

    method: bytes
    target: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes
    keep: bool


def requests(data: bytes) -> list[Reading]:
    """The requests at the beginning of `data`, up to the first that is incomplete, unreadable or the last."""
    return [request for request, _ in _all(data)]


def lengths(data: bytes) -> list[int]:
    """The bytes that each of `requests` has, blank lines before it included."""
    ends = [0, *(end for _, end in _all(data))]
    return [end - start for start, end in itertools.pairwise(ends)]


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerReading:
    """One answer, as received, and where it ends; `keep`: its connection may be used again."""

    status: int
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes
    keep: bool
    end: int


def answer(data: bytes, method: str, *, ended: bool) -> AnswerReading:
    """The first final answer at the beginning of `data` (RFC 9112 section 6.3).

    Args:
        ended: the server has ended its connection behind it.

    Raises:
        Unreadable: it is none.
        Incomplete: it is the beginning of one at most.
    """
    at, status = 0, 0
    while status < 200:
        while data[at : at + 1] in (b"\r", b"\n"):
            at += 1
        line = _match(_STATUS_LINE, data, at)
        version, status = line[1], int(line[2])
        fields, at = _fields(data, line.end())
        if status == 101:
            raise Unreadable
    values: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        values.setdefault(name, []).append(value)
    lengths, codings = values.get(b"content-length", []), values.get(b"transfer-encoding", [])
    keep = _keeps(version, values)
    if codings and (lengths or version == b"1.0" or [coding.lower() for coding in codings] != [b"chunked"]):
        raise Unreadable
    if len(lengths) > 1 or (lengths and re.fullmatch(rb"[0-9]+", lengths[0]) is None):
        raise Unreadable
    body = b""
    if status == 204 and (codings or (lengths and int(lengths[0]))):
        keep = False
    elif method == "HEAD" or status in (204, 304):
        pass
    elif codings:
        body, at = _chunks(data, at)
    elif lengths:
        body = data[at : at + int(lengths[0])]
        at += int(lengths[0])
        if at > len(data):
            raise Incomplete
    else:
        body, at, keep = data[at:], len(data), False
        if not ended:
            raise Incomplete
    return AnswerReading(status, tuple(fields), body, keep, at)


def _all(data: bytes) -> Iterator[tuple[Reading, int]]:
    at = 0
    keep = True
    while keep:
        try:
            request, at = _request(data, at)
        except (Unreadable, Incomplete):
            return
        yield request, at
        keep = request.keep


def _match(pattern: re.Pattern[bytes], data: bytes, at: int) -> re.Match[bytes]:
    match = pattern.match(data, at)
    if match is None:
        raise Incomplete if data.find(b"\n", at) < 0 else Unreadable
    return match


def _keeps(version: bytes, values: dict[bytes, list[bytes]]) -> bool:
    """Whether a message lets its connection stay (RFC 9112 section 9.3)."""
    tokens = b",".join(values.get(b"connection", []))
    return (version == b"1.1" or _KEEPS.search(tokens) is not None) and _CLOSES.search(tokens) is None


def _fields(data: bytes, at: int) -> tuple[list[tuple[bytes, bytes]], int]:
    fields = []
    while not data.startswith(b"\r\n", at):
        line = _match(_FIELD, data, at)
        fields.append((line[1].lower(), line[2].rstrip(b" \t")))
        at = line.end()
    return fields, at + 2


def _request(data: bytes, at: int) -> tuple[Reading, int]:
    while data[at : at + 1] in (
        b"\r",
        b"\n",
    ):  # RFC 9112 section 2.2: empty lines before a request are ignored
        at += 1
    line = _match(_REQUEST_LINE, data, at)
    method, target, version = line.groups()
    fields, at = _fields(data, line.end())
    values: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        values.setdefault(name, []).append(value)
    hosts, lengths, codings = (
        values.get(name, []) for name in (b"host", b"content-length", b"transfer-encoding")
    )
    if len(hosts) > 1 or (not hosts and version == b"1.1"):
        raise Unreadable
    if codings:
        if lengths or version == b"1.0" or [coding.lower() for coding in codings] != [b"chunked"]:
            raise Unreadable
        body, at = _chunks(data, at)
    elif lengths:
        if len(lengths) > 1 or re.fullmatch(rb"[0-9]+", lengths[0]) is None:
            raise Unreadable
        end = at + int(lengths[0])
        if end > len(data):
            raise Incomplete
        body, at = data[at:end], end
    else:
        body = b""
    return Reading(method, target, tuple(fields), body, _keeps(version, values)), at


def _chunks(data: bytes, at: int) -> tuple[bytes, int]:
    body = b""
    while True:
        line = _match(_CHUNK, data, at)
        size, at = int(line[1], 16), line.end()
        if not size:
            return body, _fields(data, at)[1]
        if at + size + 2 > len(data):
            raise Incomplete
        body += data[at : at + size]
        at += size
        if not data.startswith(b"\r\n", at):
            raise Unreadable
        at += 2
