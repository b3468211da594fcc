"""An answer with its own status."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from penstock.encoding import encode
from penstock.errors import AnswerError
from penstock.user_code import USER_CODE, described
from penstock_wire import http

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token of RFC 9110 section 5.6.2


@dataclasses.dataclass(frozen=True, slots=True)
class Response:
    """An answer to one request with a status, headers and body of the model's choice.

    Args:
        status: HTTP status, 200 to 599.
        headers: header fields; an absent `content-type` is filled in.
        body: bytes and text are sent as they are, any other value as JSON.

    Raises:
        ValueError: the status is out of its range.
    """

    status: int = 200
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: Any = b""

    def __post_init__(self) -> None:
        if isinstance(self.status, bool) or not isinstance(self.status, int) or not 200 <= self.status <= 599:
            raise ValueError(f"penstock.Response: expected a status from 200 to 599, found {self.status!r}")


def to_http(response: Response) -> http.Response:
    """Make the HTTP answer.

    Args:
        response: the model's answer.

    Raises:
        AnswerError: the body has no JSON form, or a header is not a single valid line.
    """
    try:
        with USER_CODE:
            return _made(response)
    except AnswerError:
        raise
    except Exception as error:  # what stands in the headers or the body has methods of its own
        raise AnswerError(f"expected a Response that can be sent, found {described(error)}") from error


def _made(response: Response) -> http.Response:
    body = response.body
    if isinstance(body, bytes | bytearray | memoryview):
        data, kind = bytes(body), "application/octet-stream"
    elif isinstance(body, str):
        data, kind = body.encode("utf-8", "replace"), "text/plain; charset=utf-8"
    else:
        data, kind = encode(body), "application/json"
    fields = [_field(str(name), str(value)) for name, value in response.headers.items()]
    if data and not any(name == b"content-type" for name, _ in fields):
        fields.append((b"content-type", kind.encode()))
    return http.Response(status=response.status, headers=tuple(fields), body=data)


def _field(name: str, value: str) -> tuple[bytes, bytes]:
    # NB: a value can repeat a client's input: a line break in it would let the client add header fields.
    if not _NAME.fullmatch(name) or any(mark in value for mark in "\r\n\0"):
        raise AnswerError(
            f"expected a header name and a value of one line, found {name[:64]!r}: {value[:64]!r}"
        )
    return name.lower().encode(), value.encode("latin-1", "replace")
