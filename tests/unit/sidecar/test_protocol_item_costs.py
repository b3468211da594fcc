"""What an item costs by its own account, and the error where it says nothing that counts."""

from __future__ import annotations

import pytest

from penstock_sidecar.protocols.item_costs import ItemCosts
from penstock_sidecar.protocols.v2 import V2_PROTOCOL
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import Request


@pytest.mark.parametrize(
    ("value", "cost"),
    [
        (b'"h\\u00e4y"', 3),
        ('"häy"'.encode(), 3),
        (b'"\\ud800"', 6),  # half a character: its bytes
        (b'""', 0),
        (b"[ 1, 2,3 ]", 3),
        (b'["a,b", "c"]', 2),
        (b"[[1, 2], [3, 4]]", 2),
        (b"[]", 0),
        (b"[ ]", 0),
        (b"0", 0),
        (b"2.1", 3),
        (b"1e3", 1000),
    ],
)
def test_a_text_counts_by_its_characters_an_array_by_its_elements_a_number_as_it_is(value: bytes, cost: int):
    nested = b'{"first": [{"text": 9}], "in": {"the-text": ' + value + b', "more": NaN}}'
    assert ItemCosts("$").of([value]) == [cost]
    assert ItemCosts("$.in.the-text").of([nested, nested.replace(b"NaN", b"1")]) == [cost, cost]


@pytest.mark.parametrize(
    ("item", "found"),
    [
        (b"{}", "nothing"),
        (b'{"a": 1}', "nothing"),
        (b'{"a": null}', "nothing"),
        (b"3", "nothing"),
        *((b'{"a": {"n": ' + raw + b"}}", raw.decode()) for raw in (b"-1", b"NaN", b"Infinity", b"1e308")),
        *((b'{"a": {"n": ' + raw + b"}}", raw.decode()) for raw in (b"null", b"true", b"{}", b"1000000001")),
    ],
)
def test_an_item_without_a_cost_is_refused_with_its_place(item: bytes, found: str):
    with pytest.raises(
        PenstockError, match=rf"^bad_shape: \$.a.n of item 1: expected a text, .*, found {found}$"
    ) as e:
        ItemCosts("$.a.n").of([b'{"a": {"n": 1}}', item])
    assert e.value.reason is Reason.BAD_SHAPE


def test_tensors_cost_their_bytes():
    body = b'{"inputs": [{"name": "x", "datatype": "INT32", "shape": [1, 1], "data": [1]}]}'
    parsed = V2_PROTOCOL.parse(Request("POST", "/v2/models/m/infer", (), body))
    assert parsed is not None
    assert ItemCosts("$.text").of(parsed.items) is None
