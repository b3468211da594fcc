"""What RFC 9110 and 9112 say that a server MUST do with a request, one row each."""

from __future__ import annotations

HOST = b"Host: a\r\n"
END = b"Connection: close\r\n\r\n"

REFUSED: dict[str, tuple[bytes, int]] = {
    "9112 2.2: whitespace between the start line and the first field": (
        b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
        400,
    ),
    "9112 2.2: a bare CR": (b"GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", 400),
    "9112 2.2: a bare LF ends no field": (b"GET / HTTP/1.1\nHost: a\n\n", 400),
    "9112 2.3: another major version": (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", 505),
    "9112 2.3: the version is case-sensitive": (b"GET / http/1.1\r\n" + HOST + b"\r\n", 400),
    "9112 3: a request line that is none": (b"GET\r\n" + HOST + b"\r\n", 400),
    "9112 3.2: no Host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "9112 3.2: two Hosts": (b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400),
    "9112 3.2: an invalid Host": (b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
    "9112 3.2: a Host with a user": (b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", 400),
    "9112 3.2: a list of Hosts": (b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400),
    "9112 3.2: a target that is no form": (b"GET a HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "9112 3.2.3: CONNECT is not served": (b"CONNECT a:1 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "9112 3.2.4: * with another method": (b"GET * HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "9110 4.2.1: an http URL without a host": (b"GET http:///p HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "9110 4.2.4: an http URL with a user": (b"GET http://u@a/ HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "9110 4.2.5: a fragment": (b"GET /#f HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "9112 5.1: space before the colon": (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
    "9112 5.1: a tab before the colon": (b"GET / HTTP/1.1\r\nHost: a\r\nX\t: y\r\n\r\n", 400),
    "9112 5.2: a folded field": (b"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\tz\r\n\r\n", 400),
    "9110 5.5: NUL in a value": (b"GET / HTTP/1.1\r\nHost: a\r\nX: y\0z\r\n\r\n", 400),
    "9110 5.6.2: a name that is no token": (b"GET / HTTP/1.1\r\nHost: a\r\nX@: y\r\n\r\n", 400),
    "9112 6.1: a coding that is not known": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: br, chunked\r\n\r\n",
        501,
    ),
    "9112 6.1: chunked and a length": (
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "9112 6.1: chunked in HTTP/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "9112 6.3: chunked is not last": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, br\r\n\r\n",
        400,
    ),
    "9112 6.3: lengths that differ": (
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        400,
    ),
    "9110 8.6: a length with a sign": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\nx", 400),
    "9110 8.6: a negative length": (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\nx", 400),
    "9110 8.6: a length that overflows": (
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\nx",
        400,
    ),
    "9112 7.1: a chunk size that overflows": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        400,
    ),
    "9112 7.1: no CRLF behind a chunk": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n0\r\n\r\n",
        400,
    ),
    "9112 7.1.1: an extension with a bare LF": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;a\nb\r\nx\r\n0\r\n\r\n",
        400,
    ),
    "9110 15.5.14: a body beyond the limit": (
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100001\r\n\r\n",
        413,
    ),
    "6585 5: fields beyond the limit": (
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
        431,
    ),
}
"""What must be refused, and with which status."""

TAKEN: dict[str, tuple[bytes, tuple[str, str, dict[bytes, bytes], bytes]]] = {
    "9112 2.2: an empty line before the request": (
        b"\r\nGET /p HTTP/1.1\r\n" + HOST + END,
        ("GET", "/p", {b"host": b"a"}, b""),
    ),
    "9112 3.2.2: the absolute form names the host": (
        b"GET HTTP://b:8/p?q HTTP/1.1\r\n" + HOST + END,
        ("GET", "/p?q", {b"host": b"b:8"}, b""),
    ),
    "9112 3.2.4: OPTIONS of the server": (
        b"OPTIONS * HTTP/1.1\r\n" + HOST + END,
        ("OPTIONS", "*", {b"host": b"a"}, b""),
    ),
    "9112 3.2.4: OPTIONS of an http URL without a path": (
        b"OPTIONS http://b HTTP/1.1\r\n" + HOST + END,
        ("OPTIONS", "*", {b"host": b"b"}, b""),
    ),
    "9110 5.1: names are case-insensitive": (
        b"POST / HTTP/1.1\r\nhOST: a\r\ncONTENT-lENGTH: 1\r\n" + END + b"x",
        ("POST", "/", {b"host": b"a"}, b"x"),
    ),
    "9110 5.5: whitespace around a value is none of it": (
        b"GET / HTTP/1.1\r\nHost: \t a \t\r\nX:y \r\nZ:\r\n" + END,
        ("GET", "/", {b"host": b"a", b"x": b"y", b"z": b""}, b""),
    ),
    "9112 6.3: no length and no chunks is no body": (
        b"POST / HTTP/1.1\r\n" + HOST + END,
        ("POST", "/", {b"host": b"a"}, b""),
    ),
    "9112 7: chunked is case-insensitive": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n" + END + b"1\r\nx\r\n0\r\n\r\n",
        ("POST", "/", {b"host": b"a"}, b"x"),
    ),
    "9112 7.1: sizes in either case, with zeros": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
        + END
        + b"00A\r\n0123456789\r\n000\r\n\r\n",
        ("POST", "/", {b"host": b"a"}, b"0123456789"),
    ),
    "9112 7.1.1: extensions that are not known are ignored": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
        + END
        + b'1;a="b;c"\r\nx\r\n0;z\r\n\r\n',
        ("POST", "/", {b"host": b"a"}, b"x"),
    ),
    "9110 7.6.1: fields that Connection names end here": (
        b"GET / HTTP/1.1\r\nHost: a\r\nX-Hop: 1\r\nConnection: x-hop , Host\r\n" + END,
        ("GET", "/", {b"host": b"a"}, b""),
    ),
    "9110 7.8: an Upgrade of HTTP/1.0 is ignored": (
        b"GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        ("GET", "/", {}, b""),
    ),
    "9110 10.1.1: an Expect of HTTP/1.0 is ignored": (
        b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
        ("POST", "/", {}, b"x"),
    ),
}
"""What must be taken: method, target, fields and body as the service sees them."""
