"""What a release compares: differences of the routers' counters, whatever becomes of routers and reports."""

from __future__ import annotations

import pytest

from penstock_operator.release_counts import GAP, MOST_PARTS, SPAN, ReleaseCounts
from penstock_operator.releases.state import Counts
from penstock_wire.control.report import (
    FIRST_BYTE_BUCKETS,
    BackendTotals,
    EndpointReport,
    MirrorTotals,
    RouterReport,
)


def draw(fast: int, slow: int = 0) -> tuple[int, ...]:
    return (fast, *[0] * (FIRST_BYTE_BUCKETS - 2), slow)


def totals(fast: int = 0, slow: int = 0, errors: int = 0, matched: int = 0, held: int = 0) -> BackendTotals:
    return BackendTotals(
        requests=fast + slow + matched,
        errors=errors,
        refused={"queue_full": errors // 2},
        seconds=draw(fast, slow) if fast or slow else (),
        held=held,
    )


def report(
    seq: int, a: BackendTotals | None, b: BackendTotals | None, uid: str = "u", **more: int
) -> RouterReport:
    backends = {name: each for name, each in (("a", a), ("b", b), ("other", totals(9))) if each is not None}
    mirrors = (
        {"b": MirrorTotals(compared=more["compared"], differing={"value": more["differing"]})} if more else {}
    )
    ends = {"e": EndpointReport(backends=backends, mirrors=mirrors), "f": EndpointReport(backends=backends)}
    return RouterReport(pod=uid, uid=uid, seq=seq, state="ready", endpoints=ends)


@pytest.fixture
def counts() -> ReleaseCounts:
    followed = ReleaseCounts()
    followed.follow("n", "e", "a", "b")
    return followed


def taken(counts: ReleaseCounts) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Requests, errors and refusals of the two."""
    interval = counts.take("n", "e")
    return tuple((each.requests, each.errors, each.refused) for each in (interval.stable, interval.candidate))  # type: ignore[return-value]


def test_an_interval_has_the_differences_of_the_draw_since_the_last(counts: ReleaseCounts) -> None:
    """Of all routers; not what came by rules, nor what other backends got."""
    counts.record("n", report(5, totals(1000), totals(100, errors=50)), 0.0)
    counts.record("n", report(6, totals(1090, matched=7), totals(106, slow=4, errors=54)), 1.0)
    counts.record("n", report(1, None, None, "v"), 1.0)
    counts.record("n", report(2, totals(9), totals(1), "v"), 2.0)
    interval = counts.take("n", "e")
    assert interval.stable == Counts(requests=99, seconds=draw(99))
    assert interval.candidate == Counts(requests=11, errors=4, refused=2, seconds=draw(7, 4))
    assert taken(counts) == ((0, 0, 0), (0, 0, 0))
    counts.record("n", report(7, totals(1091, matched=7), totals(106, slow=4, errors=54)), 3.0)
    assert taken(counts) == ((1, 0, 0), (0, 0, 0))


def test_copies_are_compared_since_the_last_interval_too(counts: ReleaseCounts) -> None:
    """A mirror that is compared in another way begins anew."""
    for seq, compared, differing in ((1, 100, 60), (2, 150, 61), (3, 20, 2)):
        counts.record("n", report(seq, None, None, compared=compared, differing=differing), float(seq))
    candidate = counts.take("n", "e").candidate
    assert (candidate.compared, candidate.differing) == (70, 3)


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        pytest.param([(5, 100, 0.0)], 0, id="first report"),
        pytest.param([(5, 100, 0.0), (6, 110, 1.0), (1, 5, 2.0), (2, 8, 3.0)], 18, id="restarted"),
        pytest.param([(5, 100, 0.0), (1, 120, 9.0)], 120, id="restarted and past its former count"),
        pytest.param([(5, 100, 0.0), (6, 3, 1.0)], 3, id="endpoint made anew"),
        pytest.param([(5, 100, 0.0), (6, 150, GAP)], 50, id="late"),
        pytest.param([(5, 100, 0.0), (6, 150, GAP + 1), (7, 151, GAP + 2)], 1, id="silent for too long"),
    ],
)
def test_counters_that_begin_anew_and_routers_that_fall_silent(
    counts: ReleaseCounts, reports: list[tuple[int, int, float]], expected: int
) -> None:
    for seq, requests, at in reports:
        counts.record("n", report(seq, totals(requests), totals()), at)
    assert taken(counts) == ((expected, 0, 0), (0, 0, 0))


def test_a_candidate_that_is_asked_again_brings_no_past_with_it(counts: ReleaseCounts) -> None:
    """While it is not asked, as in a step with copies alone, a router's report does not have it."""
    counts.record("n", report(1, totals(1000), totals(500, errors=50), compared=9, differing=9), 0.0)
    counts.record("n", report(2, totals(1010), None), 1.0)
    counts.record("n", report(3, totals(1020), totals(510, errors=52), compared=11, differing=9), 2.0)
    candidate = counts.take("n", "e").candidate
    assert (candidate.requests, candidate.errors, candidate.compared) == (10, 2, 2)


def test_what_a_router_counted_stays_when_it_goes_and_nothing_is_kept_of_it(counts: ReleaseCounts) -> None:
    counts.record("n", report(1, None, None), 0.0)
    counts.record("n", report(2, totals(5), None), 1.0)
    counts.forget("elsewhere", "u")
    counts.forget("n", "u")
    assert taken(counts) == ((5, 0, 0), (0, 0, 0))
    counts.record("n", report(3, totals(9), None), 2.0)
    assert taken(counts) == ((0, 0, 0), (0, 0, 0))


def test_only_what_is_followed_is_counted(counts: ReleaseCounts) -> None:
    """Another pair begins anew; the same one goes on; of what is not followed any more nothing is kept."""
    for seq in (1, 2):
        counts.record("n", report(seq, totals(seq), totals()), float(seq))
        counts.record("elsewhere", report(seq, totals(seq), totals(), "v"), float(seq))
    assert counts.take("n", "f") == counts.take("elsewhere", "e")
    counts.follow("n", "e", "a", "b")
    assert taken(counts) == ((1, 0, 0), (0, 0, 0))
    counts.follow("n", "e", "b", "other")
    counts.record("n", report(3, totals(3), totals(3)), 3.0)
    assert taken(counts) == ((0, 0, 0), (0, 0, 0))
    counts.unfollow("n", "e")
    counts.unfollow("n", "e")
    counts.record("n", report(4, totals(9), totals(9)), 4.0)
    assert taken(counts) == ((0, 0, 0), (0, 0, 0))
    assert counts.answered("n", "e", "a", 4.0) is None


def test_buckets_of_another_version_are_not_taken(counts: ReleaseCounts) -> None:
    """An older router sends none; their requests are not evidence."""
    other = BackendTotals(requests=50, seconds=(50, 1))
    counts.record("n", report(1, None, None), 0.0)
    counts.record("n", report(2, BackendTotals(requests=50), other), 1.0)
    assert taken(counts) == ((0, 0, 0), (0, 0, 0))
    assert counts.answered("n", "e", "a", 1.0) == 50


def test_what_a_backend_answered_lately(counts: ReleaseCounts) -> None:
    """All its requests, also those of rules and those that are held for it; and nothing is more than none."""
    assert counts.answered("n", "e", "a", 0.0) is None, "no router"
    counts.record("n", report(1, None, None), 0.0)
    assert counts.answered("n", "e", "a", 0.0) == 0, "a router that has just begun"
    counts.record("n", report(2, totals(3, matched=2), None), 1.0)
    counts.record("n", report(3, totals(4, matched=2), totals(held=1)), 5.0)
    assert [counts.answered("n", "e", name, 6.0) for name in "ab"] == [6, 1]
    assert counts.answered("n", "e", "b", 6.0, silent={"u"}) == 1
    counts.record("n", report(4, totals(4, matched=2), None), 6.0)
    assert counts.answered("n", "e", "b", 6.0, silent={"u"}) is None
    assert counts.answered("n", "e", "a", 5.0 + SPAN - 0.1) == 6
    assert counts.answered("n", "e", "a", 5.0 + SPAN) == 0


def test_of_a_router_with_a_past_nobody_knows_when_it_was(counts: ReleaseCounts) -> None:
    """As after a restart of the operator: only a whole span without requests is known to be one."""
    counts.record("n", report(50, totals(9), None), 0.0)
    assert counts.answered("n", "e", "a", SPAN - 0.1) is None
    assert counts.answered("n", "e", "a", SPAN) == 0
    counts.record("n", report(7, totals(9), None, "v"), SPAN)
    assert counts.answered("n", "e", "a", SPAN) is None
    counts.forget("n", "v")
    assert counts.answered("n", "e", "a", SPAN) == 0


def test_an_interval_is_cut_into_parts(counts: ReleaseCounts) -> None:
    """So that it shows what fails in one moment; reports of all routers within 0.5 s are one part."""
    for uid in "uv":
        counts.record("n", report(1, totals(9), totals(9), uid), 0.0)
    counts.record("n", report(2, totals(19), totals(10, errors=1), "u"), 0.1)
    counts.record("n", report(2, totals(29), totals(11, errors=2), "v"), 0.5)
    counts.record("n", report(3, totals(20), totals(10, errors=1), "u"), 0.7)
    interval = counts.take("n", "e")
    assert [tuple((each.requests, each.errors) for each in part) for part in interval.parts] == [
        ((30, 0), (3, 3)),
        ((1, 0), (0, 0)),
    ]
    assert (interval.stable.requests, interval.candidate.errors) == (31, 3)
    assert counts.take("n", "e").parts == ()


def test_the_parts_of_a_long_interval_are_longer_and_no_more(counts: ReleaseCounts) -> None:
    """Of about equal length, and all requests are in one; the next interval begins with short ones."""
    for number in range(1, 2000):
        counts.record("n", report(number, totals(number), totals(2 * number)), number * 0.6)
    parts = counts.take("n", "e").parts
    assert MOST_PARTS / 2 <= len(parts) <= MOST_PARTS
    assert sum(stable.requests for stable, _ in parts) == 1998
    assert sum(candidate.requests for _, candidate in parts) == 2 * 1998
    lengths = [stable.requests for stable, _ in parts[:-1]]
    assert max(lengths) <= 1.25 * min(lengths)
    counts.record("n", report(2000, totals(2000), totals()), 1200.0)
    counts.record("n", report(2001, totals(2001), totals()), 1200.6)
    assert len(counts.take("n", "e").parts) == 2
