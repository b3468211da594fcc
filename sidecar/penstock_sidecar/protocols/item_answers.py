"""Item answers: in the answer to a batch, single items have a status, fields and a body of their own.

A sidecar that splits this form sends `x-penstock-item-answers: 1` with each batch, but not with a request
that passes through. The model server may then answer 2xx as `application/vnd.penstock.items+json`: the
protocol's plain answer, with null in the place of each item that has its own answer, and beside it
`"answers": [{"index", "status", "headers", "body" | "bodyB64"}]`, in any order. `index` counts the batch's
items from 0; the other members are those of an item of the `envelope` protocol, `status` required. The null
confirms that the model meant this item, and not its neighbour.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock_sidecar.protocols.base import OwnAnswer
from penstock_sidecar.protocols.envelope import read_answer
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import Headers
from penstock_wire.instances_form import ANSWERS, ITEM_ANSWERS_TYPE
from penstock_wire.json_slices import NotJSON, elements, members

_JSON = (b"content-type", b"application/json")
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
    return tuple([_JSON if field[0] == b"content-type" else field for field in headers])


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
            answers[place] = OwnAnswer(read_answer(entry, ours=True), "", body)
        except NotJSON as error:
            answers[place] = OwnAnswer(None, str(error), {})
    return answers


def _bad(detail: str) -> PenstockError:
    return PenstockError(Reason.BAD_ANSWER, f"the model's answer: {detail}")
