"""The `envelope` protocol: each request is one item, whatever its body; its answer has status and fields.

A batch is `{"items": [{"id", "method", "path", "headers", "body" | "bodyB64"}]}`, its answer
`{"items": [{"status", "headers", "body" | "bodyB64"}]}` in the same order. A body with a JSON content type is
a raw JSON value, any other one is base64; an empty body is absent. A batch of one request is enveloped, too.
`envelope_stream` has the form of streamed answers.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Hashable, Sequence

import msgspec

from penstock_sidecar.protocols.base import Message, Parsed, new_id
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import HOP_BY_HOP, PREFIX, TO_MODEL, Headers
from penstock_wire.http import Request, Response
from penstock_wire.json_slices import NotJSON, elements, members

JSON = b"application/json"
OCTETS = b"application/octet-stream"
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_NOT_THE_MODELS = HOP_BY_HOP | {b"content-length"}


class Item:
    """One enveloped request.

    Args:
        id: a unique id; a client's `x-request-id` need not be unique.
        text: the item as JSON.
    """

    __slots__ = ("id", "text")

    def __init__(self, id: str, text: bytes) -> None:
        self.id = id
        self.text = text

    def __len__(self) -> int:
        return len(self.text)


class _Envelope:
    name = "envelope"
    isolates = False
    key_fields = False
    item_streams = False
    asks: Headers = ()

    def passes(self, request: Request) -> bool:
        return request.method != "POST"

    def parse(self, request: Request) -> Parsed:
        own = new_id()
        head = {
            "id": own,
            "method": request.method,
            "path": request.target,
            "headers": _fields(request.headers),
        }
        text = msgspec.json.encode(head)
        if request.body:
            text = text[:-1] + _body(request) + b"}"
        return Parsed(items=[Item(own, text)])

    def join(self, parts: Sequence[Sequence[Item]], parameters: Hashable) -> Message:
        texts = [item.text for part in parts for item in part]
        return Message(headers=((b"content-type", JSON),), body=b'{"items":[' + b",".join(texts) + b"]}")

    def split(
        self, answer: Response, parts: Sequence[Sequence[Item]], parameters: Hashable
    ) -> list[Response | PenstockError]:
        try:
            fields = members(answer.body)
            if "items" not in fields:
                names = ", ".join(sorted(fields)[:10]) or "none"
                raise NotJSON(f'expected a member "items", found {names}')
            items = elements(fields["items"])
        except NotJSON as error:
            raise PenstockError(Reason.BAD_ANSWER, f"the model's answer: {error}") from error
        if len(items) != len(parts):
            raise PenstockError(
                Reason.BAD_ANSWER, f"the model's answer: expected {len(parts)} items, found {len(items)}"
            )
        answers: list[Response | PenstockError] = []
        for index, item in enumerate(items):
            try:
                answers.append(read_item(item))
            except NotJSON as error:  # only this item's client gets the error
                detail = f"the model's answer: $.items[{index}]: {error}"
                answers.append(PenstockError(Reason.BAD_ANSWER, detail))
        return answers

    def merge(self, answers: Sequence[Response]) -> Response:
        raise PenstockError(Reason.INTERNAL, "a request of one item was cut into several")


ENVELOPE_PROTOCOL = _Envelope()


def read_item(raw: bytes) -> Response:
    """Read one item of a batch's answer.

    Raises:
        NotJSON: the item is not an answer.
    """
    return read_answer(members(raw))


def read_answer(fields: dict[str, bytes], *, ours: bool = False) -> Response:
    """Read an answer from its members `status`, `headers` and `body` or `bodyB64`; others are ignored.

    Args:
        fields: the members.
        ours: as for `read_head`.

    Raises:
        NotJSON: they are not an answer.
    """
    status, headers = read_head(fields, ours=ours)
    body = fields.get("body")
    encoded = fields.get("bodyB64")
    if body is not None and encoded is not None:
        raise NotJSON("expected body or bodyB64, found both")
    if encoded is not None:
        body = read_base64(encoded)
    if body and not any(name == b"content-type" for name, _ in headers):
        headers = (*headers, (b"content-type", JSON if encoded is None else OCTETS))
    return Response(status, headers, body or b"")


def read_head(fields: dict[str, bytes], *, ours: bool = False) -> tuple[int, Headers]:
    """Read status and header fields of an answer from its members; by default 200 and no fields.

    Args:
        fields: the members.
        ours: keep fields that only Penstock may set, for a caller that reads them.

    Raises:
        NotJSON: status or fields are not valid in an answer.
    """
    raw = fields.get("status", b"200")
    if not re.fullmatch(rb"[2-5][0-9][0-9]", raw):
        raise NotJSON(f"expected a status from 200 to 599, found {_short(raw)}")
    headers: list[tuple[bytes, bytes]] = []
    for name, value in (members(fields["headers"]) if "headers" in fields else {}).items():
        field = name.lower().encode("utf-8", "surrogateescape")
        if not _NAME.fullmatch(name):
            raise NotJSON(f"expected the name of a field, found {name[:40]!r}")
        for each in elements(value) if value[:1] == b"[" else [value]:
            text = read_string(each)
            if not _VALUE.fullmatch(text):
                raise NotJSON(f"expected the value of field {name}, found {text[:40]!r}")
            if field not in _NOT_THE_MODELS and (ours or not field.startswith(PREFIX)):
                headers.append((field, text.strip().encode("latin-1")))
    return int(raw), tuple(headers)


def read_string(raw: bytes) -> str:
    """Read a string from its JSON (raises NotJSON)."""
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotJSON(f"expected a string, found {_short(raw)}") from error


def read_base64(raw: bytes) -> bytes:
    """Read bytes from a JSON string in base64 (raises NotJSON)."""
    try:
        return base64.b64decode(read_string(raw), validate=True)
    except (binascii.Error, ValueError) as error:
        raise NotJSON(f"expected base64, found {_short(raw)}") from error


def _fields(headers: Headers) -> dict[str, str]:
    """Make one object of header fields; values of one name are joined (RFC 9110 section 5.3)."""
    decoded: dict[str, str] = {}
    for name, value in headers:
        if name.startswith(PREFIX) and name not in TO_MODEL:
            continue
        key, text = name.decode("latin-1"), value.decode("latin-1")
        if key in decoded:
            text = decoded[key] + ("; " if name == b"cookie" else ", ") + text
        decoded[key] = text
    return decoded


def _body(request: Request) -> bytes:
    media = b""
    encoded = False
    for name, value in request.headers:
        if name == b"content-type":
            media = value.partition(b";")[0].strip().lower()
        elif name == b"content-encoding":
            encoded = value.strip().lower() not in (b"", b"identity")
    if encoded or not (media in (JSON, b"text/json") or media.endswith(b"+json")):
        return b',"bodyB64":"' + base64.b64encode(request.body) + b'"'
    try:
        fields = members(b'{"body":' + request.body + b"}")
    except NotJSON as error:
        raise PenstockError(Reason.BAD_JSON, str(error)) from error
    if len(fields) != 1:
        raise PenstockError(Reason.BAD_JSON, "expected one JSON value, found more")
    return b',"body":' + fields["body"]


def _short(raw: bytes) -> str:
    return raw[:40].decode("utf-8", "replace")
