"""What RFC 9110 and 9112 say that a gateway MUST do with an answer, one row each."""

from __future__ import annotations

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
GOOD = OK + b"\r\nok"
Fields = list[tuple[bytes, bytes]]

REFUSED: dict[str, bytes] = {
    "9112 2.2: whitespace between the status line and the first field": (
        b"HTTP/1.1 200 OK\r\n x: y\r\ncontent-length: 2\r\n\r\nok"
    ),
    "9112 2.2: a bare CR": OK + b"x: a\rb\r\n\r\nok",
    "9112 2.2: a bare LF ends no status line": b"HTTP/1.1 200 OK\ncontent-length: 2\r\n\r\nok",
    "9112 2.2: a bare LF ends no field": OK + b"x: a\ny: b\r\n\r\nok",
    "9112 2.3: the version is case-sensitive": b"http/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "9112 2.3: another major version": b"HTTP/2.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "9112 4: a status of two digits": b"HTTP/1.1 20 OK\r\ncontent-length: 2\r\n\r\nok",
    "9112 4: a status of four digits": b"HTTP/1.1 2000 OK\r\ncontent-length: 2\r\n\r\nok",
    "9110 15: a status below 100": b"HTTP/1.1 099 OK\r\ncontent-length: 2\r\n\r\nok",
    "9110 15: a status above 599": b"HTTP/1.1 600 OK\r\ncontent-length: 2\r\n\r\nok",
    "9112 5.1: space before the colon": OK + b"x : a\r\n\r\nok",
    "9112 5.1: a tab before the colon of a length": b"HTTP/1.1 200 OK\r\ncontent-length\t: 2\r\n\r\nok",
    "9112 5.2: a folded field": OK + b"x: a\r\n  b\r\n\r\nok",
    "9112 5.2: a folded length": b"HTTP/1.1 200 OK\r\ncontent-length:\r\n 2\r\n\r\nok",
    "9112 5.2: a folded coding": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding:\r\n\tchunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    ),
    "9110 5.5: NUL in a value": OK + b"x: a\0b\r\n\r\nok",
    "9110 5.5: another control character in a value": OK + b"x: a\x01b\r\n\r\nok",
    "9110 5.6.2: a name that is no token": OK + b"x@y: a\r\n\r\nok",
    "9110 5.6.2: a field without a name": OK + b": a\r\n\r\nok",
    "9112 6.1: chunked and a length": OK + b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "9112 6.1: a coding that was not asked for": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    ),
    "9112 6.1: chunked in HTTP/1.0": (
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    ),
    "9112 6.1: chunked twice": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n"
        b"2\r\nok\r\n0\r\n\r\n"
    ),
    "9112 6.3: chunked is not last": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, gzip\r\n\r\nok",
    "9112 6.3: lengths that differ": OK + b"content-length: 3\r\n\r\nok",
    "9112 6.3: a list of lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2, 3\r\n\r\nok",
    "9110 8.6: a length with a sign": b"HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\nok",
    "9110 8.6: a negative length": b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nok",
    "9110 8.6: a length that overflows": b"HTTP/1.1 200 OK\r\ncontent-length: %s\r\n\r\nok" % (b"9" * 23),
    "9112 7.1: a chunk size that overflows": CHUNKED + b"fffffffffffffffff\r\nok",
    "9112 7.1: a chunk size that is none": CHUNKED + b"0x2\r\nok\r\n0\r\n\r\n",
    "9112 7.1: space behind a chunk size": CHUNKED + b"2 \r\nok\r\n0\r\n\r\n",
    "9112 7.1: no CRLF behind a chunk": CHUNKED + b"1\r\nok\r\n0\r\n\r\n",
    "9112 7.1: a chunk size ends with a bare LF": CHUNKED + b"2\nok\r\n0\r\n\r\n",
    "9112 7.1.1: an extension with a bare LF": CHUNKED + b"2;a\nb\r\nok\r\n0\r\n\r\n",
    "9110 6.5.1: a length in the trailers": CHUNKED + b"2\r\nok\r\n0\r\ncontent-length: 9\r\n\r\n",
    "9110 7.8: a switch of protocols that nobody asked for": (
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"
    ),
}
"""Answers that must not be forwarded."""

INCOMPLETE: dict[str, bytes] = {
    "9112 8: within the status line": b"HTTP/1.1 200",
    "9112 8: within the fields": OK + b"x: a",
    "9112 8: within a body of known length": OK + b"\r\no",
    "9112 8: within a chunk": CHUNKED + b"2\r\no",
    "9112 8: before the last chunk": CHUNKED + b"2\r\nok\r\n",
    "9112 8: within the trailers": CHUNKED + b"2\r\nok\r\n0\r\nx: y\r\n",
    "9110 15.2: behind an interim answer": b"HTTP/1.1 103 Early Hints\r\n\r\n",
}
"""Answers whose server ends its connection before their end."""

KEPT, CLOSED = 1, 2
READ: dict[str, tuple[str, bytes, tuple[int, Fields, bytes], int]] = {
    "9112 2.2: an empty line before the answer": ("GET", b"\r\n" + GOOD, (200, [], b"ok"), KEPT),
    "9112 4: the reason is of no account": (
        "GET",
        b"HTTP/1.1 200 \r\ncontent-length: 2\r\n\r\nok",
        (200, [], b"ok"),
        KEPT,
    ),
    "9110 15: a status that is not known is passed on": (
        "GET",
        b"HTTP/1.1 299 Own\r\ncontent-length: 2\r\n\r\nok",
        (299, [], b"ok"),
        KEPT,
    ),
    "9110 5.1: names are case-insensitive": (
        "GET",
        b"HTTP/1.1 200 OK\r\nCONTENT-LENGTH: 2\r\nX-A: B\r\n\r\nok",
        (200, [(b"x-a", b"B")], b"ok"),
        KEPT,
    ),
    "9110 5.3: values of one name keep their order": (
        "GET",
        OK + b"a: 2\r\nb: x\r\na: 1\r\n\r\nok",
        (200, [(b"a", b"2"), (b"b", b"x"), (b"a", b"1")], b"ok"),
        KEPT,
    ),
    "9112 5.1: whitespace around a value is none of it": (
        "GET",
        b"HTTP/1.1 200 OK\r\ncontent-length:\t2 \t\r\nx: \t a b \t\r\ny:\r\nz:c\r\n\r\nok",
        (200, [(b"x", b"a b"), (b"y", b""), (b"z", b"c")], b"ok"),
        KEPT,
    ),
    "9110 5.5: other octets than ASCII are opaque": (
        "GET",
        OK + b"x: \xe4\xff\r\n\r\nok",
        (200, [(b"x", b"\xe4\xff")], b"ok"),
        KEPT,
    ),
    "9110 6.5.1: trailers are not merged into the fields": (
        "GET",
        CHUNKED + b"2\r\nok\r\n0\r\nx: y\r\n\r\n",
        (200, [], b"ok"),
        KEPT,
    ),
    "9112 7: chunked is case-insensitive": (
        "GET",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked \r\n\r\n2\r\nok\r\n0\r\n\r\n",
        (200, [], b"ok"),
        KEPT,
    ),
    "9112 7.1: sizes in either case, with zeros": (
        "GET",
        CHUNKED + b"00A\r\n0123456789\r\n000\r\n\r\n",
        (200, [], b"0123456789"),
        KEPT,
    ),
    "9112 7.1.1: extensions that are not known are ignored": (
        "GET",
        CHUNKED + b'2;a="b;c"\r\nok\r\n0;z\r\n\r\n',
        (200, [], b"ok"),
        KEPT,
    ),
    "9112 6.3: HEAD has no body, whatever its length says": (
        "HEAD",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\nx: y\r\n\r\n",
        (200, [(b"x", b"y")], b""),
        KEPT,
    ),
    "9112 6.3: HEAD has no body, whatever its coding says": ("HEAD", CHUNKED, (200, [], b""), KEPT),
    "9112 6.3: 204 has no body": ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", (204, [], b""), KEPT),
    "9110 8.6: 204 with a length that it must not have": (
        "GET",
        b"HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\n",
        (204, [], b""),
        CLOSED,
    ),
    "9112 6.1: 204 with a coding that it must not have": (
        "GET",
        b"HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n",
        (204, [], b""),
        CLOSED,
    ),
    "9112 6.3: 304 has no body, whatever its length says": (
        "GET",
        b'HTTP/1.1 304 Not Modified\r\ncontent-length: 99\r\netag: "a"\r\n\r\n',
        (304, [(b"etag", b'"a"')], b""),
        KEPT,
    ),
    "9110 15.2: interim answers are passed over, any number of them": (
        "GET",
        b"HTTP/1.1 100 Continue\r\n\r\n"
        b"HTTP/1.1 103 Early Hints\r\nlink: <a>\r\n\r\nHTTP/1.1 199 Own\r\nx: y\r\n\r\n" + GOOD,
        (200, [], b"ok"),
        KEPT,
    ),
    "9110 7.6.1: fields of one connection end here": (
        "GET",
        OK + b"connection: X-Hop, keep-alive\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\nx: y\r\n\r\nok",
        (200, [(b"x", b"y")], b"ok"),
        KEPT,
    ),
    "9110 7.8: an offer to upgrade is none of the answer's": (
        "GET",
        OK + b"connection: upgrade\r\nupgrade: h2c\r\n\r\nok",
        (200, [], b"ok"),
        KEPT,
    ),
    "9112 9.3: HTTP/1.0 that says keep-alive": (
        "GET",
        b"HTTP/1.0 200 OK\r\nconnection: Keep-Alive\r\ncontent-length: 2\r\n\r\nok",
        (200, [], b"ok"),
        KEPT,
    ),
    "9112 9.3: HTTP/1.0 that says nothing": (
        "GET",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        (200, [], b"ok"),
        CLOSED,
    ),
    "9112 9.6: close": ("GET", OK + b"connection: x, Close\r\nx: 1\r\n\r\nok", (200, [], b"ok"), CLOSED),
    "9112 9.2: bytes that nobody asked for are no answer": ("GET", GOOD + GOOD, (200, [], b"ok"), CLOSED),
    "9112 6.3: a body behind a 204 is no answer": (
        "GET",
        b"HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison",
        (204, [], b""),
        CLOSED,
    ),
}
"""Method, answer, what it means (status, fields, body), and whether its connection may be used again."""
