"""Fair queueing: what a flow got counts, where it fell empty with it, too; so does what it used beyond."""

from __future__ import annotations

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
