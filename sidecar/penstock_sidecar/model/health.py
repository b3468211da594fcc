"""The probe of a model that speaks gRPC alone (https://github.com/grpc/grpc/blob/master/doc/health-checking.md)."""

from __future__ import annotations

from typing import Final

from penstock_wire.headers import get
from penstock_wire.http import Request, Response

PATH: Final = "/grpc.health.v1.Health/Check"
_EMPTY: Final = b"\0\0\0\0\0"
_SERVING: Final = b"\0\0\0\0\2\x08\1"
_UNIMPLEMENTED: Final = b"12"


def check() -> Request:
    """Make the request."""
    request = Request("POST", PATH, ((b"content-type", b"application/grpc"),), _EMPTY)
    request.trailers = True
    return request


def read(answer: Response) -> Response:
    """Read an answer as one of HTTP: 200 if the model serves, or has no such method."""
    trailers = () if answer.trailers is None else answer.trailers.fields
    code = get(trailers, b"grpc-status") or get(answer.headers, b"grpc-status")
    serves = code == _UNIMPLEMENTED or (code == b"0" and answer.body == _SERVING)
    return Response(200 if serves else 503, answer.headers, answer.body)
