"""Computes how many replicas the load, the rate of arrivals and refusals ask for, before any limit."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock_operator.autoscaling import forecast
from penstock_operator.autoscaling.capacity import Arrivals, Capacity, arrivals
from penstock_operator.autoscaling.forecast import Rates
from penstock_operator.autoscaling.window import AT, PodLoad, RouterHolds, silent_after

BUSY = 0.76
"""Share of a pod's rate μ* that arrivals should use: above it, chance makes queues.

Simulated (`bench.autoscaling`, two seeds): 0.76 costs 4 to 8 % fewer pod-seconds than 0.72; it misses 0.05 %
more of the items on sine and step, 0.01 % or less on ramp, sawtooth and leak. 0.80 saves 5 % more, but then
the step misses 0.3 % more, sine and sawtooth 0.2 %."""
STARTUP_S = 10.0
"""Seconds that pods are assumed to take to start, until one was seen to start."""
LOOK_S = 2.0
"""Seconds from one look of the operator at a backend to the next."""
_RISE_SHARE = 3
"""Increases follow the average over the stable window divided by this: an average over the whole window lags
a rise by half of it. (Simulated, on ramp, sine and sawtooth: a half to an eighth of the misses for 1 to 6 %
more pods, on the sawtooth 40 % more; on a steady load nothing changes.)"""
_PANIC_SHARE = 10
"""The panic window is the stable window divided by this."""
_PANIC_LEAST_S = 2.0
"""Seconds of the shortest panic window: two reports."""
_PANIC_FACTOR = 2
"""The panic window decides when it asks for at least this many times the ready pods."""
_MOST = 1_000_000
"""Replicas that are asked for at most, before any limit."""
_SUDDEN_SIGMAS = 3.0
"""The last two reports decide as the panic window does, less this many standard deviations of their count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """The input of `demand`.

    Args:
        pods: the backend's, including those that left.
        serving: of the pods, those that exist and have been ready.
        ready: how many of `serving` report.
        target_load: `targetLoad`; None if it follows from what a pod can do.
        able: what a pod can do; used only without `target_load`.
        stable_window: seconds.
        memory: seconds for which the highest rate, and the greatest rise, are remembered.
        startup: seconds that a pod takes to start.
    """

    pods: Sequence[PodLoad]
    holds: Sequence[RouterHolds]
    serving: Sequence[PodLoad]
    ready: int
    held: int
    current: int
    target_load: int | None
    able: Capacity
    stable_window: float
    memory: float
    startup: float

    @property
    def lead(self) -> float:
        """Seconds until pods that are asked for next are ready; a stable window at most."""
        return min((self.startup or STARTUP_S) + LOOK_S, self.stable_window)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The number of replicas that are asked for, with its reason.

    Args:
        likely: `wanted`, or more, up to `current`, if one standard deviation more would ask for that: a
            decrease that chance would undo waits.
        words: the reason, with the numbers.
        terms: for `status.scaling`.
        panic_until: no decrease before this time, in seconds.
        keep: replicas for arrivals and the reserve; None if unknown.
    """

    wanted: int
    likely: int
    words: str
    terms: dict[str, Any]
    panic_until: float
    rates: Rates
    keep: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """The replicas that one window asks for, not rounded, by each term that is known."""

    load: float
    by_load: float
    arrivals: Arrivals | None = None
    by_rate: float = 0.0
    surely_by_rate: float = 0.0
    likely_by_rate: float = 0.0
    expected: float | None = None

    @property
    def most(self) -> float:
        return max(self.by_load, self.by_rate)

    @property
    def surely(self) -> float:
        return max(self.by_load, self.surely_by_rate)


def demand(asking: Asking, *, panic_until: float, rates: Rates, now: float) -> Demand:
    """Compute how many replicas are asked for, and why."""
    lately = _lately(asking.stable_window)
    look = _look(asking, asking.stable_window, now)
    burst = _look(asking, lately, now)
    surely, likely, keep = look.surely, 0, None
    if asking.target_load is None:
        # A burst in the window is a jump, not a trend.
        rising, rates = _rising(asking, rates, trends=now >= panic_until, now=now)
        keep = _keep(asking, rising, rates, now)
        likely = min(_whole(rising.likely_by_rate), asking.current)
        surely = max(surely, rising.surely)
        look = max(look, rising, key=lambda candidate: candidate.most)
        burst = max(burst, _sudden(asking, burst, now), key=lambda candidate: candidate.most)
    if _whole(burst.most) >= _PANIC_FACTOR * max(asking.ready, 1):
        panic_until = now + asking.stable_window
    if now < panic_until and burst.most > look.most:
        look, surely = burst, burst.most
    by_load, by_rate = _whole(look.by_load), _whole(look.by_rate)
    wanted = max(by_load, by_rate)
    if asking.target_load is None and wanted > asking.current:
        wanted = max(asking.current, _whole(surely))
    refused = _refused(asking.serving, since=now - lately)
    if refused:
        wanted = max(wanted, asking.ready + 1)
    load = math.ceil(look.load - 1e-9)
    terms: dict[str, Any] = {"load": load, "refused": refused}
    if asking.target_load is not None:
        digits = max(4, 1 + len(str(asking.target_load)))  # so many show that a fraction is not an integer
        exactly = f"{load / asking.target_load:.{digits}f}".rstrip("0").rstrip(".")
        rounded = f", rounded up to {by_load}" if load % asking.target_load else ""
        words = f"load {load} / targetLoad {asking.target_load} = {exactly}{rounded}"
        if asking.held:
            words += f", {asking.held} of it held by routers"
    else:
        words = _words(asking, look, load)
        terms |= _terms(asking, look)
        if rates.lately:
            terms["reserve_per_minute"] = round(60 * rates.reserve)
    if refused:
        words += f", and a full queue refused {refused} items within {lately:g}s: {wanted}"
    return Demand(
        wanted=wanted, likely=max(wanted, likely), words=words, terms=terms, panic_until=panic_until,
        rates=rates, keep=keep,
    )  # fmt: skip


def _rising(asking: Asking, rates: Rates, *, trends: bool, now: float) -> tuple[_Look, Rates]:
    """Return what the last third of the window asks for, with its trend, and the rates with its own."""
    window, able = asking.stable_window / _RISE_SHARE, asking.able
    look = _look(asking, window, now)
    lately = look.arrivals
    if lately is None or able.rate is None or lately.seconds < window:
        return look, rates
    rates = forecast.remember(rates, lately.rate, span=asking.lead + window, memory=asking.memory, now=now)
    trend = forecast.trend(asking.pods, window=asking.stable_window, now=now) if trends else 0.0
    ahead = forecast.expected(rates, lately, trend=trend, lead=asking.lead)
    if ahead <= lately.rate:
        return look, rates
    more = (ahead - lately.rate) / (BUSY * able.rate)
    return replace(
        look, expected=ahead, by_rate=look.by_rate + more, surely_by_rate=look.surely_by_rate + more
    ), rates


def _keep(asking: Asking, rising: _Look, rates: Rates, now: float) -> int | None:
    """Return the replicas for arrivals and the reserve; None until rates were taken for all of `memory`."""
    lately = rising.arrivals
    if lately is None or asking.able.rate is None or rates.watched(now) < asking.memory:
        return None
    rate = max(rising.expected or 0.0, lately.rate + lately.chance(forecast.SIGMAS)) + rates.reserve
    return _whole(max(rising.by_load, rate / (BUSY * asking.able.rate)))


def _sudden(asking: Asking, burst: _Look, now: float) -> _Look:
    """Return what the last two reports ask for, less what chance can explain."""
    window = max([_PANIC_LEAST_S, *(2 * pod.samples[-1].every for pod in asking.serving if pod.samples)])
    sudden = None
    if asking.able.rate is not None and window < _lately(asking.stable_window):
        sudden = arrivals(asking.pods, asking.holds, window=window, now=now, unknown=0.0)
    if sudden is None or asking.able.rate is None:
        return burst
    sudden = replace(sudden, rate=max(sudden.rate - sudden.chance(_SUDDEN_SIGMAS), 0.0))
    return replace(burst, arrivals=sudden, by_rate=sudden.rate / (BUSY * asking.able.rate))


def _lately(stable_window: float) -> float:
    return max(stable_window / _PANIC_SHARE, _PANIC_LEAST_S)


def _look(asking: Asking, window: float, now: float) -> _Look:
    able, stable = asking.able, asking.stable_window
    if asking.target_load is not None:
        load = _average_load(asking, asking.target_load, window=window, now=now)
        load = load if asking.serving else max(load, asking.held)
        return _Look(load=load, by_load=load / asking.target_load)
    # The smaller average counts: a queue that is gone asks for nothing, and the rate predicts better.
    load = min(_average_load(asking, able.load, window=span, now=now) for span in (window, _lately(stable)))
    load = load if asking.serving else max(load, asking.held)
    by_load = load / able.load
    if able.rate is None:
        return _Look(load=load, by_load=by_load)
    counted = arrivals(asking.pods, asking.holds, window=window, now=now, unknown=BUSY * able.rate)
    if counted is None:
        return _Look(load=load, by_load=by_load)
    rate = counted.rate
    clears = (rate + load / stable) / able.rate
    chance = 0.0 if _is_first(asking, counted) else counted.chance(forecast.SIGMAS)
    return _Look(
        load=load,
        by_load=min(by_load, max(asking.ready + 1, clears)),
        arrivals=counted,
        by_rate=rate / (BUSY * able.rate),
        surely_by_rate=max(rate - chance, 0.0) / (BUSY * able.rate),
        likely_by_rate=(rate + counted.chance(1.0)) / (BUSY * able.rate),
    )


def _is_first(asking: Asking, counted: Arrivals) -> bool:
    """Whether the load is new: its arrivals were counted for less time than a rise is averaged over.

    No number of pods was chosen for a new load yet, so the mean is the best guess. If pods ran before their
    first report here, the load is not new: a new leader has counted for a short time, too.
    """
    little = counted.seconds < asking.stable_window / _RISE_SHARE
    return little and all(pod.since == -math.inf for pod in asking.pods)


def _words(asking: Asking, look: _Look, load: int) -> str:
    able, words = asking.able, []
    if look.arrivals is not None and able.rate is not None:
        rate = f"arrivals {_short(look.arrivals.rate)}/s"
        ahead = _short(look.expected or 0.0)
        if look.expected is not None and ahead != _short(look.arrivals.rate):
            rate += f", rising to {ahead}/s in {_short(asking.lead)}s,"
        words.append(f"{rate} / ({BUSY:g} x {_short(able.rate)}/s) = {_whole(look.by_rate)}")
    by_load = f"load {load} / {_short(able.load)} = {_whole(load / able.load)}"
    enough = _whole(look.by_load)
    if look.arrivals is not None and enough < _whole(load / able.load):
        by_load += f", but {enough} can clear it within {_short(asking.stable_window)}s"
    words.append(by_load + (f", {asking.held} of it held by routers" if asking.held else ""))
    return "; ".join(words)


def _terms(asking: Asking, look: _Look) -> dict[str, Any]:
    able = asking.able
    terms: dict[str, Any] = {"by_load": _whole(look.by_load), "batch_size": able.batch_size}
    if able.seconds is not None:
        terms["batch_ms"] = math.ceil(1000 * able.seconds)
    if look.arrivals is not None:
        rate = look.arrivals.rate
        terms |= {"arrivals_per_minute": round(60 * rate), "by_rate": _whole(look.by_rate)}
        terms["expected_per_minute"] = round(60 * (look.expected or rate))
    return terms


def _short(number: float) -> str:
    return f"{number:.3g}" if number < 1000 else f"{number:.0f}"


def _whole(replicas: float) -> int:
    return min(math.ceil(replicas - 1e-9), _MOST)


def _refused(pods: Sequence[PodLoad], *, since: float) -> int:
    """Count the items refused for a full queue since then, and since the youngest pod's first report."""
    since = max([since, *(pod.samples[0].at for pod in pods if pod.samples)])
    return sum(sample.refused for pod in pods for sample in pod.samples if sample.at > since)


def _average_load(asking: Asking, unknown: float, *, window: float, now: float) -> float:
    """Return the load of pods and routers, averaged over the part of the window that has samples.

    Each sample holds until the next. The last one of an existing pod holds until now, or until a stable
    window has passed: from then on the pod counts as `unknown`, like a ready pod that has never reported. A
    router's samples count as long as they are in the window.
    """
    pods, holds, stable = asking.pods, asking.holds, asking.stable_window
    senders: list[PodLoad | RouterHolds] = [*pods, *holds]
    first = [sender.samples[0].at for sender in senders if sender.samples]
    start = max(now - window, min(first, default=now))
    total = 0.0
    for pod in pods:
        if not pod.samples:
            total += unknown if pod.was_ready and not pod.left else 0
            continue
        last = pod.samples[-1]
        if not pod.left and now - last.at > max(stable, silent_after(last.every)):
            total += unknown
        else:
            total += _average(pod, start=start, now=now)
    return total + sum(_average(router, start=start, now=now) for router in holds if router.samples)


def _average(sender: PodLoad | RouterHolds, *, start: float, now: float) -> float:
    """Return the average load of one sender with samples."""
    samples = sender.samples
    if now <= start:
        return 0.0 if sender.left else samples[-1].load
    samples = samples[max(bisect_right(samples, start, key=AT) - 1, 0) :]  # the first one holds at `start`
    ends = [sample.at for sample in samples[1:]] + [samples[-1].at if sender.left else now]
    area = sum(
        sample.load * max(end - max(sample.at, start), 0.0) for sample, end in zip(samples, ends, strict=True)
    )
    return area / (now - start)
