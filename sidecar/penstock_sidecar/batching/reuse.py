"""Requests that are the same as one in flight: they wait for its answer instead of running again. Pure.

The same are requests of one key whose bodies are equal, byte for byte, and that accept the same form of
answer. The first of them leads: it has the place in the queue and in a batch, and the others follow it. A
follower keeps its own deadline, and follows only a request that goes first anyway: one of which nothing waits
any more, or one of its own share whose deadline and level are not behind its own. If the client of the leader
goes, the leader stays as long as somebody follows it. Only a success is shared: after another answer each
follower runs by itself, and after an end without an answer the first of them leads the others.
"""

from __future__ import annotations

from penstock_sidecar.queue.deadline_list import DeadlineList
from penstock_sidecar.queue.key import BatchKey
from penstock_sidecar.queue.request import QueuedRequest
from penstock_wire.headers import Headers
from penstock_wire.http import Request

Same = tuple[BatchKey, bytes, Headers]
"""The key, the body, and the fields that change the form of the answer."""
_FORM = (b"accept-encoding", b"range", b"if-range")
"""Fields that a request with a batch to itself sends, and on which the bytes of its answer depend."""


class Run:
    """One leader, and the requests that follow it, by their deadlines.

    `deserted`: the leader's client has gone. `mixed`: not all followers have the same level and share.
    """

    __slots__ = ("deserted", "followers", "leader", "mixed", "same")

    def __init__(self, leader: QueuedRequest, same: Same) -> None:
        self.leader = leader
        self.same = same
        self.followers = DeadlineList()
        self.deserted = self.mixed = False


class InFlight:
    """All requests that others may follow, and those that do.

    Attributes:
        runs: the run that a request leads or follows.
        reused: requests that have followed another, since the start.
    """

    __slots__ = ("_followers", "_latest", "reused", "runs")

    def __init__(self) -> None:
        self.runs: dict[QueuedRequest, Run] = {}
        # The latest leader of equal requests.
        self._latest: dict[Same, Run] = {}
        self._followers = DeadlineList()
        self.reused = 0

    def follow(self, work: QueuedRequest, most: int) -> bool:
        """Let a request follow another; False if it has to run by itself.

        Args:
            work: the request.
            most: maximum followers; one more is admitted as any request is.
        """
        run = self._latest.get(_same(work))
        if run is None or len(self._followers) >= most:
            return False
        leader = run.leader
        if leader.queued and (
            leader.deadline > work.deadline or leader.level > work.level or leader.share != work.share
        ):
            return False
        first = run.followers.first() or work
        run.mixed = run.mixed or first.level != work.level or first.share != work.share
        run.followers.add(work, work.deadline)
        self.runs[work] = run
        # It may have to run by itself, and need not keep what the leader keeps.
        work.request.body, work.items = leader.request.body, leader.items
        self._followers.add(work, work.expires)
        return True

    def lead(self, work: QueuedRequest) -> None:
        """Let others follow a request that was queued."""
        same = _same(work)
        self.runs[work] = self._latest[same] = Run(work, same)

    def succeed(self, work: QueuedRequest) -> QueuedRequest | None:
        """Let a follower lead the others in the place of a request that ends; None without such a one."""
        run = self.runs.get(work)
        if run is None or run.leader is not work or run.mixed or (heir := run.followers.first()) is None:
            return None
        run.followers.discard(heir)
        self._followers.discard(heir)
        del self.runs[work]
        run.leader, run.deserted = heir, False
        return heir

    def ended(self, work: QueuedRequest) -> list[QueuedRequest]:
        """Forget a request that has its outcome; returns those that followed it, the most urgent first."""
        run = self.runs.pop(work, None)
        if run is None:
            return []
        if run.leader is not work:
            run.followers.discard(work)
            self._followers.discard(work)
            return []
        if self._latest.get(run.same) is run:
            del self._latest[run.same]
        followers = sorted(run.followers.by_arrival(), key=lambda each: (each.level, each.deadline))
        for each in followers:
            del self.runs[each]
            self._followers.discard(each)
        return followers

    def left(self, work: QueuedRequest) -> QueuedRequest | None:
        """Note that a client has gone; returns the request for which nobody waits any more, None without."""
        run = self.runs.get(work)
        if run is None:
            return work
        if run.leader is work:
            run.deserted = True
            given = work.request  # its connection empties it
            work.request = Request(given.method, given.target, given.headers, given.body)
        else:
            work.done = True
            self.ended(work)
        if run.followers or not run.deserted:
            return None
        self.ended(run.leader)
        return run.leader

    def expired(self, now: float) -> QueuedRequest | None:
        """A follower whose client waits no longer; None without one."""
        due = self._followers.due()
        return self._followers.first() if due is not None and due <= now else None

    @property
    def due(self) -> float | None:
        """When the next follower expires."""
        return self._followers.due()


def _same(work: QueuedRequest) -> Same:
    request = work.request
    return work.key, request.body, tuple([field for field in request.headers if field[0] in _FORM])
