"""Finds the schedule that holds at a moment, and errors in schedules that no schema can refuse.

A schedule holds from each `start` to the next `end` after it, by the wall clock of its time zone. When that
clock goes forward or back, cron's own rule applies: a time that does not exist comes at the next that does,
and a time that comes twice counts once. Two schedules that hold at the same time would contradict each other:
then none holds, and the condition `Accepted` says which two, and when.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import TypeAdapter

from penstock_operator.api.schedules import Schedule
from penstock_operator.autoscaling.cron import DAY, Times

AHEAD = datetime.timedelta(days=400)
"""Time ahead for which schedules are checked for overlaps."""
MOST = 400
"""Periods of one schedule that are checked for overlaps at most."""
_REMEMBERED = 16_384
"""Results that are cached, some 20 MiB: with more backends, each minute would compute a day's again."""
_SCHEDULES = TypeAdapter(tuple[Schedule, ...])
_MINUTE = datetime.timedelta(minutes=1)
_NONE = datetime.timedelta(0)
_EPOCH = datetime.date(1970, 1, 1).toordinal()
_NEVER = datetime.datetime.min.replace(tzinfo=datetime.UTC)


def in_force(schedules: tuple[Schedule, ...], now: datetime.datetime) -> Schedule | None:
    """Return the schedule that holds now; None if none does, or if `problem` finds an error."""
    return _at(schedules, _minute(now))[0] if schedules else None


def problem(schedules: tuple[Schedule, ...], now: datetime.datetime) -> str | None:
    """Return what is wrong with schedules, in words; None if nothing is."""
    return _at(schedules, _minute(now))[1] if schedules else None


def _minute(now: datetime.datetime) -> datetime.datetime:
    return now.astimezone(datetime.UTC).replace(second=0, microsecond=0)


@lru_cache(maxsize=4096)
def _at(schedules: tuple[Schedule, ...], minute: datetime.datetime) -> tuple[Schedule | None, str | None]:
    wrong = _problem(_SCHEDULES.dump_json(schedules), minute.replace(minute=0, hour=0))
    if wrong is not None:
        return None, wrong
    holding = [
        each for each in schedules if _latest(each.start, each, minute) >= _latest(each.end, each, minute)
    ]
    if len(holding) > 1:
        return None, _overlap(holding[0], holding[1], minute.timestamp())
    return (holding[0] if holding else None), None


@lru_cache(maxsize=_REMEMBERED)
def _problem(text: bytes, day: datetime.datetime) -> str | None:
    """Return what is wrong with schedules from a day on; they are JSON, which takes the least memory."""
    schedules = _SCHEDULES.validate_json(text)
    for index, each in enumerate(schedules):
        where = f"autoscaling.schedules[{index}] ({each.name})"
        try:
            ZoneInfo(each.time_zone)
        except (KeyError, ValueError, OSError):
            return (
                f"{where}: timeZone: expected an IANA time zone such as Europe/Berlin, found {each.time_zone}"
            )
        for field, cron in (("start", each.start), ("end", each.end)):
            try:
                next(CronSim(cron, _wall(day, ZoneInfo(each.time_zone))))
            except CronSimError as error:
                return f"{where}: {field}: expected a time as cron writes it, found {cron}: {error}"
            except StopIteration:
                return f"{where}: {field}: expected a time that comes, found {cron}, which never does"
    if len(schedules) == 1:
        return None  # nothing to overlap with
    periods = sorted(
        (begin, end, index) for index, each in enumerate(schedules) for begin, end in _periods(each, day)
    )
    last: tuple[float, int] = (-math.inf, -1)
    for begin, end, index in periods:
        if begin < last[0] and index != last[1]:
            return _overlap(schedules[last[1]], schedules[index], begin)
        last = max(last, (end, index))
    return None


def _overlap(first: Schedule, other: Schedule, at: float) -> str:
    moment = datetime.datetime.fromtimestamp(at, datetime.UTC)
    return (
        f"autoscaling.schedules: expected one at a time, found {first.name} and {other.name} both in force "
        f"at {moment:%Y-%m-%dT%H:%MZ}; none holds"
    )


def _periods(schedule: Schedule, day: datetime.datetime) -> Iterator[tuple[float, float]]:
    """Yield the periods of a schedule from a day on, as seconds of begin and end.

    NB: this goes from each time straight to the next that counts: a schedule that starts every minute and
    ends once in four years has two million starts in between.
    """
    zone, until = ZoneInfo(schedule.time_zone), (day + AHEAD).timestamp()
    starts, ends = Times(schedule.start), Times(schedule.end)
    wall = _wall(day, zone)
    after = wall.toordinal() * DAY + 60 * wall.hour + wall.minute
    for _ in range(MOST):
        begin = starts.after(after)
        end = ends.after(begin)
        begins, ends_at = _second(begin, zone), _second(end, zone)
        if begins >= until:
            return
        if begins < ends_at:  # else the wall clock skips it
            yield begins, ends_at
        after = end - 1  # it can begin again when it ends


def _second(minute: int, zone: ZoneInfo) -> float:
    """Return what `_seconds` does, for a minute as `cron.Times` counts them; fast for many of a day."""
    day, within = divmod(minute, DAY)
    offset = _offset(day, zone)
    if offset is None:
        return _seconds(
            datetime.datetime.fromordinal(day).replace(tzinfo=datetime.UTC) + within * _MINUTE, zone
        )
    return (day - _EPOCH) * 86400.0 + 60.0 * within - offset


@lru_cache(maxsize=8192)
def _offset(day: int, zone: ZoneInfo) -> float | None:
    """Return the seconds by which a zone's wall clock is ahead of UTC all day; None if that changes."""
    begin = datetime.datetime.fromordinal(day).replace(tzinfo=zone)
    ends = (begin, begin + datetime.timedelta(days=1))
    offsets = {each.replace(fold=fold).utcoffset() or _NONE for each in ends for fold in (0, 1)}
    return offsets.pop().total_seconds() if len(offsets) == 1 else None


def _latest(cron: str, schedule: Schedule, minute: datetime.datetime) -> datetime.datetime:
    """Return when a cron expression last matched, this minute included, by the wall clock (see `_wall`)."""
    zone = ZoneInfo(schedule.time_zone)
    local = (minute + _MINUTE).astimezone(zone)
    wall = local.replace(tzinfo=datetime.UTC, fold=0)
    if local.fold:  # the clock shows this for the second time, and has shown later times
        wall += (local.replace(fold=0).utcoffset() or _NONE) - (local.utcoffset() or _NONE)
    now = minute.timestamp()
    times = CronSim(cron, wall, reverse=True)
    return next((at for at in times if _seconds(at, zone) <= now), _NEVER)


def _wall(moment: datetime.datetime, zone: ZoneInfo) -> datetime.datetime:
    """Return what the wall clock shows, as if it were UTC; cron goes by this alone."""
    return moment.astimezone(zone).replace(tzinfo=datetime.UTC, fold=0)


def _seconds(wall: datetime.datetime, zone: ZoneInfo) -> float:
    """Return when the wall clock first shows a time, or, if it skips that, the next one; in seconds."""
    while True:
        at = wall.replace(tzinfo=zone)
        if _wall(at.astimezone(datetime.UTC), zone) == wall:
            return at.timestamp()
        wall += _MINUTE
