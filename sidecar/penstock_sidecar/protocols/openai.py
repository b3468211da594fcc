"""The `openai` protocol: embeddings, and what vLLM and others serve beside them; all else passes through.

`…/v1/embeddings` and `…/classify` are batched by `input`. An item is one text, or one text as token ids, so a
request with a string or with one list of token ids is one item. `…/score` is batched by pairs of texts, and a
text of one side counts with each of the other. All other members are parameters (`model`, `encoding_format`,
`dimensions`, `user` …). Texts and token ids never share a batch: servers take a list of one kind. What has
other members (the forms of TEI) or other values (images) passes through. So does `…/rerank`: a server takes
one query for all documents, and different queries would go one after the other.

Each answer has the `data` of its own items, `index` counted from 0. A server's `usage` is that of the
batch: each number in it, also within details, is shared in proportion to the items' bytes, so that the sum is
the batch's; whole numbers in whole ones. So in a batch of several requests the usage of one is an estimate.

Sources: https://platform.openai.com/docs/api-reference/embeddings,
https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html (Classification API, Score API)
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from decimal import Decimal
from itertools import accumulate, chain, pairwise
from typing import NamedTuple, cast

from penstock_sidecar.protocols.base import Message, Parsed
from penstock_sidecar.protocols.media_types import CLOUD_EVENT, HEADER_LENGTH, BodyFields
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.headers import Headers
from penstock_wire.http import Request, Response
from penstock_wire.instances_form import MAX_ITEMS, member_name, shape_error
from penstock_wire.json_slices import NotJSON, elements, members, object_with

EMBEDDINGS, CLASSIFY, SCORE = "/v1/embeddings", "/classify", "/score"
INPUT_PATHS = (EMBEDDINGS, CLASSIFY)
PATHS = (*INPUT_PATHS, SCORE)
SIDES = (("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2"))
"""The names of both sides of pairs of texts."""
REPEATED_BYTES = 16 << 20
"""Maximum bytes that one text takes when it is repeated for each of the other side; beyond, it passes."""
_BODY = BodyFields(CLOUD_EVENT, HEADER_LENGTH)
_COUNT = re.compile(rb"0|[1-9][0-9]{0,17}")
_AMOUNT = re.compile(rb"(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,2})?")
_DIGITS = 6
"""How many more digits than the amount a share of it has, if the amount is not a whole number."""
_LEVELS = 4
"""Levels of nesting in a `usage` whose numbers are shared."""
_TOKENS = re.compile(rb"\[[0-9, \t\r\n]*+\]")


class _Parameters(NamedTuple):
    """The values that are equal in a batch: whether items are token ids, and other members sorted by name."""

    tokens: bool
    members: tuple[tuple[str, bytes], ...]


class _Pairs(NamedTuple):
    """As `_Parameters`, for pairs of texts: the names of both sides, and other members sorted by name."""

    names: tuple[str, str]
    members: tuple[tuple[str, bytes], ...]


class _Pair(bytes):
    """Two texts, as JSON separated by a comma."""

    left: bytes
    right: bytes


class _OpenAI:
    name = "openai"
    item_streams = False
    asks: Headers = ()

    def passes(self, request: Request) -> bool:
        return (
            request.method != "POST"
            or not request.path.endswith(PATHS)
            or not _BODY.may_be_json(request.headers)
        )

    def parse(self, request: Request) -> Parsed | None:
        path = request.path
        given = path.endswith(INPUT_PATHS)
        names = ["input"] if given else [side[0] for side in SIDES]
        document: dict[str, bytes] | None = None
        try:
            for name in names:
                document = document or object_with(name, request.body)
        except NotJSON as error:
            raise PenstockError(Reason.BAD_JSON, str(error)) from error
        if document is None:
            return None
        fields = _BODY.of_json(request.headers)
        items: Sequence[bytes]
        parameters: Hashable
        if given:
            items, tokens = _items(document.pop("input"))
            parameters = _Parameters(tokens, tuple(sorted(document.items())))
        else:
            read = _pairs(document)
            if read is None:
                return None
            items, parameters = read
        if not items:
            return Parsed(items=(), lone=True, fields=fields)
        return Parsed(items=items, parameters=parameters, fields=fields)

    def join(self, parts: Sequence[Sequence[bytes]], parameters: Hashable) -> Message:
        if isinstance(parameters, _Pairs):
            pairs = [cast("_Pair", item) for part in parts for item in part]
            left, right = parameters.names
            lists = [(left, [pair.left for pair in pairs]), (right, [pair.right for pair in pairs])]
        else:
            lists = [("input", list(chain.from_iterable(parts)))]
        own = {name: b"[" + b",".join(items) + b"]" for name, items in lists}
        rest = cast("_Parameters | _Pairs", parameters).members
        return Message(headers=(), body=_object({**own, **dict(rest)}))

    def split(
        self, answer: Response, parts: Sequence[Sequence[bytes]], parameters: Hashable
    ) -> list[Response]:
        total = sum(map(len, parts))
        weights = [sum(map(len, part)) for part in parts]
        try:
            fields = members(answer.body)
            rows = _rows(fields, total)
            usage = _usage(fields)
        except NotJSON as error:
            raise PenstockError(Reason.BAD_ANSWER, f"the model's answer: {error}") from error
        usages = {name: _shared(raw, weights) for name, raw in usage.items()}
        answers = []
        start = 0
        for index, part in enumerate(parts):
            own = {name: each[index] for name, each in usages.items()}
            body = _body(fields, _counted(rows[start : start + len(part)]), own)
            answers.append(Response(answer.status, answer.headers, body))
            start += len(part)
        return answers

    def merge(self, answers: Sequence[Response], parameters: Hashable) -> Response:
        rows: list[_Row] = []
        first: dict[str, bytes] = {}
        usage: dict[str, bytes] = {}
        try:
            for index, answer in enumerate(answers):
                fields = members(answer.body)
                rows += _rows(fields, None)
                reported = _usage(fields)
                if not index:
                    first, usage = fields, reported
                    continue
                usage = _sum_objects(usage, reported, _LEVELS)
            body = _body(first, _counted(rows), usage)
        except NotJSON as error:
            raise PenstockError(Reason.BAD_ANSWER, f"the model's answer: {error}") from error
        return Response(answers[0].status, answers[0].headers, body)


OPENAI_PROTOCOL = _OpenAI()


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """Share a number in proportion to weights, in whole numbers whose sum is exactly the number.

    Args:
        total: the number to share, at least 0.
        weights: at least one, each above 0.
    """
    whole = sum(weights)
    bounds = [total * weight // whole for weight in accumulate(weights, initial=0)]
    return [high - low for low, high in pairwise(bounds)]


def _items(raw: bytes) -> tuple[list[bytes], bool]:
    """Return the items of an `input`, and whether they are token ids."""
    if raw[:1] == b'"':
        return [raw], False
    try:
        items = None if raw[:1] != b"[" else [raw] if _TOKENS.fullmatch(raw) else elements(raw, MAX_ITEMS)
    except NotJSON as error:
        raise shape_error("$.input", f"at most {MAX_ITEMS} items", "more") from error
    if items is None:
        raise shape_error("$.input", "a string or an array", raw[:40].decode("utf-8", "replace"))
    if items == [raw] and not raw[1:-1].strip():
        return [], True  # an empty list: the model decides what it means
    if len(items) > MAX_ITEMS:
        raise shape_error("$.input", f"at most {MAX_ITEMS} items", str(len(items)))
    tokens = items[0][:1] == b"["
    for index, item in enumerate(items):
        if not (_TOKENS.fullmatch(item) if tokens else item[:1] == b'"'):
            expected = "an array of token ids" if tokens else "a string"
            raise shape_error(f"$.input[{index}]", expected, item[:40].decode("utf-8", "replace"))
    return items, tokens


def _pairs(document: dict[str, bytes]) -> tuple[list[_Pair], _Pairs] | None:
    """Return the pairs of texts of a request, the first side of which may be a single text; None passes it.

    Raises:
        PenstockError: `bad_shape`: more pairs than a request may have.
    """
    for names in SIDES:
        if all(name in document for name in names):
            break
    else:
        return None
    sides = [_texts(names[side], document.pop(names[side])) for side in (0, 1)]
    left, right = sides
    if left is None or right is None:
        return None
    if len(left) == 1:
        if len(left[0]) * len(right) > REPEATED_BYTES:
            return None  # each pair would be kept with a copy of it
        left = left * len(right)
    if len(left) != len(right):
        return None  # the model says what is wrong with it
    pairs = []
    for one, other in zip(left, right, strict=True):
        pair = _Pair(one + b"," + other)
        pair.left, pair.right = one, other
        pairs.append(pair)
    return pairs, _Pairs(names, tuple(sorted(document.items())))


def _texts(name: str, raw: bytes) -> list[bytes] | None:
    """The texts of a side; None if they are something else."""
    if raw[:1] == b'"':
        return [raw]
    if raw[:1] != b"[":
        return None
    try:
        texts = elements(raw, MAX_ITEMS)
    except NotJSON as error:
        raise shape_error(f"$.{name}", f"at most {MAX_ITEMS} texts", "more") from error
    return texts if all(text[:1] == b'"' for text in texts) else None


_Row = dict[str, bytes] | bytes
"""What an answer has for one item: an object with its `index`, or a list in its place."""


def _rows(fields: dict[str, bytes], total: int | None) -> list[_Row]:
    """Remove the elements of `data` from an answer and return them in the order of their `index`."""
    raw = fields.get("data")
    if raw is None:
        raise NotJSON('expected a member "data", found ' + (", ".join(sorted(fields)[:10]) or "none"))
    fields["data"] = b""
    data: list[_Row] = [each if each[:1] == b"[" else members(each) for each in elements(raw)]
    if total is not None and len(data) != total:
        raise NotJSON(f"expected {total} elements of data, found {len(data)}")
    places = [
        b"%d" % place if isinstance(each, bytes) else each.get("index", b"%d" % place)
        for place, each in enumerate(data)
    ]
    if [int(place) if _COUNT.fullmatch(place) else -1 for place in places] != list(range(len(data))):
        by_place = {
            int(place): each for place, each in zip(places, data, strict=True) if _COUNT.fullmatch(place)
        }
        if sorted(by_place) != list(range(len(data))):
            raise NotJSON(f"expected each index from 0 to {len(data) - 1} once in data")
        data = [by_place[place] for place in range(len(data))]
    return data


def _counted(rows: Sequence[_Row]) -> list[_Row]:
    """The rows with their places in an answer of their own."""
    return [
        row if isinstance(row, bytes) else {**row, "index": b"%d" % place} for place, row in enumerate(rows)
    ]


def _usage(fields: dict[str, bytes]) -> dict[str, bytes]:
    raw = fields.get("usage")
    return {} if raw is None or raw == b"null" else members(raw)


def _shared(raw: bytes, weights: Sequence[int], levels: int = _LEVELS) -> list[bytes]:
    """Return a value of a batch's usage for each request: amounts are shared, all else is for each."""
    requests = range(len(weights))
    if levels and raw[:1] == b"{":
        fields = {name: _shared(each, weights, levels - 1) for name, each in members(raw).items()}
        return [
            _object({name: each[index] for name, each in fields.items()}) for index in range(len(weights))
        ]
    if levels and raw[:1] == b"[":
        parts = [_shared(each, weights, levels - 1) for each in elements(raw)]
        return [b"[" + b",".join([part[index] for part in parts]) + b"]" for index in requests]
    if _COUNT.fullmatch(raw):
        return [b"%d" % share for share in shares(int(raw), weights)]
    if not _AMOUNT.fullmatch(raw):
        return [raw] * len(weights)
    amount = Decimal(raw.decode())
    if amount == int(amount):
        return [b"%d.0" % share for share in shares(int(amount), weights)]
    _, digits, exponent = amount.as_tuple()
    units = int("".join(map(str, digits))) * 10**_DIGITS
    exact = [Decimal(f"{share}E{int(exponent) - _DIGITS}") for share in shares(units, weights)]
    return [format(share, "f").encode() for share in exact]


def _sum_objects(mine: dict[str, bytes], more: dict[str, bytes], levels: int) -> dict[str, bytes]:
    return {**more, **{name: _sum(raw, more.get(name, b""), levels) for name, raw in mine.items()}}


def _sum(mine: bytes, more: bytes, levels: int) -> bytes:
    """Add a value of an answer's usage to that of another; what is not an amount is as in the first."""
    if _AMOUNT.fullmatch(mine) and _AMOUNT.fullmatch(more):
        return format(Decimal(mine.decode()) + Decimal(more.decode()), "f").encode()
    if levels and mine[:1] == more[:1] == b"{":
        return _object(_sum_objects(members(mine), members(more), levels - 1))
    if levels and mine[:1] == more[:1] == b"[":
        ours, theirs = elements(mine), elements(more)
        if len(ours) == len(theirs):
            return b"[" + b",".join(map(_sum, ours, theirs, [levels - 1] * len(ours))) + b"]"
    return mine


def _body(fields: dict[str, bytes], rows: Sequence[_Row], usage: dict[str, bytes]) -> bytes:
    """Make an answer; `data` and `usage` are where the model had them."""
    data = b"[" + b",".join([row if isinstance(row, bytes) else _object(row) for row in rows]) + b"]"
    answer = {**fields, "data": data}
    if usage:
        answer["usage"] = _object(usage)
    return _object(answer)


def _object(fields: dict[str, bytes]) -> bytes:
    return b"{" + b",".join([member_name(name) + b":" + raw for name, raw in fields.items()]) + b"}"
