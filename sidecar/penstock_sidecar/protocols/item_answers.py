"""Item answers: in the answer to a batch, single items have a status, fields and a body of their own.

A sidecar that splits this form sends `x-penstock-item-answers: 1` with each batch, but not with a request
that passes through. The model server may then answer 2xx as `application/vnd.penstock.items+json`: the
protocol's plain answer, with null in the place of each item that has its own answer, and beside it
`"answers": [{"index", "status", "headers", "body" | "bodyB64"}]`, in any order. `index` counts the batch's
items from 0, `status` is 200 to 599, `headers` has a string or an array of strings for each field; `body` is
any JSON, `bodyB64` any bytes. The null confirms that the model meant this item, and not its neighbour.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence

import msgspec

from penstock_sidecar.protocols.base import OwnAnswer
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import PER_CONNECTION, Headers
from penstock_wire.http import Response
from penstock_wire.instances_form import ANSWERS, ITEM_ANSWERS_TYPE
from penstock_wire.json_slices import NotJSON, elements, members

_JSON = b"application/json"
_OCTETS = b"application/octet-stream"
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_INDEX = re.compile(rb"0|[1-9][0-9]{0,8}")
_BODIES = ("body", "bodyB64")


def is_form(headers: Headers) -> bool:
    """Whether an answer with these header fields has this form."""
    for name, value in headers:
        if name == b"content-type":
            return value.partition(b";")[0].strip().lower() == ITEM_ANSWERS_TYPE
    return False


def plain_fields(headers: Headers) -> Headers:
    """Make the header fields of a plain answer from those of an answer of this form."""
    return tuple([(field[0], _JSON) if field[0] == b"content-type" else field for field in headers])


def read_answers(raw: bytes | None, predictions: Sequence[bytes]) -> dict[int, OwnAnswer]:
    """Read the items' own answers, by place in the batch.

    Args:
        raw: the member `answers`.
        predictions: the predictions of the same answer, one for each item.

    Raises:
        PenstockError: `bad_answer` (502): it is unclear which item an answer belongs to. All requests of the
            batch get this error, so it repeats nothing of the answers.
    """
    count = len(predictions)
    if raw is None:
        raise _bad(f'expected a member "{ANSWERS}", found none')
    try:
        texts = elements(raw, count)
    except NotJSON as error:
        raise _bad(f"$.{ANSWERS}: expected an array of at most {count} answers") from error
    answers: dict[int, OwnAnswer] = {}
    for number, text in enumerate(texts):
        where = f"$.{ANSWERS}[{number}]"
        try:
            entry = members(text)
        except NotJSON as error:
            raise _bad(f"{where}: expected an object with each member once") from error
        index = entry.get("index", b"")
        place = int(index) if _INDEX.fullmatch(index) else count
        if place >= count:
            raise _bad(f"{where}.index: expected a number from 0 to {count - 1}")
        if place in answers:
            raise _bad(f"{where}.index: expected one answer to item {place}, found two")
        if predictions[place] != b"null":
            raise _bad(f"$.predictions[{place}]: expected null beside an answer of the item's own")
        body = {name: entry[name] for name in _BODIES if name in entry}
        try:
            if "status" not in entry:
                raise NotJSON("expected a status from 200 to 599, found none")
            answers[place] = OwnAnswer(read_answer(entry), "", body)
        except NotJSON as error:
            answers[place] = OwnAnswer(None, str(error), {})
    return answers


def read_answer(fields: dict[str, bytes]) -> Response:
    """Read an item's answer from its members `status`, `headers` and `body` or `bodyB64`; others are ignored.

    Fields that only Penstock may set are kept.

    Raises:
        NotJSON: they are not an answer.
    """
    status, headers = read_head(fields)
    body = fields.get("body")
    encoded = fields.get("bodyB64")
    if body is not None and encoded is not None:
        raise NotJSON("expected body or bodyB64, found both")
    if encoded is not None:
        body = _read_base64(encoded)
    if body and not any(name == b"content-type" for name, _ in headers):
        headers = (*headers, (b"content-type", _JSON if encoded is None else _OCTETS))
    return Response(status, headers, body or b"")


def read_head(fields: dict[str, bytes]) -> tuple[int, Headers]:
    """Read status and header fields of an answer from its members; by default 200 and no fields.

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
            if field not in PER_CONNECTION:
                headers.append((field, text.strip().encode("latin-1")))
    return int(raw), tuple(headers)


def read_string(raw: bytes) -> str:
    """Read a string from its JSON (raises NotJSON)."""
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotJSON(f"expected a string, found {_short(raw)}") from error


def _read_base64(raw: bytes) -> bytes:
    """Read bytes from a JSON string in base64 (raises NotJSON)."""
    try:
        return base64.b64decode(read_string(raw), validate=True)
    except (binascii.Error, ValueError) as error:
        raise NotJSON(f"expected base64, found {_short(raw)}") from error


def _bad(detail: str) -> PenstockError:
    return PenstockError(Reason.BAD_ANSWER, f"the model's answer: {detail}")


def _short(raw: bytes) -> str:
    return raw[:40].decode("utf-8", "replace")
