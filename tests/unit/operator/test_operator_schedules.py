"""Limits by the clock: when they hold, what they do, and what is wrong with some."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import example, given
from hypothesis import strategies as st

from penstock_operator.api import BatchPolicySpec, ModelBackend
from penstock_operator.api.schedules import CRON, Schedule
from penstock_operator.autoscaling import PodLoad, Sample, ScalerState, recommend, schedule, target_of
from penstock_operator.autoscaling.cron import Times
from penstock_operator.autoscaling.schedule import in_force, problem
from penstock_operator.status.backend import BackendObserved, backend_status

OFFICE = {
    "name": "office",
    "timeZone": "Europe/Berlin",
    "start": "0 8 * * MON-FRI",
    "end": "0 18 * * MON-FRI",
}
NIGHT = {"name": "night", "timeZone": "Europe/Berlin", "start": "0 22 * * *", "end": "0 6 * * *"}


def schedules(*documents: dict[str, Any]) -> tuple[Schedule, ...]:
    return tuple(Schedule.model_validate({"minReplicas": 2} | document) for document in documents)


def utc(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)


def backend(**autoscaling: Any) -> ModelBackend:
    spec = {"model": {"container": {"image": "i"}}, "autoscaling": {"targetLoad": 10} | autoscaling}
    return ModelBackend.parse({"metadata": {"name": "m", "generation": 1}, "spec": spec})


@pytest.mark.parametrize(
    ("now", "name"),
    [
        ("2026-11-23T06:59:59", ""),  # Monday, 7:59 in Berlin
        ("2026-11-23T07:00:00", "office"),
        ("2026-11-23T16:59:59", "office"),
        ("2026-11-23T17:00:00", ""),
        ("2026-11-21T12:00:00", ""),  # Saturday
        ("2026-07-20T06:00:00", "office"),  # summer time
        ("2026-11-23T21:00:00", "night"),
        ("2026-11-24T04:59:00", "night"),
        ("2026-11-24T05:00:00", ""),
    ],
)
def test_from_each_start_to_the_next_end(now: str, name: str) -> None:
    """In the schedule's own time zone, over midnight and through a change of the clocks."""
    force = in_force(schedules(OFFICE, NIGHT), utc(now))
    assert (force.name if force else "") == name
    assert problem(schedules(OFFICE, NIGHT), utc(now)) is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"timeZone": "Mars/Base"},
            "timeZone: expected an IANA time zone such as Europe/Berlin, found Mars/Base",
        ),
        ({"start": "0 8 30 FEB *"}, "start: expected "),
        ({"end": "0 18-8 * * *"}, "end: expected a time as cron writes it, found 0 18-8 * * *"),
    ],
)
def test_what_a_schema_cannot_refuse(wrong: dict[str, Any], message: str) -> None:
    """It is said by field, and no schedule holds."""
    now, odd = utc("2026-11-23T09:00:00"), schedules(NIGHT, OFFICE | wrong)
    fault = problem(odd, now)
    assert fault is not None
    assert fault.startswith(f"autoscaling.schedules[1] (office): {message}")
    assert in_force(odd, now) is None


def test_an_overlap() -> None:
    """It is found before it comes, with its time; across time zones, too."""
    late = {"name": "late", "timeZone": "America/New_York", "start": "0 11 * * FRI", "end": "0 13 * * FRI"}
    now, both = utc("2026-11-23T09:00:00"), schedules(OFFICE, late)
    assert problem(both, now) == (
        "autoscaling.schedules: expected one at a time, found office and late both in force at "
        "2026-11-27T16:00Z; none holds"
    )
    assert in_force(both, now) is None
    # In March the clocks of New York go forward two weeks before those of Berlin.
    spring = problem(schedules(OFFICE, late | {"start": "0 12 * * FRI"}), now)
    assert spring is not None
    assert "at 2027-03-19T16:00Z" in spring
    assert problem(schedules(OFFICE, late | {"start": "0 14 * * FRI", "end": "0 15 * * FRI"}), now) is None


@pytest.mark.parametrize(
    ("start", "end", "held"),
    [
        # Monday's whole day: the end that comes with the start is not the next one.
        ("0 0 * * MON", "0 0 * * *", [("2026-11-22T23:00", "2026-11-23T23:00")]),
        # The clocks of Berlin go back on 2026-10-25 at 01:00 UTC: what they show twice comes once.
        ("30 2 25 10 *", "0 6 * * *", [("2026-10-25T00:30", "2026-10-25T05:00")]),
        ("0 20 24 10 *", "30 2 * * *", [("2026-10-24T18:00", "2026-10-25T00:30")]),
        ("59 2 25 10 *", "0 3 * * *", [("2026-10-25T00:59", "2026-10-25T02:00")]),
        ("0 2,3 25 10 *", "30 * * * *", [(f"2026-10-25T{n:02}:00", f"2026-10-25T{n:02}:30") for n in (0, 2)]),
        # They go forward on 2026-03-29 at 01:00 UTC: what they do not show comes at 3:00.
        ("30 2 29 3 *", "0 6 * * *", [("2026-03-29T01:00", "2026-03-29T04:00")]),
        ("0 1 29 3 *", "30 2 * * *", [("2026-03-29T00:00", "2026-03-29T01:00")]),
        ("0 2 29 3 *", "0 3 * * *", []),
    ],
)
def test_when_the_clocks_change(start: str, end: str, held: list[tuple[str, str]]) -> None:
    """Minute by minute, by Berlin's wall clock: from each start to the next end after it."""
    one = schedules(OFFICE | {"start": start, "end": end})
    for begins, ends in held or [("2026-03-29T01:00", "2026-03-29T01:00")]:
        first, last = utc(begins), utc(ends)
        moment = first - datetime.timedelta(minutes=31)
        while moment < last + datetime.timedelta(minutes=29):
            assert (in_force(one, moment) is not None) is (first <= moment < last), moment
            moment += datetime.timedelta(minutes=1)


def test_hours_that_the_clocks_leave_out_overlap_with_nothing() -> None:
    """From 2:00 to 3:00 at night and from 8:00 on by day have no moment in common in March either."""
    night = {"name": "batch", "timeZone": "Europe/Berlin", "start": "0 2 * * *", "end": "0 3 * * *"}
    both = schedules(night, OFFICE | {"start": "0 8 * * *", "end": "0 18 * * *"})
    assert problem(both, utc("2026-11-23T09:00:00")) is None
    force = in_force(both, utc("2026-11-23T09:00:00"))
    assert force is not None
    assert force.name == "office"


def test_times_that_come_often_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start each minute with an end every four years, or the reverse, does not hold the operator up."""
    asked = 0
    step, after = CronSim.__next__, Times.after

    def count() -> None:
        nonlocal asked
        asked += 1
        assert asked < 10_000, "too many times are asked for"

    def counted(cron: CronSim) -> datetime.datetime:
        count()
        return step(cron)

    def counted_after(times: Times, minute: int) -> int:
        count()
        return after(times, minute)

    monkeypatch.setattr(CronSim, "__next__", counted)
    monkeypatch.setattr(Times, "after", counted_after)
    often, seldom = "* * * * *", "0 0 29 2 *"
    for start, end in ((often, seldom), (seldom, often), (often, "*/1 * * * *")):
        times = {"start": start, "end": end}
        assert problem(schedules(OFFICE | times), utc("2026-11-23T09:00:00")) is None
        problem(schedules(OFFICE | times, NIGHT | times), utc("2026-11-23T09:00:00"))


def test_many_backends_with_schedules_of_their_own_are_asked_once_a_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever may create ModelBackends needs no pod for that: they must not take the operator's time."""
    worked_out = 0

    def counted(*_: Any) -> Iterator[tuple[float, float]]:
        nonlocal worked_out
        worked_out += 1
        return iter(())

    monkeypatch.setattr(schedule, "_periods", counted)
    many = [schedules(OFFICE, NIGHT | {"name": f"night-{number}"}) for number in range(1100)]
    for minute in range(2):
        assert {in_force(each, utc(f"2026-11-23T19:0{minute}:00")) for each in many} == {None}
    assert worked_out == 2 * len(many)


def _fields() -> st.SearchStrategy[str]:
    def field(least: int, most: int) -> st.SearchStrategy[str]:
        numbers = st.integers(least, most)
        span = st.tuples(numbers, numbers).map(lambda two: f"{min(two)}-{max(two)}")
        item = st.one_of(st.just("*"), numbers.map(str), span)
        stepped = st.tuples(item, st.sampled_from(["", "/2", "/7", "/40"])).map("".join)
        return st.lists(stepped, min_size=1, max_size=3).map(",".join)

    fields = (field(0, 59), field(0, 23), field(1, 28), field(1, 12), field(0, 7))
    return st.tuples(*fields).map(" ".join)


@given(_fields(), st.integers(0, 8 * 365 * 1440))
@example("0 0 29 2 *", 72 * 365 * 1440)
@example("*/30 */12 31 */2 7", 3 * 365 * 1440 - 1)
def test_the_times_are_those_of_cron(cron: str, later: int) -> None:
    """CronSim is the measure: it knows when days of the month and of the week are both to fit."""
    wall = utc("2024-01-01T00:00:00") + datetime.timedelta(minutes=later)
    minutes = wall.toordinal() * 1440 + wall.hour * 60 + wall.minute
    expected, times = CronSim(cron, wall), Times(cron)
    for _ in range(3):
        minutes, at = times.after(minutes), next(expected)
        assert divmod(minutes, 1440) == (at.toordinal(), 60 * at.hour + at.minute)


@pytest.mark.parametrize(
    ("zone", "year", "month"),
    [
        ("UTC", 2026, 3), ("Europe/Berlin", 2026, 3), ("Europe/Berlin", 2026, 10),
        ("America/New_York", 2026, 11), ("Australia/Lord_Howe", 2026, 4),
        ("America/Santiago", 2026, 9), ("Pacific/Apia", 2011, 12), ("Africa/Casablanca", 2026, 2),
        ("Asia/Kathmandu", 2026, 1),
    ],
)  # fmt: skip
def test_a_wall_clock_is_read_by_day_as_by_minute(zone: str, year: int, month: int) -> None:
    """Through changes of the clocks, by half an hour and by a whole day, too."""
    there, first = ZoneInfo(zone), datetime.datetime(year, month, 1, tzinfo=datetime.UTC)
    for minute in range(0, 32 * 1440, 15):
        wall = first + datetime.timedelta(minutes=minute)
        assert schedule._second(first.toordinal() * 1440 + minute, there) == schedule._seconds(wall, there)


def test_limits_and_the_reason() -> None:
    """A schedule's limits take the place of the others, and the verdict names it."""
    spec = backend(schedules=[OFFICE | {"minReplicas": 4, "maxReplicas": 6}])
    samples = tuple(Sample(at=at, load=5) for at in range(101))
    pods, policy = [PodLoad(name="p", ready=True, was_ready=True, samples=samples)], BatchPolicySpec()

    def look(now: str, current: int, load: int = 5) -> Any:
        target = target_of(spec, policy, utc(now))
        assert target is not None
        many = [
            PodLoad(name="p", ready=True, was_ready=True, samples=(*samples[:-1], Sample(at=100, load=load)))
        ]
        state = ScalerState(first_look=0)
        return recommend(target, current=current, pods=many if load != 5 else pods, state=state, now=101)[0]

    day, night = "2026-11-23T09:00:00", "2026-11-23T20:00:00"
    assert (look(day, 1).replicas, look(day, 4).verdict) == (4, "Schedule")
    assert (
        look(day, 4).message
        == "load 5 / targetLoad 10 = 0.5, rounded up to 1, limited to minReplicas 4 of schedule office"
    )
    assert (look(night, 1).replicas, look(night, 1).verdict) == (1, "Steady")
    assert (look(day, 6, 9000).verdict, look(night, 10, 9000).verdict) == ("Schedule", "Limited")


@pytest.mark.parametrize(
    ("limits", "current", "load", "verdict", "limit"),
    [
        ({"minReplicas": 4}, 8, 9000, "Limited", "limited to maxReplicas 8"),
        ({"minReplicas": 4}, 4, 5, "Schedule", "limited to minReplicas 4 of schedule office"),
        ({"maxReplicas": 6}, 6, 9000, "Schedule", "limited to maxReplicas 6 of schedule office"),
        ({"maxReplicas": 6}, 2, 5, "Steady", "limited to minReplicas 2"),
    ],
)
def test_a_schedule_is_named_only_for_the_limit_that_it_sets(
    limits: dict[str, int], current: int, load: int, verdict: str, limit: str
) -> None:
    """Who wants another number must find the limit where it is."""
    spec = backend(minReplicas=2, maxReplicas=8, schedules=[OFFICE | limits])
    target = target_of(spec, BatchPolicySpec(), utc("2026-11-23T09:00:00"))
    assert target is not None
    samples = tuple(Sample(at=at, load=load) for at in range(101))
    pods = [PodLoad(name="p", ready=True, was_ready=True, samples=samples)]
    seen, _ = recommend(target, current=current, pods=pods, state=ScalerState(first_look=0), now=101)
    assert (seen.verdict, seen.limit) == (verdict, limit)


def test_a_schedule_that_wakes_a_backend_is_named() -> None:
    """Nothing is known of its load then: the limits alone decide."""
    spec = backend(minReplicas=0, scaleToZero={"after": "1m"}, schedules=[OFFICE | {"minReplicas": 4}])
    target = target_of(spec, BatchPolicySpec(), utc("2026-11-23T09:00:00"))
    assert target is not None
    state = ScalerState(first_look=0)
    starts = [PodLoad(name="m-1", ready=False, was_ready=False)]
    messages = [
        recommend(target, current=current, pods=pods, state=state, now=101)[0].message
        for current, pods in ((0, []), (4, starts))
    ]
    assert messages == [
        "set to 4: it has no ready pod; minReplicas of schedule office is 4",
        "kept at 4: it has no ready pod",
    ]


@pytest.mark.parametrize(("note", "status"), [(None, "True"), ("autoscaling.schedules: why", "False")])
def test_accepted_says_it(note: str | None, status: str) -> None:
    """Of backends with schedules alone."""

    def accepted(spec: ModelBackend) -> list[tuple[str, str]]:
        document = backend_status(spec, BackendObserved(schedule_note=note), now="2026-11-23T09:00:00Z")
        return [
            (each["status"], each["message"]) for each in document["conditions"] if each["type"] == "Accepted"
        ]

    assert accepted(backend(schedules=[OFFICE | {"minReplicas": 2}])) == [(status, note or "")]
    assert accepted(backend()) == []


@pytest.mark.parametrize(
    ("cron", "fits"),
    [
        ("0 8 * * MON-FRI", True),
        ("*/15 0-23/2 1,15 JAN 7", True),
        ("60 8 * * *", False),
        ("0 24 * * *", False),
        ("0 8 32 * *", False),
        ("0 8 0 * *", False),
        ("0 8 * 13 *", False),
        ("0 8 * * 8", False),
        ("0 8 * *", False),
        ("@daily", False),
    ],
)
def test_the_schema_refuses_what_is_no_cron(cron: str, fits: bool) -> None:
    """By field, when it is applied."""
    assert bool(re.fullmatch(CRON.strip("^$"), cron)) is fits
