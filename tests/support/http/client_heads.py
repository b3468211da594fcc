"""How real clients write a POST of JSON: their heads as they were recorded.

Each was read from a socket of 127.0.0.1:8000 while the client sent a POST to `/v1/predict`, with default
settings but for what its name says. Tests of the data plane send requests in all of these ways: what our own
client sends proves little.
"""

from __future__ import annotations

import asyncio
import re

from tests.support.clocks.waiting import SECONDS

_RECORDED = """\
# requests 2.34
POST /v1/predict HTTP/1.1
Host: 127.0.0.1:8000
User-Agent: python-requests/2.34.2
Accept-Encoding: gzip, deflate
Accept: */*
Connection: keep-alive
Content-Length: 18
Content-Type: application/json

# httpx 0.28
POST /v1/predict HTTP/1.1
Host: 127.0.0.1:8000
Accept: */*
Accept-Encoding: gzip, deflate
Connection: keep-alive
User-Agent: python-httpx/0.28.1
Content-Length: 18
Content-Type: application/json

# aiohttp 3.14
POST /v1/predict HTTP/1.1
Host: 127.0.0.1:8000
Accept: */*
Accept-Encoding: gzip, deflate
User-Agent: Python/3.11 aiohttp/3.14.5
Content-Length: 18
Content-Type: application/json

# urllib 3.11
POST /v1/predict HTTP/1.1
Accept-Encoding: identity
Content-Length: 18
Host: 127.0.0.1:8000
User-Agent: Python-urllib/3.11
Content-Type: application/json
Connection: close

# Go 1.26
POST /v1/predict HTTP/1.1
Host: 127.0.0.1:8000
User-Agent: Go-http-client/1.1
Content-Length: 18
Content-Type: application/json
Accept-Encoding: gzip

# Java 17 HttpClient
POST /v1/predict HTTP/1.1
Connection: Upgrade, HTTP2-Settings
Content-Length: 18
Host: 127.0.0.1:8000
HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA
Upgrade: h2c
User-Agent: Java-http-client/17.0.15
Content-Type: application/json

# Java 17 HttpURLConnection
POST /v1/predict HTTP/1.1
Content-Type: application/json
User-Agent: Java/17.0.15
Host: 127.0.0.1:8000
Accept: text/html, image/gif, image/jpeg, */*; q=0.2
Connection: keep-alive
Content-Length: 18

# Node 20 fetch
POST /v1/predict HTTP/1.1
host: 127.0.0.1:8000
connection: keep-alive
content-type: application/json
accept: */*
accept-language: *
sec-fetch-mode: cors
user-agent: node
accept-encoding: gzip, deflate
content-length: 18

# Node 20 http
POST /v1/predict HTTP/1.1
content-type: application/json
content-length: 18
Host: 127.0.0.1:8000
Connection: keep-alive

# Perl HTTP::Tiny
POST /v1/predict HTTP/1.1
Host: 127.0.0.1:8000
User-Agent: HTTP-Tiny/0.080
Content-Length: 18
Content-Type: application/json

# curl 7.88
POST /v1/predict HTTP/1.1
Host: 127.0.0.1:8000
User-Agent: curl/7.88.1
Accept: */*
content-type: application/json
Content-Length: 18

# curl --http1.0
POST /v1/predict HTTP/1.0
Host: 127.0.0.1:8000
User-Agent: curl/7.88.1
Accept: */*
content-type: application/json
Content-Length: 18

# curl --http2
POST /v1/predict HTTP/1.1
Host: 127.0.0.1:8000
User-Agent: curl/7.88.1
Accept: */*
Connection: Upgrade, HTTP2-Settings
Upgrade: h2c
HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA
content-type: application/json
Content-Length: 18

# curl --tr-encoding
POST /v1/predict HTTP/1.1
Host: 127.0.0.1:8000
User-Agent: curl/7.88.1
Accept: */*
Connection: TE
TE: gzip
content-type: application/json
Content-Length: 18

# curl -H expect
POST /v1/predict HTTP/1.1
Host: 127.0.0.1:8000
User-Agent: curl/7.88.1
Accept: */*
content-type: application/json
expect: 100-continue
Content-Length: 18

# wget 1.21
POST /v1/predict HTTP/1.1
Host: 127.0.0.1:8000
User-Agent: Wget/1.21.3
Accept: */*
Accept-Encoding: identity
Connection: Keep-Alive
content-type: application/json
Content-Length: 18

# ab
POST /v1/predict HTTP/1.0
Content-length: 18
Content-type: application/json
Host: 127.0.0.1:8000
User-Agent: ApacheBench/2.3
Accept: */*

# ab -k
POST /v1/predict HTTP/1.0
Connection: Keep-Alive
Content-length: 18
Content-type: application/json
Host: 127.0.0.1:8000
User-Agent: ApacheBench/2.3
Accept: */*
"""


def _heads() -> dict[str, bytes]:
    parts = (part.split("\n", 1) for part in _RECORDED.rstrip("\n").split("\n\n"))
    return {name[2:]: "".join(line + "\r\n" for line in rest.split("\n")).encode() for name, rest in parts}


HEADS = _heads()
"""By client; each without the blank line at its end."""

CLOSING = frozenset(("urllib 3.11", "curl --http1.0", "ab"))
"""Clients that want the connection closed after the answer."""

Reply = tuple[int, dict[str, str], bytes]
"""Status, fields (names in lower case) and body of an answer."""


def written(name: str, body: bytes, path: str = "/v1/predict", *fields: str) -> tuple[bytes, bytes]:
    """Return head and body as a client writes them."""
    head = HEADS[name].replace(b"/v1/predict", path.encode(), 1)
    head = re.sub(rb"(?i)(content-length: )\d+", rb"\g<1>%d" % len(body), head)
    return head + "".join(field + "\r\n" for field in fields).encode() + b"\r\n", body


async def ask(
    address: tuple[str, int],
    name: str,
    *bodies: bytes,
    path: str = "/v1/predict",
    fields: tuple[str, ...] = (),
) -> list[Reply]:
    """Send requests one after the other as a client does, on one connection if it keeps its connections."""
    replies: list[Reply] = []
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection(*address)
        for body in bodies:
            if replies and name in CLOSING:
                reader, writer = await asyncio.open_connection(*address)
            head, body = written(name, body, path, *fields)
            writer.write(head)
            if b"100-continue" in head:
                assert (await _head(reader))[0] == 100
            await writer.drain()
            writer.write(body)
            status, got = await _head(reader)
            replies.append((status, got, await reader.readexactly(int(got["content-length"]))))
            if name in CLOSING:
                assert await reader.read() == b""
                writer.close()
        writer.close()
    return replies


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
    return int(first.split(" ")[1]), {
        name.lower(): value for name, _, value in (line.partition(": ") for line in lines)
    }
