"""A gRPC call: a request of the Open Inference Protocol over REST to the service, and its answer.

Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Final

from penstock_wire.errors import Reason
from penstock_wire.headers import INFERENCE_HEADER_LENGTH, PER_CONNECTION, REASON, TIMEOUT_MS, Headers, get
from penstock_wire.http import ClientGone, Response, UpstreamError
from penstock_wire.http.head_cache import FIELD_BYTES
from penstock_wire.http.memory import does_not_fit
from penstock_wire.http.server import head as heads
from penstock_wire.http.server import streams
from penstock_wire.http2 import frames, inference, protobuf, reflection, status
from penstock_wire.http2.exchange import H2Exchange
from penstock_wire.http2.head import GRPC, Head, answer_block, literal
from penstock_wire.http2.protobuf import BadMessageError
from penstock_wire.process import log

_PREFIX_BYTES: Final = 5
_FIRST: Final = b"\x88" + literal(b"content-type", GRPC)
_IDENTITY: Final = literal(b"grpc-accept-encoding", b"identity")
_DONE: Final = status.trailers(status.OK, "")
_HIDDEN: Final = PER_CONNECTION | {b"content-type", b"content-encoding", INFERENCE_HEADER_LENGTH}
"""Fields of an answer that describe its body, which is not sent as it is."""
_OURS: Final = frozenset(
    {b"accept-encoding", b"content-encoding", b"content-type", b"content-length", INFERENCE_HEADER_LENGTH}
)
"""Metadata that would describe another body than the request over REST has."""
_RESERVED: Final = b"grpc-"
_SMALL_BYTES: Final = 64 * 1024
"""Most bytes of a message that has no tensors."""
_MOST_SIZES: Final = 16
"""Lengths of JSON that are remembered with a head."""
_UNITS: Final = {b"H": 3_600_000.0, b"M": 60_000.0, b"S": 1000.0, b"m": 1.0, b"u": 0.001, b"n": 0.000001}

_LIVE, _READY, _METADATA, _MODEL_READY, _MODEL_METADATA, _INFER, _CHECK, _REFLECT = range(8)
_METHODS: Final = {
    f"/{reflection.INFERENCE}/ServerLive": _LIVE,
    f"/{reflection.INFERENCE}/ServerReady": _READY,
    f"/{reflection.INFERENCE}/ServerMetadata": _METADATA,
    f"/{reflection.INFERENCE}/ModelReady": _MODEL_READY,
    f"/{reflection.INFERENCE}/ModelMetadata": _MODEL_METADATA,
    f"/{reflection.INFERENCE}/ModelInfer": _INFER,
    f"/{reflection.HEALTH}/Check": _CHECK,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": _REFLECT,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _REFLECT,
}
_WATCH: Final = f"/{reflection.HEALTH}/Watch"
"""A stream that would last for ever: not of the model either, whose place it would hold."""
_TARGETS: Final = {_LIVE: "/v2/health/live", _READY: "/v2/health/ready", _METADATA: "/v2"}


class CallHead:
    """What a call's head says.

    Args:
        method: one of the numbers above.
        fields: the fields of the request over REST.
        error: trailers of a call that is refused; empty for one that is taken.
    """

    __slots__ = ("_sized", "error", "fields", "method")

    @property
    def passes(self) -> bool:
        """Whether the call is none of the Open Inference Protocol, and goes to the model as it is."""
        return self.method < 0

    def __init__(self, method: int, fields: Headers, error: bytes) -> None:
        self.method = method
        self.fields = fields
        self.error = error
        self._sized: dict[int, Headers] = {}

    def sized(self, length: int, head: Head) -> Headers:
        """The fields of a request with so many bytes of JSON before its tensors, one object for many.

        Args:
            length: the bytes.
            head: what this was derived from, which grows by what is remembered.
        """
        fields = self._sized.get(length)
        if fields is None:
            fields = (*self.fields, (INFERENCE_HEADER_LENGTH, b"%d" % length))
            if len(self._sized) < _MOST_SIZES:
                self._sized[length] = fields
                head.grown += 2 * FIELD_BYTES + 8 * len(fields)
        return fields


def _read(head: Head) -> CallHead:
    method = _METHODS.get(head.target, -1)
    error = b""
    if head.target == _WATCH:
        return CallHead(_CHECK, (), status.trailers(status.UNIMPLEMENTED, "expected Health/Check"))
    if method < 0:
        return CallHead(method, head.fields, error)
    fields = [field for field in head.fields if field[0] not in _OURS and not field[0].startswith(_RESERVED)]
    encoding = get(head.fields, b"grpc-encoding")
    if encoding not in (None, b"identity"):
        expected = f"expected messages that are not compressed, found {encoding!r}"
        error = status.trailers(status.UNIMPLEMENTED, expected) + _IDENTITY
    if method == _INFER:
        fields.append((b"content-type", b"application/octet-stream"))
    return CallHead(method, tuple(fields), error)


def _milliseconds(timeout: bytes) -> int:
    """Read a `grpc-timeout`; -1 if it cannot be read."""
    digits, unit = timeout[:-1], _UNITS.get(timeout[-1:])
    if unit is None or not digits.isdigit() or len(digits) > 8:
        return -1
    return math.ceil(int(digits) * unit)


class Call(H2Exchange):
    """One call, on its stream."""

    __slots__ = ("_method",)

    @staticmethod
    def is_one(head: Head) -> bool:
        """Whether a request is a call, by its head."""
        if head.method != "POST":
            return False
        if head.derived is None:
            kind = get(head.fields, b"content-type") or b""
            is_call = kind.startswith(GRPC) and kind[len(GRPC) : len(GRPC) + 1] in (
                b"",
                b"+",
                b";",
            )
            head.derived = _read(head) if is_call else False
        return head.derived is not False

    @staticmethod
    def passes(head: Head) -> bool:
        """Whether a call goes to the model as it is, since it is none of the Open Inference Protocol."""
        derived = head.derived
        return isinstance(derived, CallHead) and derived.passes

    def begun(self) -> None:
        derived = self.head.derived
        if not isinstance(derived, CallHead):
            raise TypeError("expected the head of a call")
        self._method = derived.method
        request = self.request
        request.headers = request.shared = derived.fields
        timeout = get(self.own, b"grpc-timeout")
        passes = derived.passes
        own = [field for field in self.own if passes or not field[0].startswith(_RESERVED)]
        left = -1 if timeout is None else _milliseconds(timeout)
        if left >= 0:
            own = [field for field in own if field[0] != TIMEOUT_MS]
            own.append((TIMEOUT_MS, b"%d" % left))
        if own:
            request.headers += tuple(own)
        if timeout is not None and left < 0:
            expected = "expected at most 8 digits and a unit as grpc-timeout"
            self._end(status.trailers(status.INVALID_ARGUMENT, f"{expected}, found {timeout[:40]!r}"))
            return
        if self.head.error is not None:
            self.refuse(self.head.error)
        elif derived.error:
            self._end(derived.error)
        elif self._method == _REFLECT:
            self.open_ended = True
            self.carrier.send_head(self, _FIRST, ended=False)

    def take(self, piece: bytes) -> None:
        self.body_bytes += len(piece)
        if self.answered:
            return
        self.pieces.append(piece)
        if self.open_ended:
            self._reflect()
        elif self.body_bytes >= _PREFIX_BYTES and self.body_bytes - len(piece) < _PREFIX_BYTES:
            self._check_prefix()
        elif self.body_bytes > self.carrier.max_body_bytes + _PREFIX_BYTES:
            self._too_large("a larger one")

    def _check_prefix(self) -> None:
        """Refuse a message as soon as its length is known."""
        whole = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        size = int.from_bytes(whole[1:5], "big")
        if whole[0]:
            expected = "expected a message that is not compressed, since grpc-encoding names no compression"
            self._end(status.trailers(status.INTERNAL, expected))
        elif size > (self.carrier.max_body_bytes if self._method == _INFER else _SMALL_BYTES):
            self._too_large(f"{size}")
        elif size > len(whole) and not self.carrier.fits(size):
            self.refuse(does_not_fit(size))

    def _too_large(self, actual: str) -> None:
        self.refuse(heads.body_too_large(self.own, self.carrier.max_body_bytes, actual))

    def ended(self) -> None:
        if self.open_ended:
            if not self.answered:
                self.answered = True
                self.send_trailers(_DONE)
            return
        if self.answered:
            return
        if self.head.length not in (-1, self.body_bytes):
            self.carrier.cut(self, frames.PROTOCOL_ERROR)
            return
        body = self.body()
        if len(body) < _PREFIX_BYTES or int.from_bytes(body[1:5], "big") != len(body) - _PREFIX_BYTES:
            expected = "expected one message with its length before it"
            self._end(status.trailers(status.INTERNAL, f"{expected}, found {len(body)} bytes"))
            return
        try:
            self._ask(body)
        except BadMessageError as error:
            facts = {"path": error.path, "expected": error.expected, "found": error.actual}
            details = status.error_info(Reason.BAD_SHAPE.value, facts)
            self._end(status.trailers(status.INVALID_ARGUMENT, str(error), details))

    def _ask(self, body: bytes) -> None:
        """Pass the call to the service as a request over REST."""
        request, method = self.request, self._method
        if method == _INFER:
            request.target, size, request.body = inference.read_request(body, _PREFIX_BYTES)
            head, own = self.head, request.headers[len(request.shared or ()) :]
            derived = head.derived
            if isinstance(derived, CallHead):
                request.headers = request.shared = derived.sized(size, head)
                if head.grown:
                    self.carrier.grew(head)
                if own:
                    request.headers += own
        elif method == _CHECK:
            self._check(body)
            return
        else:
            request.method = "GET"
            if method in (_MODEL_READY, _MODEL_METADATA):
                name, version = inference.read_model(body[_PREFIX_BYTES:])
                request.target = inference.model_path(
                    name, version, "/ready" if method == _MODEL_READY else ""
                )
            else:
                request.target = _TARGETS[method]
        self.carrier.start(self)

    def _check(self, body: bytes) -> None:
        """Answer `Health/Check`: whether this server takes calls; no model is asked, and none is woken."""
        service = ""
        for field, kind, start, end in protobuf.fields(body, _PREFIX_BYTES, len(body)):
            if field == 1 and kind == protobuf.BYTES:
                service = protobuf.text(body, start, end, "service")
        if service not in ("", reflection.INFERENCE, reflection.HEALTH):
            self._end(
                status.trailers(status.NOT_FOUND, f"expected a service of this server, found {service!r}")
            )
            return
        self.answered = True
        self._message(_FIRST, b"\x08\x02" if self.carrier.closing else b"\x08\x01")

    def _reflect(self) -> None:
        """Answer each message that is complete."""
        data = self.body()
        at = 0
        while len(data) - at >= _PREFIX_BYTES:
            stop = at + _PREFIX_BYTES + int.from_bytes(data[at + 1 : at + 5], "big")
            if stop - at > frames.USUAL_FRAME_BYTES:
                self._cancel_reflection("expected a small message")
                return
            if stop > len(data):
                break
            try:
                made = reflection.answer(data[at + _PREFIX_BYTES : stop])
            except BadMessageError as error:
                self._cancel_reflection(str(error))
                return
            if not self.write(b"\0" + len(made).to_bytes(4, "big") + made):
                self._cancel_reflection("expected a client that reads its answers")
                return
            at = stop
        if at < len(data):
            self.pieces.append(data[at:])

    def _cancel_reflection(self, why: str) -> None:
        self.answered = True
        self.send_trailers(status.trailers(status.INVALID_ARGUMENT, why))

    # -- the answer -----------------------------------------------------------------------------------------

    def interim(self, status: int, headers: Headers) -> None:
        """See `Exchange.interim`: gRPC has no such answers."""

    def respond(self, response: Response) -> None:
        if response.stream is None:
            self._respond(response)
        else:
            work = self._gather(response, response.stream)
            self.task = streams.sending(asyncio.get_running_loop(), work, response.stream)

    async def _gather(self, response: Response, stream: AsyncIterator[bytes]) -> None:
        """Wait for the whole answer: one message has to have its length before it."""
        most = self.carrier.max_body_bytes
        try:
            await streams.gather(stream, most, self.pieces)
        except (ClientGone, UpstreamError):
            self.task = None
            self._end_with(status.UNAVAILABLE, "the model's answer broke off before its end")
            return
        except (Exception, asyncio.CancelledError) as error:
            self.task = None
            if isinstance(error, asyncio.CancelledError) and self.stopped:
                raise
            log("answer's stream failed", level="error", error=repr(error))
            self._end_with(status.INTERNAL, "the model's answer could not be read")
            return
        self.task = None
        body = self.body()
        if len(body) > most:
            expected = f"expected an answer of at most {most} bytes, found a larger one"
            self._end_with(status.RESOURCE_EXHAUSTED, expected)
            return
        whole = Response(response.status, response.headers, body)
        whole.lines = response.lines
        self._respond(whole)

    def _respond(self, response: Response) -> None:
        if self.stopped:
            return
        code, method = response.status, self._method
        good = 200 <= code < 300
        if method in (_LIVE, _READY, _MODEL_READY) and get(response.headers, REASON) is None:
            self._message(_block(response), b"\x08\x01" if good else b"")
            return
        if not good:
            self._trailers_only(_block(response) + status.of_response(response))
            return
        try:
            if method == _INFER:
                message = inference.write_answer(response)
            elif method == _METADATA:
                message = inference.write_server_metadata(response.body)
            else:
                message = inference.write_model_metadata(response.body)
        except Exception as error:  # whatever a model's answer can have
            details = status.error_info(Reason.BAD_ANSWER.value, {})
            text = f"the model's answer: {error}"
            self._trailers_only(_block(response) + status.trailers(status.INTERNAL, text, details))
            return
        self._message(_block(response), message)

    def _message(self, block: bytes, message: bytes) -> None:
        self.send(block, b"\0" + len(message).to_bytes(4, "big") + message, _DONE)

    def _trailers_only(self, block: bytes) -> None:
        self.send(block, b"", b"")

    def _end_with(self, code: int, text: str) -> None:
        if not self.stopped:
            self._trailers_only(_FIRST + status.trailers(code, text))

    def _end(self, trailers: bytes) -> None:
        """End a call that no service has."""
        self.answered = True
        self.pieces.clear()
        self._trailers_only(_FIRST + trailers)


_latest: Headers = ()
_latest_block = _FIRST


def _block(response: Response) -> bytes:
    """Render the initial metadata: what the answer over REST says, but of its body."""
    global _latest, _latest_block
    fields = response.headers
    if fields is not _latest and fields != _latest:
        kept = tuple(
            [
                field
                for field in fields
                if field[0] not in _HIDDEN and not field[0].startswith(_RESERVED) and field[0][-4:] != b"-bin"
            ]
        )
        try:
            _latest_block = answer_block(200, kept, b"") + literal(b"content-type", GRPC)
        except ValueError:
            _latest_block = _FIRST
        _latest = fields
    if not response.lines:
        return _latest_block
    block = [_latest_block]
    for line in response.lines.split(b"\r\n"):
        if line:
            name, _, value = line.partition(b": ")
            block.append(literal(name, value))
    return b"".join(block)
