"""Sends requests of v2 over REST to a model that speaks gRPC alone; an `Upstream`."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

from penstock_wire.addresses import join
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import REQUEST_ID, get
from penstock_wire.http import (
    ALL_BYTES,
    AnswerUnreadable,
    GiveUp,
    Opened,
    Request,
    Response,
    Upstream,
    UpstreamAnswer,
    UpstreamError,
)
from penstock_wire.http.client.answer import Answer, Body, Carrier
from penstock_wire.http2.asking import Asked, answer_of, call_of
from penstock_wire.http2.protobuf import BadMessageError
from penstock_wire.instances_form import shape_error


class Ended(Carrier):
    """The carrier of a body that has come whole."""

    def expect(self) -> None:
        pass

    def relax(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def drop_body(self, body: Body) -> None:
        pass


class RestUpstream:
    """An `Upstream`.

    Args:
        calls: sends the calls.
    """

    def __init__(self, calls: Upstream) -> None:
        self._calls = calls

    def begin(
        self,
        host: str,
        port: int,
        request: Request,
        timeout: float,
        idle: float,
        whole_bytes: int,
        opened: Opened,
        connected: Callable[[], object] | None = None,
    ) -> GiveUp:
        where = join(host, port)
        try:
            _check_encoding(request)
            asked = call_of(request) if request.stream is None and not request.upgrade else None
        except PenstockError as error:
            refusal = error
        except BadMessageError as wrong:
            refusal = shape_error(wrong.path, wrong.expected, wrong.actual)
        except (ValueError, TypeError, RecursionError) as unread:  # whatever JSON can have
            refusal = shape_error("body", "a request of v2", str(unread)[:200])
        else:
            if asked is not None:
                answered = functools.partial(_answered, where, asked, whole_bytes, opened)
                return self._calls.begin(
                    host, port, asked.request, timeout, timeout, ALL_BYTES, answered, connected
                )
            expected = "expected a request of the Open Inference Protocol, since the model speaks gRPC alone"
            text = f"{expected}, found {request.method} {request.path[:200]}"
            refusal = PenstockError(Reason.BAD_REQUEST, text, status=404)
        identity = (get(request.fields, REQUEST_ID) or b"").decode("latin-1")
        answer = refusal.response(request_id=identity)
        asyncio.get_running_loop().call_soon(opened, _as_asked(answer, whole_bytes))
        return _nothing

    def retire(self, host: str, port: int) -> None:
        self._calls.retire(host, port)

    async def close(self) -> None:
        await self._calls.close()


def _check_encoding(request: Request) -> None:
    """Refuse a body that is encoded.

    Raises:
        PenstockError: no call can hold it.
    """
    encoding = get(request.fields, b"content-encoding") or b"identity"
    if request.body and encoding != b"identity":
        found = encoding[:40].decode("latin-1")
        expected = "expected a body without content-encoding, since the model speaks gRPC alone"
        raise PenstockError(Reason.BAD_MEDIA_TYPE, f"{expected}, found {found}")


def _nothing() -> None:
    """Give up what was answered."""


def _answered(
    where: str,
    asked: Asked,
    whole_bytes: int,
    opened: Opened,
    answer: Response | UpstreamAnswer | UpstreamError,
) -> None:
    if not isinstance(answer, Response):  # an error: `ALL_BYTES`
        opened(answer)
        return
    try:
        made = answer_of(asked, answer)
    except Exception as error:  # whatever a model's answer can have
        opened(AnswerUnreadable(f"{where} sent an answer that cannot be read: {error}"))
        return
    opened(_as_asked(made, whole_bytes))


def _as_asked(answer: Response, whole_bytes: int) -> Response | Answer:
    """Return an answer as one that is read piece by piece, if that was asked for."""
    if whole_bytes >= 0:
        return answer
    body = Body(Ended())
    body.feed(answer.body)
    body.finish()
    return Answer(answer.status, answer.headers, len(answer.body), body)
