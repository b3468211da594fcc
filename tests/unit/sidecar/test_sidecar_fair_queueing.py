"""Fair queueing: what a flow got counts, where it fell empty with it, too; so does what it used beyond."""

from __future__ import annotations

import random

from penstock_sidecar.queue.fair_queueing import MAX_IDLE, Flows


def test_what_a_flow_got_counts_though_its_batch_left_it_empty():
    flows = Flows()
    taken, waiting = flows.enter(b"a"), flows.enter(b"b")
    flows.leave(taken)
    flows.served(taken, 32)
    assert flows.enter(b"a").tag == 32 > waiting.tag


def test_what_a_flow_used_beyond_its_items_counts():
    flows = Flows()
    flows.enter(b"a")
    flows.enter(b"b")
    flows.charge(b"a", 10.0)
    flows.charge(b"c", 5.0)
    assert (flows.enter(b"a").tag, flows.enter(b"c").tag) == (10.0, 5.0)


def test_nobody_makes_up_to_those_who_do_not_wait():
    flows = Flows()
    flows.charge(b"a", 10.0)
    assert flows.enter(b"a").tag == 0.0
    assert len(flows) == 2


def test_charged_flows_are_remembered_within_bounds():
    flows = Flows()
    flows.enter(b"waits")
    for number in range(2 * MAX_IDLE):
        flows.charge(b"%d" % number, 1.0 + number)
    assert len(flows) <= MAX_IDLE + 2


def test_the_flow_that_claims_too_little_is_charged_and_not_those_beside_it():
    """Batches have half of the flows each, by chance; what one adds is learned within some dozens of them."""
    flows, draw = Flows(), random.Random(1)
    names = [b"liar", *(b"honest-%d" % number for number in range(5))]
    for name in (b"waits", *names):
        flows.enter(name)
    for _ in range(300):
        some = draw.sample(names, 3)
        flows.measured(some, (20.0 if b"liar" in some else 0.0) + draw.gauss(0.0, 1.0))
    tags = {name: flows.enter(name).tag for name in names}
    honest = [tags[name] for name in names[1:]]
    assert tags[b"liar"] > 0.8 * 20.0 * 150
    assert max(honest) < 0.1 * tags[b"liar"]


def test_those_beside_a_flow_that_claimed_too_much_do_not_pay_for_it():
    """Whether it did so while nobody waited, or does so beside one that claims too little: that one pays."""
    flows, draw = Flows(), random.Random(1)
    for _ in range(5):
        flows.measured([b"vain"], -3625.0)
    names = [b"vain", b"liar", *(b"honest-%d" % number for number in range(4))]
    for name in (b"waits", *names):
        flows.enter(name)
    for _ in range(50):
        flows.measured([b"vain", b"honest-0"], 0.0)
    assert {flows.enter(name).tag for name in names} == {0.0}
    for _ in range(300):
        some = draw.sample(names, 2)
        added = (20.0 if b"liar" in some else 0.0) - (20.0 if b"vain" in some else 0.0)
        flows.measured(some, added + draw.gauss(0.0, 1.0))
    tags = {name: flows.enter(name).tag for name in names}
    assert tags.pop(b"liar") > 0.5 * 20.0 * 100
    assert max(tags.values()) < 0.1 * 20.0 * 100


def test_what_flows_add_is_remembered_within_bounds():
    flows = Flows()
    for number in range(2 * MAX_IDLE):
        flows.measured([b"%d" % number], 1.0)
    assert len(flows._adds) == MAX_IDLE
