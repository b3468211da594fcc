"""The state of one endpoint in one router: settings, choice by weight, held requests, totals."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Sequence

from penstock_router.choice.load_balancing import WeightedSelector
from penstock_router.choice.steering import Steering, Steers
from penstock_router.holding.hold_queue import MAX_HELD_BYTES, HoldQueue, Waiter
from penstock_router.holding.release_window import Permit, ReleaseWindow
from penstock_router.messages import cors
from penstock_router.messages.arrived_head import ArrivedHead, ArrivedHeads
from penstock_router.messages.header_policy import allows
from penstock_router.messages.static_answers import StaticAnswers
from penstock_router.mirroring.mirrors import EndpointMirrors
from penstock_router.pods.pod import Pod
from penstock_router.pods.pool import Pods
from penstock_router.series import Series
from penstock_wire._mypyc import mypyc_attr
from penstock_wire.access_log import AccessLog
from penstock_wire.closed_paths import ClosedPaths
from penstock_wire.control.report import BackendTotals
from penstock_wire.control.router_settings import Endpoint, Timeouts
from penstock_wire.errors import PenstockError, Reason
from penstock_wire.http import Request
from penstock_wire.timers import EarliestTimer

COLD_RETRY_AFTER_SECONDS = 5.0
"""The `retry-after` for a client if the duration of a start is unknown."""


def no_such_endpoint(name: str) -> PenstockError:
    """Make the error for a request to an endpoint that was deleted."""
    return PenstockError(Reason.NO_ROUTE, f"endpoint {name} does not exist any more")


@mypyc_attr(native_class=False)
class HoldOver(PenstockError):
    """A request cannot be held, since there is no room or time, or its time in the hold is over."""


class EndpointState:
    """One endpoint.

    Args:
        settings: its settings; `update` replaces them whole.
        pods: all pods of the router.
        random_source: for the choice of a backend.
        on_held: called when the first request is held for a backend.
        series: makes the counters of its requests, by endpoint and backend.
        heads: the cache of heads of all the router's endpoints; None for a separate one.
    """

    def __init__(
        self,
        settings: Endpoint,
        *,
        pods: Pods,
        clock: Callable[[], float],
        random_source: random.Random,
        on_held: Callable[[], None],
        series: Callable[[str, str], Series] = Series,
        heads: ArrivedHeads | None = None,
    ) -> None:
        self.settings = settings
        self.held = HoldQueue()
        self.name = settings.name
        self._make_series = series
        self._series: dict[str, Series] = {}
        self._heads = ArrivedHeads() if heads is None else heads
        self._era = object()
        self._pods = pods
        self._clock = clock
        self._on_held = on_held
        self._selector = WeightedSelector(random_source)
        self._windows: dict[str, ReleaseWindow] = {}
        self._timers: dict[str, EarliestTimer] = {}
        self._held_since: dict[str, float] = {}  # when its first request was held, by backend
        self._started_in: dict[str, float] = {}  # seconds from then until its first release
        self._removed = False
        self._holds_ended: PenstockError | None = None
        self.mirrors: EndpointMirrors | None = None
        """The mirrors that get copies of its requests; None for none."""
        self._take_times()
        self.cors = self._policy()
        self.access = _access(settings)
        """Logs its requests; None if the router's own access log does."""
        self._closed = ClosedPaths(settings.closed)
        self._static = StaticAnswers(settings.static) if settings.static else None
        self._steers = Steers(settings)
        self._fails = settings.on_missing == "Fail"
        self.settle()

    @property
    def faults(self) -> list[str]:
        """The parts of its settings that cannot be used and are left out, with reasons."""
        of_mirrors = [] if self.mirrors is None else self.mirrors.faults
        return [*self._steers.faults, *of_mirrors]

    def head(self, request: Request) -> ArrivedHead:
        """The decisions for all requests with the head of this one, from the cache if possible.

        Args:
            request: its target is without the route.
        """
        # NB: a server gives requests with equal heads the same fields object (`head_cache`).
        known = self._heads.known.get(id(request.headers))
        if (
            known is None
            or known.era is not self._era
            or known.headers is not request.headers
            or known.target != request.target
            or known.method != request.method
        ):
            closed = self._closed.include(request.path)
            allowed = allows(self.settings, request.method)
            static = None if self._static is None else self._static.of(request)
            known = ArrivedHead(
                request,
                closed=closed,
                allowed=allowed,
                idle=self.idle,
                steers=self._steers,
                static=static,
                era=self._era,
            )
            if request.shared is None or request.shared is request.headers:
                self._heads.keep(known)  # else it has fields of its own, and does not come again
        return known

    def series(self, backend: str) -> Series:
        """The counters of requests to a backend; an empty name stands for requests that were sent to none."""
        series = self._series.get(backend)
        if series is None:
            series = self._series[backend] = self._make_series(self.name, backend)
        return series

    def update(self, settings: Endpoint) -> None:
        self.settings = settings
        self._take_times()
        self.cors = self._policy()
        self.access = _access(settings)
        self._closed = ClosedPaths(settings.closed)
        self._static = StaticAnswers(settings.static) if settings.static else None
        before, self._steers = self._steers, Steers(settings)
        self._steers.settle(self._serves, before)
        self._fails = settings.on_missing == "Fail"
        self._era = object()
        names = {backend.name for backend in settings.backends}
        for of_backend in (self._held_since, self._started_in):
            for name in of_backend.keys() - names:
                del of_backend[name]
        self.settle()

    def remove(self) -> None:
        """Answer all held requests 404 at once, since the endpoint was deleted."""
        self._removed = True
        self.end_holds(no_such_endpoint(self.name))
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def end_holds(self, error: PenstockError) -> None:
        """Answer all held requests with an error, and all that would be held from now on."""
        self._holds_ended = error
        for backend in self.held.backends():
            for waiter in self.held.waiters(backend):
                self.held.leave(waiter)
                if not waiter.future.done():
                    waiter.future.set_exception(error)

    def begin(self, steering: Steering, route: bytes) -> Steering:
        """The steering of one request: see `Steers.begin`."""
        return self._steers.begin(steering, route) if steering.unkeyed else steering

    def settle(self) -> None:
        """Apply present weights and pods: share out the weight of missing backends, move held requests on.

        A backend is missing if it has neither a Service of its own with slices nor targets. A backend that
        exists without a ready pod, or with none that can be reached, keeps its share: its requests are held.
        With `onMissing: Fail`, a missing one keeps its share, too: its requests are answered 503.
        """
        weights = {
            backend.name: backend.weight
            for backend in self.settings.backends
            if backend.weight > 0 and self._serves(backend.name)
        }
        self._selector.set_weights(weights)
        if self._steers.settle(self._serves):
            self._era = object()
        for backend in self.held.backends():
            if backend in weights and not self._is_missing(backend):
                continue
            for waiter in self.held.waiters(backend):
                chosen = self._choose(waiter.steering)
                missing = self._is_missing(chosen)
                if chosen == backend and not missing:
                    continue
                self.held.leave(waiter)
                waiter.backend = chosen
                if not missing:
                    self._join_first(waiter)
                elif not waiter.future.done():
                    waiter.future.set_exception(self._missing(chosen))
        for backend in self.held.backends():
            self._let_go(backend)

    def enter(self, steering: Steering | None = None) -> tuple[str | None, bool]:
        """Choose a backend; return it, and whether a request may be sent to one of its pods at once.

        It may if no request of this endpoint waits for that backend and one of its pods can be reached.

        Args:
            steering: the request's; None for none.
        """
        if self._removed:
            return None, False
        backend = self._selector.next() if steering is None else self._choose(steering)
        if backend is None or self.held.length(backend):
            return backend, False
        if backend in self._windows:
            # Its requests may have moved or left before the window could be forgotten.
            self._forget_idle_window(backend)
            if backend in self._windows:
                return backend, False
        return backend, self._pods.reaches(backend)

    def pick(self, backend: str, steering: Steering | None, without: Sequence[Pod] = ()) -> Pod | None:
        """Pick a pod of a backend for a request; None if none is left.

        Args:
            steering: the request's; None for none.
            without: pods not to pick.
        """
        if steering is None or steering.key is None:
            return self._pods.pick(backend, without=without)
        return self._pods.pick_by_key(backend, steering.key, without=without)

    def sent(self, backend: str, steering: Steering, pod: Pod) -> None:
        """Count a request that is sent to another pod than its key's own."""
        key = steering.key
        if key is not None and self._pods.own(backend, key) is not pod:
            self.series(backend).strays += 1

    async def acquire(
        self,
        *,
        size: int,
        sequence: int,
        arrived: float,
        deadline: float | None,
        backend: str | None,
        again: bool = False,
        for_room: bool = False,
        steering: Steering | None = None,
    ) -> Permit:
        """Get the right to send: at once if a pod can be reached and no request waits, else after a hold.

        If pods are ready but cannot be reached, the request also goes at once if it cannot be held:
        otherwise nothing would find out that a pod can be reached again.

        Args:
            size: bytes of its body that are kept meanwhile.
            sequence: the request's number by arrival among all.
            arrived: when the request arrived.
            deadline: the client's own deadline, which counts during the hold, too; None for none.
            backend: the backend that was drawn for it before, None to draw.
            again: whether it was held, or refused by a pod, before: it needs no room in the hold again.
            for_room: whether all reachable pods have refused it for lack of room, so that it must be held.
            steering: the request's; None for none.

        Raises:
            HoldOver: no pod in time, or too many requests wait.
            PenstockError: the endpoint was deleted, the router shuts down, or the backend does not exist and
                the endpoint has `onMissing: Fail`.
        """
        if self._removed:
            raise no_such_endpoint(self.name)
        if backend is None or not (
            backend in self._selector.weights or (steering is not None and self._steers.matchable(backend))
        ):
            backend = self._choose(steering)
        if self._is_missing(backend):
            raise self._missing(backend)
        window = self._windows.get(backend) if backend is not None else None
        asks = (window is not None and window.full) or not (backend is None or self.held.length(backend))
        if backend is not None and asks and not for_room:
            free = window is None or window.full or window.paused_until <= self._clock()
            if free and (
                self._pods.reaches(backend)
                or (not again and not self.may_hold(arrived, size) and self._pods.available(backend))
            ):
                return Permit(backend=backend)
        future: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        patience = arrived + self.settings.cold_start.timeout_ms / 1000
        waiter = Waiter(
            future=future,
            backend=backend,
            size=size,
            since=arrived,
            until=patience if deadline is None else min(patience, deadline),
            sequence=sequence,
            steering=steering,
        )
        by_client = deadline is not None and deadline < patience
        return await self._hold(waiter, by_client=by_client, again=again, for_room=for_room)

    def connected(self, permit: Permit) -> None:
        """Note that the request with a permit has a connection: if it is the probe, this ends the probe."""
        if permit.window is not None and permit.window.probe is permit:
            permit.window.probe = None
            self._let_go(permit.backend)

    def give_back(self, permit: Permit, *, answered: bool, queue_full: bool = False) -> None:
        """Return a permit after its try.

        Args:
            permit: the result of `acquire`.
            answered: whether a pod answered the request.
            queue_full: whether a pod refused it for a full queue.
        """
        window = permit.window
        if window is None:
            return
        if window.probe is permit:
            window.probe = None
        if queue_full:
            window.refused(permit, self._clock())
        elif answered:
            window.answered(permit, self._clock())
        else:
            window.ended(permit)
        self._let_go(permit.backend)
        if self._windows.get(permit.backend) is window:
            self._forget_idle_window(permit.backend)

    def may_hold(self, arrived: float, size: int | None) -> bool:
        """Whether there is time and room to hold a request.

        Args:
            arrived: when it arrived.
            size: bytes of its body that are kept meanwhile; None for a request that had room before.
        """
        in_time = self._clock() < arrived + self.settings.cold_start.timeout_ms / 1000
        return in_time and (size is None or self._has_room(size))

    def report(self) -> dict[str, BackendTotals]:
        """The totals for the report, by backend: those that got a request, or that requests are held for."""
        held = self.held_by_backend()
        names = {backend.name for backend in self.settings.backends} & self._series.keys()
        names |= {name for name in held if name}
        return {name: self.series(name).totals(held.get(name, 0)) for name in sorted(names)}

    def held_by_backend(self) -> dict[str, int]:
        """How many requests are held, by backend; "" if the endpoint has none."""
        return {backend or "": self.held.length(backend) for backend in self.held.backends()}

    def _serves(self, backend: str) -> bool:
        """Whether a backend gets requests: it exists, or `onMissing` is `Fail`."""
        return self._fails or self._pods.exists(backend)

    def _choose(self, steering: Steering | None) -> str | None:
        if steering is None:
            return self._selector.next()
        return self._steers.choose(steering, self._selector.weights, self._selector.next)

    def _is_missing(self, backend: str | None) -> bool:
        """Whether requests for a backend must fail because it does not exist."""
        return self._fails and backend is not None and not self._pods.exists(backend)

    def _missing(self, backend: str | None) -> PenstockError:
        return PenstockError(
            Reason.BACKEND_MISSING,
            f"backend {backend} of endpoint {self.name} does not exist, and onMissing is Fail",
            retry_after=COLD_RETRY_AFTER_SECONDS,
        )

    def _take_times(self) -> None:
        """Convert the times of the settings to seconds."""
        settings = self.settings
        timeouts = settings.timeouts or Timeouts()
        head = min(settings.timeout_ms, timeouts.first_byte_ms or settings.timeout_ms)
        self.first_byte = head / 1000
        """Seconds until the head of an answer."""
        self.idle = None if timeouts.idle_ms is None else timeouts.idle_ms / 1000
        """Seconds between two pieces of an answer; None for the time that the request had for its head."""
        self.total = None if timeouts.total_ms is None else timeouts.total_ms / 1000
        """Seconds for the whole request; None for no limit."""

    def _policy(self) -> cors.Policy | None:
        settings = self.settings
        return None if settings.cors is None else cors.Policy(settings.cors, settings.methods)

    def _has_room(self, size: int) -> bool:
        fits = self.held.bytes + size <= MAX_HELD_BYTES
        return fits and self.held.count < self.settings.cold_start.max_pending

    def _no_room(self, size: int) -> str:
        """Name the bound that keeps a request out of the hold, for people.

        Args:
            size: bytes of its body.
        """
        most, held = self.settings.cold_start.max_pending, self.held
        if held.count >= most:
            bound = f"room among at most {most} requests that wait for a pod (coldStart.maxPending"
            return f"expected {bound} of endpoint {self.name}), found {held.count} that wait already"
        bound = f"at most {MAX_HELD_BYTES} bytes of bodies that wait for a pod of endpoint {self.name}"
        return f"expected {bound} (a fixed bound), found {held.bytes} already and {size} of this request"

    async def _hold(self, waiter: Waiter, *, by_client: bool, again: bool, for_room: bool) -> Permit:
        if self._holds_ended is not None:
            raise self._holds_ended
        if not again and not self._has_room(waiter.size):
            raise HoldOver(
                Reason.COLD_START_FULL,
                self._no_room(waiter.size),
                retry_after=self._retry_after(waiter.backend),
            )
        if (again or for_room) and waiter.until <= self._clock():
            raise self._too_long(waiter, by_client=by_client)
        if for_room and waiter.backend is not None:
            window = self._windows.get(waiter.backend)
            if window is None:
                window = self._windows[waiter.backend] = ReleaseWindow()
                window.see_warm_pods(self._pods.reachable(waiter.backend), self._clock())
            window.full = True
        if for_room:
            self._join(waiter)
        else:
            self._join_first(waiter)
        self._let_go(waiter.backend)
        # NB: not `asyncio.timeout`: with mypyc, its exception would stay set as the one being handled.
        timer = asyncio.get_running_loop().call_at(waiter.until, self._time_is_over, waiter, by_client)
        try:
            permit = await waiter.future
        except BaseException:  # a cancellation too
            timer.cancel()
            # Its client may leave in the same turn of the loop that released it.
            if not self.held.leave(waiter):
                self._take_back(waiter.future)
            if waiter.backend is not None:
                self._forget_idle_window(waiter.backend)
            raise
        timer.cancel()
        return permit

    def _time_is_over(self, waiter: Waiter, by_client: bool) -> None:  # noqa: FBT001 - the loop calls it
        if not waiter.future.done():
            waiter.future.set_exception(self._too_long(waiter, by_client=by_client))

    def _retry_after(self, backend: str | None) -> float:
        """Seconds until there should be room: the rest of a start that takes as long as the last one."""
        took, since = self._started_in.get(backend or ""), self._held_since.get(backend or "")
        left = 0.0 if took is None or since is None else since + took - self._clock()
        return left if left > 0 else COLD_RETRY_AFTER_SECONDS

    def _join(self, waiter: Waiter) -> None:
        self.held.join(waiter)
        if waiter.backend is not None:
            self._pods.await_room(waiter.backend, self._take_room)

    def _join_first(self, waiter: Waiter) -> None:
        """Let a request wait for a pod, and report it if it is the first for its backend."""
        first = not self.held.length(waiter.backend)
        self._join(waiter)
        if first:
            if waiter.backend is not None:
                self._held_since[waiter.backend] = self._clock()
            self._on_held()

    def _take_room(self, backend: str, pod: Pod) -> bool:
        """Take a pod's room (`pods.TakeRoom`), unless requests wait for a first pod and not for room."""
        window = self._windows.get(backend)
        if window is None or not window.full:
            return False
        return self._pass(backend, window, pod) is not None

    def _forget_idle_window(self, backend: str) -> None:
        window = self._windows.get(backend)
        if window is None or window.out or self.held.length(backend):
            return
        if window.paused_until <= self._clock():  # else the refused request will return to it
            del self._windows[backend]

    def _take_back(self, future: asyncio.Future[Permit]) -> None:
        if future.done() and not future.cancelled() and future.exception() is None:
            permit = future.result()
            self.give_back(permit, answered=False)
            if permit.pod is not None:
                self._pods.freed(permit.backend, permit.pod)

    def _too_long(self, waiter: Waiter, *, by_client: bool) -> HoldOver:
        waited = self._clock() - waiter.since
        why = self._pods.why_unreachable(waiter.backend) if waiter.backend else ""
        if why:
            # An unreachable pod and a missing one have different causes, so the reasons differ.
            reason = Reason.DEADLINE if by_client else Reason.MODEL_UNREACHABLE
            detail = f"no ready pod of backend {waiter.backend} could be reached in {waited:.3f} s: {why}"
            return HoldOver(reason, detail)
        what = f"no pod of backend {waiter.backend} became ready" if waiter.backend else self._no_backend()
        if by_client:
            return HoldOver(Reason.DEADLINE, f"{what} within the request's {waited:.3f} s")
        return HoldOver(
            Reason.BACKEND_MISSING,
            f"{what} while the request was held for {waited:.3f} s",
            retry_after=self._retry_after(waiter.backend),
        )

    def _no_backend(self) -> str:
        """Describe why requests wait for no backend, for people."""
        names = [backend.name for backend in self.settings.backends if backend.weight > 0]
        if not names:
            return f"no backend of endpoint {self.name} got a weight above 0"
        words = ("backend", "does") if len(names) == 1 else ("backends", "do")
        who = f"{words[0]} {', '.join(names)} of endpoint {self.name}"
        return f"{who} {words[1]} not exist: no EndpointSlice or target came"

    def _let_go(self, backend: str | None) -> None:
        """Release as many of a backend's held requests as its window allows."""
        if backend is None or not self.held.length(backend):
            return
        now = self._clock()
        window = self._windows.setdefault(backend, ReleaseWindow())
        reachable = self._pods.reachable(backend)
        window.see_pods(reachable)
        # New or reached pods and answers call this again; the end of a pause, or of the time until a pod is
        # asked again, needs a timer.
        again_at: float | None
        if reachable:
            if not (window.opened or window.full) and backend in self._held_since:
                self._started_in[backend] = now - self._held_since[backend]
            window.opened = True
            while window.may_pass(now) and self._pass(backend, window):
                pass
            again_at = window.paused_until
        else:
            again_at = self._pods.next_try_at(backend)
            if again_at is not None:
                again_at = max(again_at, window.paused_until)
                if again_at <= now and window.probe is None:
                    window.probe = self._pass(backend, window)
        if again_at is None or again_at <= now or not self.held.length(backend):
            return
        timer = self._timers.get(backend)
        if timer is None:
            ring = functools.partial(self._timer, backend)
            timer = self._timers[backend] = EarliestTimer(ring, self._clock)
        timer.ring_at(again_at)

    def _pass(self, backend: str, window: ReleaseWindow, pod: Pod | None = None) -> Permit | None:
        """Release the first request held for a backend, to `pod` or to any; None if none is left."""
        while (waiter := self.held.head(backend)) is not None:
            self.held.leave(waiter)
            if not waiter.future.done():  # else its client left, or its time ended, in this turn of the loop
                window.passed()
                permit = Permit(backend=backend, window=window, epoch=window.epoch, pod=pod)
                waiter.future.set_result(permit)
                return permit
        return None

    def _timer(self, backend: str) -> None:
        self._timers.pop(backend, None)
        self._let_go(backend)


def _access(settings: Endpoint) -> AccessLog | None:
    percent = settings.access_log_percent
    return None if percent is None else AccessLog(percent / 100)
