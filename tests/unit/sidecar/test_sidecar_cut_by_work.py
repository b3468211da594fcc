"""Batches of unequal items: what shares a batch, how long one can be overtaken, and whose turn it is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from penstock_sidecar.queue.batch_limits import Limits, fills
from penstock_sidecar.queue.queue import Queue
from penstock_sidecar.queue.request import QueuedRequest, work_of
from penstock_sidecar.work import WorkFormula
from tests.unit.sidecar.test_sidecar_queue import ONE, REQUEST, Asked, ask, names

PADDED = WorkFormula(0.0, 0.0, 0.01)
PADDED.overhead = 4.0
SUM = WorkFormula(0.0, 0.01, 0.0)
REACH = 5.0


def limits(formula: WorkFormula = PADDED, **more: float) -> Limits:
    return dataclasses.replace(Limits(size=4, bytes=100_000, formula=formula, reach=REACH), **more)


def asked(lengths: Sequence[int], **more: object) -> list[Asked]:
    return [ask(length, item=b"1" * length, **more) for length in lengths]  # type: ignore[arg-type]


def cut_all(works: Sequence[Asked], limits: Limits) -> list[list[object]]:
    queue = Queue()
    for work in works:
        queue.add(work)
    batches = []
    while queue.items:
        batches.append(sorted(names(queue.cut(ONE, limits))))  # type: ignore[type-var]
    return batches


def test_items_of_like_cost_share_a_batch_and_the_first_goes_first():
    lengths = [500, 20, 21, 480, 22, 510, 19, 490]
    assert cut_all(asked(lengths), limits()) == [[480, 490, 500, 510], [19, 20, 21, 22]]


def test_waiting_costs_more_than_padding_where_a_batch_costs_most():
    formula = WorkFormula(0.0, 0.0, 0.01)
    formula.overhead = 1000.0
    assert cut_all(asked([20, 100, 60, 30]), limits(formula)) == [[20, 30, 60, 100]]


def test_without_padding_the_order_stays_and_the_batch_ends_at_its_work():
    assert cut_all(asked([500, 20, 21, 480, 22]), limits(SUM, work=6.0)) == [[20, 21, 500], [22, 480]]


def test_an_item_above_every_bound_goes_alone_and_a_long_request_in_as_few_parts_as_fit():
    assert cut_all(asked([900, 10]), limits(work=2.0))[0] == [900]
    long, short = ask("long", items=11, item=b"1" * 100), ask(10, item=b"1" * 10)
    queue = Queue()
    queue.add(long)
    queue.add(short)
    sizes = []
    while queue.items:
        sizes.append([part.size for part in queue.cut(ONE, limits(work=3.0))])
    assert sizes == [[3], [3], [3], [2, 1]]
    assert (long.cost_left, long.bytes_left) == (0, 0)


def test_a_line_of_as_many_items_as_a_batch_may_have_work_fills_it():
    """So that no free slot is held for what could not join."""
    queue = Queue()
    for work in asked([100, 110, 120]):
        queue.add(work)
    line = queue.lines[ONE]
    filled = [fills(line, limits(work=work)) for work in (2.0, 3.0, 3.5, math.inf)]
    assert filled == [True, True, False, False]


def test_a_request_that_its_batch_would_answer_too_late_is_dropped_and_the_last_one_never():
    queue = Queue()
    for work in asked([500], deadline=3.0) + asked([20, 20], deadline=9.0):
        queue.add(work)
    dropped: list[QueuedRequest] = []
    parts = queue.cut(ONE, limits(), lambda work: work, dropped)
    assert (names(parts), [work.items[0] for work in dropped]) == ([20, 20], [b"1" * 500])
    queue.add(asked([500], deadline=3.0)[0])
    assert names(queue.cut(ONE, limits(), lambda work: work, dropped)) == [500]


def test_shares_are_equal_by_the_cost_of_items():
    """One sends items of ten times the cost: it gets a tenth of the other's items."""
    queue = Queue()
    for _ in range(100):
        for length, share in ((300, b"long"), (30, b"short")):
            queue.add(ask(length, item=b"1" * length, share=share))
    served = {30: 0, 300: 0}
    for _ in range(25):
        for name in names(queue.cut(queue.choose(0.0) or ONE, limits(SUM))):
            served[name] += 1  # type: ignore[index]
    assert served[30] >= 8 * served[300] > 0


def test_urgent_requests_are_not_left_for_others_of_like_cost():
    queue = Queue()
    for length, level in ((500, 1), (20, 2), (490, 2), (480, 1), (22, 1)):
        queue.add(ask(length, item=b"1" * length, level=level))
    assert sorted(names(queue.cut(ONE, limits()))) == [480, 490, 500]  # type: ignore[type-var]
    assert sorted(names(queue.cut(ONE, limits()))) == [20, 22]  # type: ignore[type-var]


REQUESTS = st.lists(
    st.tuples(
        st.lists(st.integers(1, 500), min_size=1, max_size=7),
        st.floats(0.0, 20.0),
        st.sampled_from([b"", b"a", b"b"]),
        st.integers(1, 2),
    ),
    min_size=1,
    max_size=40,
)


@given(REQUESTS, st.sampled_from([PADDED, SUM, None]), st.floats(0.5, 30.0), st.integers(100, 3000))
def test_each_item_is_cut_once_within_the_limits_and_none_is_overtaken_by_much(
    requests: list[tuple[list[int], float, bytes, int]],
    formula: WorkFormula | None,
    most: float,
    most_cost: int,
):
    queue, some = Queue(), dataclasses.replace(limits(), formula=formula, work=most, cost=most_cost)
    works = []
    for costs, deadline, share, level in requests:
        items = [b"1" * cost for cost in costs]
        work = Asked(ONE, REQUEST, b"id", items, (), 0.0, deadline, 30.0, level, share)
        works.append(work)
        queue.add(work)
    taken: dict[Asked, int] = {}
    while queue.items:
        first = queue.lines[ONE].first()
        assert first is not None
        near = sum(work.queued and work.deadline <= first.deadline + REACH for work in works)
        parts = queue.cut(ONE, some)
        assert parts[0].work is first
        size = sum(part.size for part in parts)
        assert size <= some.size
        assert size == 1 or formula is None or work_of(parts, size, formula) <= most + 1e-9
        assert size == 1 or size * max(part.longest for part in parts) <= most_cost
        for part in parts:
            assert (
                part.work.deadline <= first.deadline + REACH
                or near <= some.size
                or formula is None
                or not formula.pads
            )
            assert part.start == taken.get(part.work, 0)  # type: ignore[call-overload]
            assert part.cost == sum(map(len, part.items))
            assert part.longest == max(map(len, part.items))
            taken[part.work] = part.start + part.size  # type: ignore[index]
    assert taken == {work: work.size for work in works}
    assert (queue.requests, queue.bytes, queue.lines) == (0, 0, {})
