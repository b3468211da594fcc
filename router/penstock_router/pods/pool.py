"""Keeps the pods of every backend, and picks the one that gets the next request."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from penstock_router.choice.affinity import Hashed, score
from penstock_router.choice.load_balancing import two_of
from penstock_router.pods.endpoint_slices import Address
from penstock_router.pods.pod import Pod, less_loaded
from penstock_wire.process import NOWHERE, log

REFUSING_SECONDS: Final = 5.0
"""A pod that refused because it drains gets no requests for this long, unless its slice changes before."""
FULL_SECONDS: Final = 0.1
"""A pod that had no room for a request counts as full for this long, unless it answers one before: it may
have room again without an answer to this router."""
MAX_SEEN: Final = 10_000
"""Addresses of pods that are kept; if there are more, absent pods' are forgotten."""
MOST_BROKEN: Final = 3
"""A pod that reported room this often in a row, and had none, is not believed while it counts as full. Once
can be due to another router."""
LEVEL_SECONDS: Final = 0.01
"""The least time between two checks whether much more waits at one pod than at others."""
MUCH_MORE: Final = 2
"""Items that wait at a pod beyond its fair part are recalled for others if they are at least this many times
its capacity."""
RECALL_SECONDS: Final = 0.1
"""How long to wait for the answer of a pod that was asked for requests back. Neither that pod nor one that
had none is asked again within this time, unless a request that it can hand back was sent there since."""
MOST_UNPROVEN: Final = 8
"""A pod that reported this often in a row that it handed requests back, and none came, counts as having none:
otherwise each report would cause the next recall."""
TakeRoom = Callable[[str, "Pod"], bool]
"""Sends the first request that waits for a backend to one of its pods; returns whether there was one."""


class Pods:
    """Pods by backend: from EndpointSlices, and from the settings' targets for a backend without slices.

    Args:
        clock: seconds, monotonic.
        random_source: for the random choice of pods.
        changed: called after each change.
        where: fields of each log line.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        random_source: random.Random,
        changed: Callable[[], None],
        where: Mapping[str, str] = NOWHERE,
    ) -> None:
        self._clock = clock
        self._random = random_source
        self._changed = changed
        self._where = where
        self._from_slices: Mapping[str, tuple[Address, ...]] = {}
        self._from_targets: Mapping[str, tuple[Address, ...]] = {}
        self._pods: dict[str, dict[Address, Pod]] = {}
        self._ready: dict[str, list[Pod]] = {}
        self._seen: dict[Address, float] = {}  # since when; a pod that comes back is not new
        self._some_full_until = 0.0  # the latest `full_until` of all pods
        self._some_refusing_until = 0.0  # likewise; 0 once that is over
        self._waiting: dict[str, dict[TakeRoom, None]] = {}  # by backend, in order of turns
        self._by_address: dict[tuple[str, int], tuple[str, Pod]] = {}
        self._leaving: dict[tuple[str, int], tuple[str, Pod]] = {}  # former pods that still have requests
        # By backend, pods that report room, the one that gets the next request first.
        self._free: dict[str, dict[Pod, None]] = {}
        # By backend, pods where items wait and none would begin at once.
        self._crowded: dict[str, dict[Pod, None]] = {}
        self._recalls: dict[str, float] = {}  # by backend, the end of the wait for a recall's answer
        self._level_at: dict[str, float] = {}  # by backend, the time of the next check whether pods are even
        self._sidecars: set[str] = set()  # backends with a pod that has reported its room
        self.keep: Callable[[Collection[tuple[str, int]]], object] = lambda addresses: None
        """Called with the sidecars that are to report how much room they have; see `HopUpstream.keep`."""
        self.recall: Callable[[str, int, int], bool] = lambda host, port, count: False
        """Asks a pod to hand back requests that have not begun; see `HopUpstream.recall`."""
        self.later: Callable[[float, Callable[[], None]], object] = lambda seconds, act: None
        """Calls a function after some seconds."""

    def set_slices(self, backends: Mapping[str, tuple[Address, ...]]) -> None:
        """Replace all addresses from EndpointSlices."""
        self._from_slices = backends
        self._settle()

    def set_targets(self, backends: Mapping[str, tuple[Address, ...]]) -> None:
        """Replace all targets from the settings."""
        if backends == self._from_targets:
            return  # as always beside an operator
        self._from_targets = dict(backends)
        self._settle()

    def exists(self, backend: str) -> bool:
        """Whether a backend exists: it has a Service with slices, even if they are empty, or targets."""
        return backend in self._pods

    def ready(self, backend: str) -> Sequence[Pod]:
        """The pods that are ready according to their slices, or targets."""
        return self._ready.get(backend, ())

    def available(self, backend: str) -> Sequence[Pod]:
        """The ready pods without those that refused lately because they drain."""
        if not self._some_refusing_until:
            return self.ready(backend)
        now = self._clock()
        if now >= self._some_refusing_until:
            self._some_refusing_until = 0.0
            return self.ready(backend)
        return [pod for pod in self.ready(backend) if now >= pod.refusing_until]

    def reaches(self, backend: str) -> bool:
        """Whether one of the available pods is not known to be unreachable."""
        for pod in self._ready.get(backend, ()):
            if not pod.unreachable and (not pod.refusing_until or self._clock() >= pod.refusing_until):
                return True
        return False

    def reachable(self, backend: str) -> list[Pod]:
        """The available pods that are not known to be unreachable."""
        return [pod for pod in self.available(backend) if not pod.unreachable]

    def why_unreachable(self, backend: str) -> str:
        """Why none of the available pods can be reached, for people; empty if one can, or there is none."""
        available = self.available(backend)
        if not available or not all(pod.unreachable for pod in available):
            return ""
        return max(available, key=lambda pod: pod.try_at).unreachable

    def next_try_at(self, backend: str) -> float | None:
        """When the first pod that refuses or is unreachable may be asked again; None if no pod is ready."""
        return min((max(pod.refusing_until, pod.try_at) for pod in self.ready(backend)), default=None)

    def pick(self, backend: str, *, without: Collection[Pod] = ()) -> Pod | None:
        """Pick the next request's pod, none of `without`: the less loaded of two; None if none is left.

        Pods that would begin it at once come first. If some had no room lately, a pod that can be reached and
        may have room is preferred to them.
        """
        pods = self.available(backend)
        if without:
            pods = [pod for pod in pods if pod not in without]
        if not pods:
            return None
        if len(pods) == 1 and not self._free:
            return pods[0]
        now = self._clock()
        if backend in self._free and (free := self._next_free(backend, pods, now)) is not None:
            return free
        if now < self._some_full_until:
            pods = [pod for pod in pods if now >= pod.full_until and not pod.unreachable] or pods
        if len(pods) == 1:
            return pods[0]
        first, other = two_of(len(pods), self._random)
        return less_loaded(pods[first], pods[other], now)

    def own(self, backend: str, key: Hashed) -> Pod | None:
        """The ready pod to which requests with a key stick, whatever its state; None if none is ready."""
        return _best(self.ready(backend), key)

    def pick_by_key(self, backend: str, key: Hashed, *, without: Iterable[Pod] = ()) -> Pod | None:
        """Pick the pod for the next request with a key, none of `without`; None if none is left.

        This is the key's own pod; if that drains, cannot be reached or had no room lately, the key's next
        pod. A request waits in the queue of its own pod even if it would begin at another at once.
        """
        excluded = set(without)
        pods = [pod for pod in self.available(backend) if pod not in excluded]
        now = self._clock()
        able = [pod for pod in pods if now >= pod.full_until and not pod.unreachable and not pod.avoided(now)]
        return _best(able or pods, key)

    def has_room(self, backend: str, *, without: Iterable[Pod] = ()) -> bool:
        """Whether a pod that can be reached, none of `without`, has not refused for lack of room lately."""
        now = self._clock()
        return any(now >= pod.full_until and pod not in without for pod in self.reachable(backend))

    def pick_probe(self, backend: str) -> Pod | None:
        """Pick the pod whose next try is due first; None if none is available."""
        return min(self.available(backend), key=lambda pod: pod.try_at, default=None)

    def failed(self, pod: Pod, why: str) -> None:
        """Note that no connection to the pod could be made, or that its model takes no requests."""
        if not pod.unreachable:
            log("pod cannot be reached", level="warning", pod=pod.address.pod, error=why, **self._where)
        pod.failed(self._clock(), why)

    def reached(self, pod: Pod) -> None:
        """Note that the pod took a connection or answered, and release requests held until it did."""
        news = pod.unreachable
        pod.reached()
        if news:
            log("pod is reached again", pod=pod.address.pod, host=pod.address.host, **self._where)
            self._changed()

    def full(self, pod: Pod) -> None:
        """Note that the pod had no room for a request."""
        self._some_full_until = pod.full_until = self._clock() + FULL_SECONDS
        if pod.promised:
            pod.promised = False
            pod.broken += 1

    def await_room(self, backend: str, take: TakeRoom) -> None:
        """Offer the room of each request that ends to `take`, in turn with others, until it takes none."""
        self._waiting.setdefault(backend, {})[take] = None

    def may_be_waited_for(self, backend: str) -> bool:
        """Whether a request may wait for room at a backend; it may have left since."""
        return bool(self._waiting.get(backend))

    def freed(self, backend: str, pod: Pod) -> None:
        """Give the place of a request that is over to the next one that waits for room."""
        pod.broken = 0
        if not self._offer(backend, pod):
            pod.full_until = 0.0

    def _offer(self, backend: str, pod: Pod) -> bool:
        """Offer a pod's room to the requests that wait for it; returns whether one takes it."""
        waiting = self._waiting.get(backend)
        if waiting and pod in self.available(backend):
            for take in tuple(waiting):
                del waiting[take]
                if take(backend, pod):
                    waiting[take] = None
                    return True
        return False

    def _next_free(self, backend: str, pods: Sequence[Pod], now: float) -> Pod | None:
        """One of `pods` at which a request would begin at once; None if there is none.

        It is the less loaded of the first two in turn: pods with room can differ in load.
        """
        free = self._free[backend]
        if len(free) == 1:  # no turns with only one
            pod = next(iter(free))
            if pod.free > 0 and pod.begins_at_once(now) and pod in pods:
                return pod
        best: Pod | None = None
        for pod in list(free):
            if pod.free <= 0:
                del free[pod]
            elif pod.begins_at_once(now) and pod in pods:
                if best is not None:
                    best = less_loaded(best, pod, now)
                    break
                best = pod
        if best is not None:
            del free[best]
            free[best] = None
        elif not free:
            del self._free[backend]
        return best

    def on_room(self, address: tuple[str, int], free: int, waiting: int, capacity: int) -> None:
        """Take a pod's report of its room, and fill it with requests that wait, here or at another pod.

        Args:
            address: its host and port.
            free: items that would begin there at once; -1 if it does not report it any more.
            waiting: items that wait there.
            capacity: items that begin at once in an empty pod; 0 if it does not report it.
        """
        entry = self._by_address.get(address)
        if entry is None:
            self._on_room_of_leaving(address, waiting)
            return
        backend, pod = entry
        pod.free, pod.waiting, pod.capacity = free, waiting, capacity
        crowded = self._crowded.setdefault(backend, {})
        if waiting and not free:
            crowded[pod] = None
        else:
            crowded.pop(pod, None)
        if backend not in self._sidecars:
            self._sidecars.add(backend)
            self._meet()
        if free > 0:
            pod.promised = True
            self._free.setdefault(backend, {})[pod] = None
            if pod.broken < MOST_BROKEN or self._clock() >= pod.full_until:
                self._fill(backend, pod)
        elif waiting and (backend in self._free or self._clock() >= self._level_at.get(backend, 0.0)):
            self._relieve(backend)

    def _on_room_of_leaving(self, address: tuple[str, int], waiting: int) -> None:
        """Take the report of a former pod: how many items still wait there."""
        entry = self._leaving.get(address)
        if entry is None:
            return
        backend, pod = entry
        pod.waiting = waiting
        if waiting:
            self._crowded.setdefault(backend, {})[pod] = None
            self._relieve(backend)
        else:
            self._crowded.get(backend, {}).pop(pod, None)
            if not pod.in_flight:
                del self._leaving[address]

    def on_recalled(self, address: tuple[str, int], count: int) -> None:
        """Take a pod's answer to a recall.

        Args:
            address: its host and port.
            count: items that it handed back; 0 if what waits there is not this router's, or has begun.
        """
        entry = self._by_address.get(address) or self._leaving.get(address)
        if entry is not None:
            backend, pod = entry
            pod.waiting = 0  # until it reports what is left
            pod.asked = False
            self._crowded.get(backend, {}).pop(pod, None)
            self._recalls.pop(backend, None)
            if count and pod.unproven < MOST_UNPROVEN:
                pod.unproven += 1
                pod.vain_at = -math.inf
                self._level_at.pop(backend, None)  # added pods take from several, one after the other
            else:  # what waits there is another router's, or stays; another pod may have this router's
                self._relieve(backend)

    def with_room(self) -> dict[str, int]:
        """How many ready pods report how much room they have, by backend."""
        return {name: sum([pod.free >= 0 for pod in pods]) for name, pods in self._ready.items()}

    def _meet(self) -> None:
        """Have pods report their room: those of Services, and targets if one of their backend reports it."""
        self.keep(
            [
                address
                for address, (backend, _) in self._by_address.items()
                if backend in self._from_slices or backend in self._sidecars
            ]
        )

    def _fill(self, backend: str, pod: Pod) -> None:
        """Send requests that wait to a pod with room: those held here first, then those at other pods."""
        for _ in range(pod.free):
            waiting = self._waiting.get(backend)
            if not waiting or not self._offer(backend, pod):
                break
        else:
            return
        self._relieve(backend)

    def _relieve(self, backend: str) -> None:
        """Recall requests that others would begin at once, or sooner: from a former pod, else the fullest.

        A pod that had nothing to hand back comes after the others the next time: what waits there may be
        another router's, or be bound to its pod.
        """
        crowd, free = self._crowded.get(backend), self._free.get(backend, ())
        now = self._clock()
        if not crowd or now < self._recalls.get(backend, 0.0):
            return
        room = sum([pod.free for pod in free if pod.takes(now)])
        even = self._even(backend, now)
        if not room and even == math.inf:
            return
        leaving = [pod for _, pod in self._leaving.values()]
        able = [pod for pod in crowd if pod.waiting and pod.in_flight and now >= pod.vain_at + RECALL_SECONDS]
        able.sort(key=lambda pod: (pod.asked, pod.vain_at, pod not in leaving, -pod.level))
        for pod in able:
            count = max(min(room, pod.waiting), 0 if pod in leaving else _beyond(pod, even))
            if count and self.recall(pod.address.host, pod.address.port, count):
                pod.asked, pod.vain_at = True, now
                self._recalls[backend] = now + RECALL_SECONDS
                # NB: the loop's clock may have whole milliseconds, so it may ring a little early.
                self.later(1.1 * RECALL_SECONDS, functools.partial(self._pass_over, backend, pod))
                return

    def _even(self, backend: str, now: float) -> float:
        """The level that all pods would have if waiting items were spread evenly.

        It is infinite if no check is due now, or a pod does not report its capacity.
        """
        if now < self._level_at.get(backend, 0.0):
            return math.inf
        self._level_at[backend] = now + LEVEL_SECONDS
        pods = [pod for pod in self._ready.get(backend, ()) if pod.takes(now)]
        if not pods or not all(pod.capacity for pod in pods):
            return math.inf
        return sum([pod.waiting - pod.free for pod in pods]) / sum([pod.capacity for pod in pods])

    def _pass_over(self, backend: str, asked: Pod) -> None:
        """Ask another pod if the one that was asked has not answered; it may be silent for long."""
        if asked.asked and len(self._crowded.get(backend, ())) > 1:
            self._relieve(backend)

    def refuses(self, pod: Pod) -> None:
        """Send nothing to a pod for a while, because it drains."""
        self._some_refusing_until = pod.refusing_until = self._clock() + REFUSING_SECONDS

    def _settle(self) -> None:
        addresses = {**self._from_targets, **self._from_slices}
        before, now = self._pods, self._clock()
        self._pods = {
            name: {
                each: before.get(name, {}).get(each) or Pod(each, self._seen.setdefault(each, now))
                for each in addresses[name]
            }
            for name in addresses
        }
        if len(self._seen) > MAX_SEEN:
            self._seen = {address: self._seen[address] for name in addresses for address in addresses[name]}
        self._ready = {name: list(pods.values()) for name, pods in self._pods.items()}
        before_by_address = {**self._leaving, **self._by_address}
        self._by_address = {
            (pod.address.host, pod.address.port): (name, pod)
            for name, pods in self._ready.items()
            for pod in pods
        }
        # Requests that wait at a former pod can be recalled, too.
        self._leaving = {
            address: (name, pod)
            for address, (name, pod) in before_by_address.items()
            if address not in self._by_address and pod.in_flight and name in addresses
        }
        self._sidecars &= self._ready.keys()
        self._meet()
        for table in (self._free, self._crowded):
            for name in list(table):
                here = set(self._ready.get(name, ()))
                if table is self._crowded:
                    here.update([pod for _, pod in self._leaving.values()])
                table[name] = {pod: None for pod in table[name] if pod in here}
                if not table[name]:
                    del table[name]
        self._level_at = {name: at for name, at in self._level_at.items() if name in addresses}
        self._waiting = {name: takes for name, takes in self._waiting.items() if name in addresses}
        for name in {name for name, _ in self._leaving.values()}:
            self._relieve(name)
        self._changed()


def _beyond(pod: Pod, even: float) -> int:
    """Items of this router that wait at a pod beyond its part of an even spread; 0 if they are not many.

    Some of what waits there may be other routers', which recall their own part.
    """
    if pod.level - even < MUCH_MORE:
        return 0
    ours = min(1.0, pod.in_flight / (pod.waiting + pod.capacity))
    return int((pod.level - even) * pod.capacity * ours)


def _best(pods: Sequence[Pod], key: Hashed) -> Pod | None:
    """The pod of a key by rendezvous hashing (`affinity`); None if there is none."""
    best: Pod | None = None
    most = -1
    for pod in pods:
        scored = score(key, pod.hashed)
        if best is None or scored > most or (scored == most and pod.address < best.address):
            best, most = pod, scored
    return best
