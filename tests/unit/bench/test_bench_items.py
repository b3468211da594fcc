"""`bench.items` counts an answer as right only where it is the request's own."""

from __future__ import annotations

import pytest

from bench.items import Load

OK, UNFIT = b"HTTP/1.1 200 OK\r\nserver: x", b"HTTP/1.1 422 Unprocessable Content"


@pytest.mark.parametrize(
    ("item", "head", "body", "expected"),
    [
        (7, OK, b'{"predictions":[7]}', (1, 0, 0)),
        (7, OK, b'{"predictions":[9]}', (0, 1, 0)),
        (7, UNFIT, b'{"detail":7}', (0, 1, 0)),
        (8, UNFIT, b'{"detail":8}', (1, 0, 0)),
        (8, UNFIT, b'{"detail":6}', (0, 0, 1)),
        (8, OK, b'{"predictions":[8]}', (0, 0, 1)),
    ],
)
def test_an_answer_is_right_that_is_the_requests_own(
    item: int, head: bytes, body: bytes, expected: tuple[int, int, int]
) -> None:
    load = Load(5, seed=1)
    load.answered(item, head, body)
    assert (load.right, load.failed, load.wrong) == expected


def test_the_share_of_bad_requests_is_the_one_wanted() -> None:
    for percent in (0, 5, 100):
        load = Load(percent, seed=1)
        items = [load.next() for _ in range(10_000)]
        assert abs(sum(item % 2 == 0 for item in items) - 100 * percent) <= 100
        assert len(set(items)) == len(items)
