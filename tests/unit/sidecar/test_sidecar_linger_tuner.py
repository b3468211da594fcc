"""Whether part-full batches wait: found out by the rate of all callers, and looked at again in time."""

from __future__ import annotations

import random

from penstock_sidecar.estimators.linger_tuner import LingerTuner


def lone_caller(
    linger_tuner: LingerTuner, seconds: float, *, wait: float, now: float = 0.0
) -> tuple[float, int]:
    """One caller who asks again as soon as it is answered, 1 ms a batch; the time then, and batches."""
    end, batches = now + seconds, 0
    while now < end:
        if linger_tuner.waits:
            linger_tuner.held(now)
            now += wait
        linger_tuner.cut(now, 1)
        batches += 1
        now += 0.001
    return now, batches


def many_callers(
    linger_tuner: LingerTuner,
    seconds: float,
    *,
    wait: float,
    rate: float = 1000.0,
    now: float = 0.0,
    seed: int = 1,
) -> tuple[float, float]:
    """Arrivals that are independent of each other; the time then, and the share of it that was waited."""
    draw = random.Random(seed)
    begun, held = now, 0.0
    while now - begun < seconds:
        now += draw.expovariate(rate)
        items = 1
        if linger_tuner.waits:
            linger_tuner.held(now)
            held += wait
            left = wait
            while (gap := draw.expovariate(rate)) < left:
                left -= gap
                items += 1
            now += wait
        linger_tuner.cut(now, items)
    return now, held / (now - begun)


def test_at_first_it_waits():
    linger_tuner = LingerTuner()
    for number in range(3):
        assert linger_tuner.waits
        linger_tuner.cut(number * 0.01, 1)


def test_a_lone_caller_soon_waits_for_nobody():
    """Within 3 % of the 1000 requests a second that it would have without a wait, once that is found out."""
    for wait in (0.001, 0.005, 0.020):
        linger_tuner = LingerTuner()
        now, _ = lone_caller(linger_tuner, 10 * wait + 0.5, wait=wait)
        assert not linger_tuner.waits
        _, batches = lone_caller(linger_tuner, 20.0, wait=wait, now=now)
        assert batches >= 0.97 * 20_000


def test_independent_callers_wait_nearly_always():
    waited = 0
    for seed in range(10):
        linger_tuner = LingerTuner()
        now, _ = many_callers(linger_tuner, 5.0, wait=0.005, seed=seed)
        _, share = many_callers(linger_tuner, 20.0, wait=0.005, now=now, seed=seed + 100)
        waited += share > 0.6
    assert waited >= 9


def test_it_learns_anew_when_the_callers_change():
    """From a lone caller to many and back, each within seconds: no way is kept for ever."""
    linger_tuner = LingerTuner()
    now, _ = lone_caller(linger_tuner, 5.0, wait=0.005)
    assert not linger_tuner.waits
    now, _ = many_callers(linger_tuner, 60.0, wait=0.005, now=now)
    now, share = many_callers(linger_tuner, 20.0, wait=0.005, now=now, seed=2)
    assert share > 0.5
    now, _ = lone_caller(linger_tuner, 130.0, wait=0.005, now=now)
    _, batches = lone_caller(linger_tuner, 20.0, wait=0.005, now=now)
    assert batches >= 0.95 * 20_000


def test_nothing_is_tried_where_nothing_waits():
    linger_tuner, now = LingerTuner(), 0.0
    for _ in range(100_000):
        now += 0.001
        linger_tuner.cut(now, 32)
        assert linger_tuner.waits


def test_a_pause_of_the_load_says_nothing():
    """What came before it is not compared with what comes after; a trial that it cuts off did not happen."""
    linger_tuner, now = LingerTuner(), 0.0
    for _ in range(200):
        for _ in range(3):
            linger_tuner.held(now)
            now += 0.010
            linger_tuner.cut(now, 1)
        now += 5.0
    assert linger_tuner.waits
