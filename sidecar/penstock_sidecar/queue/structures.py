"""What the queue consists of: a line for each key, in it a lane for each level and share."""

from __future__ import annotations

from penstock_sidecar.queue.deadline_list import Timeline
from penstock_sidecar.queue.fair_queueing import Flow
from penstock_sidecar.queue.lazy_heap import Ranking
from penstock_sidecar.queue.request import Key, Work


class Group:
    """All lanes of one level and share; `filled` of them are not empty.

    Where `eviction` looks after it: its `items` and `bytes` that wait, and the requests that may give way,
    the `newest` first.
    """

    __slots__ = ("bytes", "filled", "flow", "items", "lanes", "level", "newest")

    def __init__(self, level: int, flow: Flow) -> None:
        self.level = level
        self.flow = flow
        self.filled = 0
        self.lanes: Ranking[Lane] = Ranking(_lane_rank)
        self.items = self.bytes = 0
        self.newest = Timeline()


class Lane(Timeline):
    """The queued requests of one line, level and share, by deadline."""

    __slots__ = ("group", "level", "line", "share")

    def __init__(self, line: Line, group: Group) -> None:
        super().__init__()
        self.line = line
        self.group = group
        self.level = group.level
        self.share = group.flow.share


class Line:
    """The queued requests of one key."""

    __slots__ = ("_levels", "bytes", "common", "held", "items", "key", "lanes", "latest", "lone", "requests")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.lone = bool(key.lone)
        self.lanes: dict[tuple[int, bytes], Lane] = {}
        self._levels: dict[int, Ranking[Lane]] = {}
        # The lane of level 1 without a share stays once it is there: most lines have no other.
        self.common: Lane | None = None
        self.requests = 0
        self.items = 0
        self.bytes = 0
        self.held = False
        # When the latest request came, while part-full batches may wait.
        self.latest = 0.0

    @property
    def oldest(self) -> float:
        """When the oldest request of the line arrived."""
        return min([lane.oldest() for lane in self.lanes.values()])

    @property
    def by_arrival(self) -> list[Work]:
        """The requests, the oldest first."""
        works = [work for lane in self.lanes.values() for work in lane.by_arrival()]
        return works if len(self.lanes) == 1 else sorted(works, key=lambda work: work.arrived)

    def of_share(self, share: bytes) -> list[Work]:
        """The requests of a share, the oldest first."""
        works = [work for lane in self.lanes.values() if lane.share == share for work in lane.by_arrival()]
        return sorted(works, key=lambda work: work.arrived)

    @property
    def plain(self) -> bool:
        """Whether its requests may share batches, and none has a level or a share."""
        # NB: not `bool(self.common)`, which mypyc takes for `is not None`: a lane may be there, and empty.
        return not self.lone and len(self.lanes) == 1 and (1, b"") in self.lanes

    @property
    def deadline(self) -> float:
        """The earliest deadline."""
        return min([due for lane in self.lanes.values() if (due := lane.due()) is not None])

    def enter(self, lane: Lane) -> None:
        """A lane is not empty any more."""
        lanes = self.lanes
        lanes[lane.level, lane.share] = lane
        if len(lanes) > 1:
            for other in (lane,) if self._levels else lanes.values():
                ranking = self._levels.get(other.level)
                if ranking is None:
                    ranking = self._levels[other.level] = Ranking(_share_rank)
                ranking.touch(other, other.group.flow.tag)

    def drop(self, lane: Lane) -> None:
        """A lane is empty."""
        del self.lanes[lane.level, lane.share]
        if len(self.lanes) <= 1:
            self._levels.clear()
        elif (ranking := self._levels.get(lane.level)) is not None:
            ranking.discard(lane)

    def first(self) -> Work | None:
        """The request whose turn it is within this line."""
        lane = self.next()
        return None if lane is None else lane.first()

    def next(self) -> Lane | None:
        """The lane whose turn it is within this line."""
        if not self._levels:
            for lane in self.lanes.values():
                return lane
            return None
        for level in sorted(self._levels):
            found = self._levels[level].first()
            if found is not None:
                return found
        return None


def _lane_rank(lane: Lane) -> float | None:
    return None if lane.line.held else lane.due()


def _share_rank(lane: Lane) -> float | None:
    return lane.group.flow.tag if lane else None


def group_rank(group: Group) -> float | None:
    """Where a group stands among those of its level: by its flow's tag; None where all it has is held."""
    return group.flow.tag if group.lanes.first() is not None else None
