"""Answers that an endpoint gives itself, without a pod: probing it neither wakes nor loads a model. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock_wire.control.traffic_rules import StaticAnswer
from penstock_wire.http import Request, Response

_METHODS = ("GET", "HEAD")
_JSON = ((b"content-type", b"application/json"),)
_TEXT = ((b"content-type", b"text/plain; charset=utf-8"),)


class StaticAnswers:
    """The answers of one endpoint.

    Args:
        answers: as its settings have them.
    """

    def __init__(self, answers: Iterable[StaticAnswer]) -> None:
        self._answers = {answer.path: _response(answer) for answer in answers}

    def of(self, request: Request) -> Response | None:
        """The answer to a request; None if a pod is to give it.

        Args:
            request: its target is without the route.
        """
        return self._answers.get(request.path) if request.method in _METHODS else None


def _response(answer: StaticAnswer) -> Response:
    body = answer.body.encode()
    return Response(answer.status, _kind(body) if body else (), body)


def _kind(body: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """The content type of a body: JSON if it is a JSON object or array, else text."""
    try:
        return _JSON if isinstance(msgspec.json.decode(body), dict | list) else _TEXT
    except msgspec.DecodeError:
        return _TEXT
