"""Sends copies of an endpoint's requests to its mirrors: backends whose answers no client gets.

A request is offered to the mirrors once its answer has begun. Each mirror draws independently whether it gets
a copy; a mirror with rules draws only among the requests that match one. Copies are queued for a later turn
of the loop, so that answers go first. A copy is dropped, and counted by reason, if it could delay a client:

- the router holds requests of the endpoint, or is short of CPU (`pressure`);
- the limit on copies in progress, or on their bytes, is reached (`in_flight`);
- the mirror has no ready pod that can be reached (`no_pod`), or its pods had no room, or requests of
  clients wait for that room (`no_room`);
- its answers are longer than a router reads whole (`answer_too_large`): a copy now and then tries again
  (`large_answers`);
- the request cannot be copied: its body or its answer streams, it switched protocols, its method has
  another meaning for a proxy, or the model did not answer it.

A copy is sent once, to one pod, and is neither held nor retried, so it never wakes a backend at zero. It is
marked, and has the least urgent level that the mirror's sidecars are configured with. Its answer is counted
as the mirror's own, compared if the mirror asks for it (`compare_queue`), and dropped.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections import deque
from collections.abc import Callable

from penstock_router.messages.arrived_head import MAX_HEAD_SIZE
from penstock_router.messages.header_policy import AnswerFields, request_lines
from penstock_router.messages.response_body import WHOLE_BYTES
from penstock_router.mirroring.compare import Comparison
from penstock_router.mirroring.compare_queue import CompareQueue, Shares
from penstock_router.mirroring.copy import Copy, Original
from penstock_router.mirroring.eligibility import (
    ANSWER_TOO_LARGE,
    IN_FLIGHT,
    NO_POD,
    NO_ROOM,
    PRESSURE,
    REFUSED,
    SWITCHES,
    UNSENDABLE,
    no_pod_words,
    unanswered_words,
    unfit,
    unfit_words,
)
from penstock_router.mirroring.mirror import MAX_HEADS, EndpointMirror
from penstock_router.mirroring.totals import MirrorSeries
from penstock_router.pods.pod import PROBE_MOST_SECONDS, UNREADY, Pod
from penstock_router.pods.pool import FULL_SECONDS, Pods
from penstock_wire.control.report import MirrorTotals
from penstock_wire.control.router_settings import Endpoint
from penstock_wire.errors import MODEL_ANSWER, Reason
from penstock_wire.headers import Headers
from penstock_wire.http import (
    TELLING_SECONDS,
    ConnectFailed,
    ConnectTimeout,
    PeerSilent,
    Request,
    Response,
    Upstream,
    UpstreamAnswer,
    UpstreamError,
    UpstreamTimeout,
)
from penstock_wire.http.server import head as heads
from penstock_wire.http.server.streams import close_in_background
from penstock_wire.process import log

MAX_IN_FLIGHT = 128
"""The most copies in progress for one mirror of one endpoint: it bounds what a slow mirror uses."""
MAX_ALL_IN_FLIGHT = 1024
MAX_BYTES = 64 * 1024 * 1024
"""Limits for all copies of a router: copies in progress, and bytes that are kept of requests and of answers
to compare."""
MEMORY_SHARE = 5
"""Copies keep one part in so many of what connections may keep, if that is less."""


class CopyBounds:
    """What the copies of a process take: of one router, or of those of all namespaces that share it.

    A router's may take as much as they leave free: one that is alone half of all, each of two a third. So
    there is room for another's, however much some have taken.

    Args:
        memory: what connections may keep, in bytes; 0 = unbounded.
    """

    __slots__ = ("_part", "bytes", "comparisons", "in_flight")

    def __init__(self, memory: int = 0) -> None:
        self.comparisons = Shares()
        self.in_flight = self.bytes = 0
        self._part = memory // MEMORY_SHARE

    def has_room(self, in_flight: int, kept: int, size: int) -> bool:
        """Whether a router may have one more copy.

        Args:
            in_flight: its copies.
            kept: their bytes.
            size: bytes of one more.
        """
        most = min(MAX_BYTES, self._part or MAX_BYTES)
        return in_flight < 2 * MAX_ALL_IN_FLIGHT - self.in_flight and kept + size <= 2 * most - self.bytes


A_TURN = 8
"""Copies that are sent in one turn of the loop."""
LARGE_ANSWER = "too_large"
"""Why a mirror's answer is not compared."""


class EndpointMirrors:
    """The mirrors of one endpoint.

    Args:
        queue: sends the copies.
        mirrors: in the order of the settings.
    """

    __slots__ = ("_choices", "_queue", "_ruled", "mirrors")

    def __init__(self, queue: Mirrors, mirrors: list[EndpointMirror]) -> None:
        self._queue = queue
        self.mirrors = mirrors
        self._ruled = any(mirror.match is not None for mirror in mirrors)
        self._choices: dict[int, tuple[Headers, list[EndpointMirror]]] = {}

    @property
    def faults(self) -> list[str]:
        """Why rules were left out."""
        return [fault for mirror in self.mirrors if mirror.match is not None for fault in mirror.match.faults]

    def of(self, request: Request) -> list[EndpointMirror]:
        """The mirrors that a request may be copied for; cached for all requests with one head."""
        if not self._ruled:
            return self.mirrors
        headers = request.headers
        known = self._choices.get(id(headers))
        if known is not None and known[0] is headers:
            return known[1]
        chosen = [mirror for mirror in self.mirrors if mirror.takes(headers)]
        if heads.size("", headers) <= MAX_HEAD_SIZE:
            if len(self._choices) >= MAX_HEADS:
                self._choices.clear()
            self._choices[id(headers)] = (headers, chosen)
        return chosen

    def offer(
        self,
        original: Original,
        answer: Response,
        reason: str,
        held: bool,  # noqa: FBT001 - mypyc calls faster by position
    ) -> None:
        """Copy an answered request for the mirrors that draw it.

        Args:
            reason: the answer's error reason; `MODEL_ANSWER` for an error of the model's, empty for none.
            held: whether requests of the endpoint are held.
        """
        if not original.asked and not reason:
            return  # the endpoint's own answer, or one to a preflight: neither the model's nor an error
        why = ""
        for mirror in self.of(original.request):
            if not mirror.draws():
                continue
            if not why:
                why = unfit(original, answer, reason) or "fit"
            if why != "fit":
                if mirror.series.drop(why):
                    mirror.series.explain(why, unfit_words(why, original.request, answer, reason))
            elif held:
                mirror.drop(PRESSURE, "requests of the endpoint are held")
            else:
                self._queue.add(mirror, original, answer)

    def pass_over(self, request: Request, reason: str) -> None:
        """Count a request that cannot be copied, for each mirror that draws it."""
        for mirror in self.of(request):
            if mirror.draws():
                mirror.drop(reason, SWITCHES)

    def report(self) -> dict[str, MirrorTotals]:
        return {mirror.name: mirror.series.totals() for mirror in self.mirrors}


class Mirrors:
    """Sends the copies of a router.

    Args:
        make_series: makes the counters of an endpoint's copies for a mirror, or finds those that it has.
        forget_series: drops the counters of a mirror that was removed.
        random_source: for the draws.
        short: whether the router is short of CPU.
        is_held_for: whether requests are held for a backend.
        bounds: those of the process; None = of this router alone.
    """

    def __init__(
        self,
        *,
        pods: Pods,
        upstream: Upstream,
        clock: Callable[[], float],
        make_series: Callable[[str, str], MirrorSeries],
        forget_series: Callable[[str, str], None],
        random_source: random.Random,
        short: Callable[[], bool],
        is_held_for: Callable[[str], bool],
        bounds: CopyBounds | None = None,
    ) -> None:
        self._bounds = bounds = CopyBounds() if bounds is None else bounds
        self._pods = pods
        self._upstream = upstream
        self._clock = clock
        self._make_series = make_series
        self._forget_series = forget_series
        self._random = random_source
        self._short = short
        self._is_held_for = is_held_for
        self._comparisons = CompareQueue(shares=bounds.comparisons)
        self._waiting: deque[Copy] = deque()
        self._in_flight = 0
        self._bytes = 0

    def wanted(self, before: EndpointMirrors | None, endpoint: Endpoint) -> EndpointMirrors | None:
        """Make the mirrors of an endpoint's settings; those that stay keep their draw and copies in progress.

        Args:
            before: its former mirrors; None for none.
        """
        known = {} if before is None else {mirror.name: mirror for mirror in before.mirrors}
        for name in known.keys() - {settings.name for settings in endpoint.mirrors}:
            self._forget_series(endpoint.name, name)
        if not endpoint.mirrors:
            return None
        mirrors: list[EndpointMirror] = []
        for settings in endpoint.mirrors:
            mirror = known.get(settings.name)
            if mirror is None:
                series = self._make_series(endpoint.name, settings.name)
                mirror = EndpointMirror(settings, series, self._random)
            else:
                mirror.update(settings)
            mirrors.append(mirror)
        return EndpointMirrors(self, mirrors)

    def kept(self) -> int:
        """Count the bytes that are kept for copies."""
        return self._bytes

    def add(self, mirror: EndpointMirror, original: Original, answer: Response) -> None:
        """Queue a copy to be sent in a later turn of the loop, if there is room for it."""
        if self._short():
            mirror.drop(PRESSURE, "the router is short of processors")
            return
        copy = Copy(mirror, original, answer if mirror.rules is not None else None)
        room = self._bounds.has_room(self._in_flight, self._bytes, copy.size)
        if mirror.in_flight >= MAX_IN_FLIGHT or not room:
            mirror.drop(IN_FLIGHT, "as many copies, or bytes of them, are under way as there may be")
            return
        mirror.in_flight += 1
        self._count(1, copy.size)
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._go_on)
        self._waiting.append(copy)

    def _go_on(self) -> None:
        for _ in range(min(A_TURN, len(self._waiting))):
            copy = self._waiting.popleft()
            try:
                sent = self._send(copy)
            except Exception as unsendable:  # the others go on
                sent = False
                if copy.mirror.series.drop(UNSENDABLE):
                    log("copy not sent", level="error", error=repr(unsendable), mirror=copy.mirror.name)
                    copy.mirror.series.explain(UNSENDABLE, f"the router failed: {type(unsendable).__name__}")
            if not sent:
                self._over(copy)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _send(self, copy: Copy) -> bool:
        """Send a copy, or count why it cannot be sent; returns whether it was sent."""
        mirror, now = copy.mirror, self._clock()
        pod = self._pods.pick(mirror.name)
        if pod is None or (pod.unreachable and now < max(pod.try_at, mirror.next_probe)):
            if mirror.series.drop(NO_POD):
                mirror.series.explain(NO_POD, no_pod_words(pod))
            return False
        if now < mirror.full_until or now < pod.full_until:
            return mirror.drop(NO_ROOM, "a pod of the mirror refused a copy, or a request, for a full queue")
        if self._pods.may_be_waited_for(mirror.name) and self._is_held_for(mirror.name):
            return mirror.drop(NO_ROOM, "requests of clients wait for this backend")
        if mirror.large_answers.holds_back(now):
            return mirror.drop(
                ANSWER_TOO_LARGE, f"the mirror's last answer had no length, or more than {WHOLE_BYTES} bytes"
            )
        original = copy.original
        request = original.request
        out = Request(request.method, request.target, mirror.fields(original.shared), request.body)
        out.lines = request_lines(original.identity, original.timeout)
        copy.sent = now
        address = pod.address
        self._upstream.begin(
            address.host,
            address.port,
            out,
            original.timeout,
            original.timeout,
            WHOLE_BYTES,
            functools.partial(self._opened, copy),
        )
        copy.pod = pod
        pod.begins(stays=True)
        mirror.series.sent += 1
        mirror.large_answers.sent(now)
        if pod.unreachable:
            mirror.next_probe = now + PROBE_MOST_SECONDS
        return True

    def _opened(self, copy: Copy, answer: Response | UpstreamAnswer | UpstreamError) -> None:
        """Take a mirror's answer, or the error instead of it."""
        pod, mirror = copy.pod, copy.mirror
        assert pod is not None  # noqa: S101 - it was asked
        seconds = self._clock() - copy.sent
        self._ended(copy, pod)
        if isinstance(answer, UpstreamError):
            self._failed(copy, pod, answer, seconds)
        else:
            fields = AnswerFields(answer.fields if isinstance(answer, Response) else answer.headers)
            if fields.reason not in UNREADY:
                self._pods.reached(pod)
            elif fields.refuses:
                self._pods.failed(pod, f"its model takes no copies: {answer.status} {fields.reason}")
            if fields.queued >= 0:
                pod.reports_queue(fields.queued, self._clock())
            if fields.reason == Reason.DRAINING.value and fields.refuses:
                self._pods.refuses(pod)
            elif fields.reason == Reason.QUEUE_FULL.value and fields.refuses:
                # NB: not `Pods.full`: there may be room for more urgent requests.
                mirror.full_until = self._clock() + FULL_SECONDS
            reason = fields.reason or (MODEL_ANSWER if answer.status >= 400 else "")
            mirror.series.copies.answered(answer.status, reason, seconds)
            if not fields.reason and not fields.refuses:
                mirror.series.answer(seconds, copy.original.seconds)
            elif mirror.series.fail(reason or REFUSED):
                words = unanswered_words(pod, answer.status, reason or REFUSED)
                mirror.series.explain(reason or REFUSED, words, sent=True)
            if not isinstance(answer, Response) or answer.stream is not None:
                if not isinstance(answer, Response):
                    answer.abort()
                elif answer.stream is not None:
                    close_in_background(answer.stream)
                why = LARGE_ANSWER
                mirror.large_answers.too_large(copy.sent, self._clock())
            elif fields.reason or fields.refuses:
                why = REFUSED
            else:
                why = ""
                mirror.large_answers.whole(copy.sent)
                self._compare(copy, answer)
            if why and copy.answer is not None:
                mirror.series.skip(why)
        if not isinstance(answer, ConnectFailed):
            self._pods.freed(mirror.name, pod)

    def _failed(self, copy: Copy, pod: Pod, error: UpstreamError, seconds: float) -> None:
        """Count a copy that got no answer."""
        reason = Reason.MODEL_UNREACHABLE
        if isinstance(error, ConnectFailed):
            if not (isinstance(error, ConnectTimeout) and seconds < TELLING_SECONDS):
                self._pods.failed(pod, str(error))
        elif isinstance(error, UpstreamTimeout):
            reason = Reason.DEADLINE
        elif isinstance(error, PeerSilent):
            pod.silent(self._clock())
        copy.mirror.series.copies.answered(0, reason.value, seconds)
        if copy.mirror.series.fail(reason.value):
            copy.mirror.series.explain(reason.value, unanswered_words(pod, 0, str(error)), sent=True)
        if copy.answer is not None:
            copy.mirror.series.skip(REFUSED)

    def _compare(self, copy: Copy, answer: Response) -> None:
        served, rules = copy.answer, copy.mirror.rules
        if served is None or rules is None:
            return
        comparison = Comparison(
            rules,
            served.status,
            served.body,
            served.headers,
            answer.status,
            answer.body,
            answer.headers,
        )
        self._comparisons.add(comparison, copy.mirror.series)

    def _ended(self, copy: Copy, pod: Pod) -> None:
        pod.ends()
        self._over(copy)

    def _over(self, copy: Copy) -> None:
        copy.mirror.in_flight -= 1
        self._count(-1, -copy.size)

    def _count(self, copies: int, size: int) -> None:
        self._in_flight += copies
        self._bytes += size
        self._bounds.in_flight += copies
        self._bounds.bytes += size
