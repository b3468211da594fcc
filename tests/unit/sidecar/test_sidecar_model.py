"""When the model counts as ready, on a loop whose time jumps."""

from __future__ import annotations

import asyncio
import errno

import pytest

from penstock_sidecar.model.answers import failure
from penstock_wire.errors import Reason
from penstock_wire.http import (
    AnswerUnreadable,
    ConnectFailed,
    ConnectionLost,
    ConnectTimeout,
    GiveUp,
    Request,
    RequestNotTaken,
    UpstreamError,
    UpstreamTimeout,
)
from tests.support.models.probed_model import Answer, World


async def test_it_is_ready_when_its_path_answers_and_not_before():
    world = World(503)
    await asyncio.sleep(1)
    assert not world.model.ready
    assert world.model.message == "GET /ready: expected status 200 to 399, found 503"
    world.answer = 204
    await asyncio.sleep(0.3)
    assert world.model.ready
    assert world.changes == [True]


@pytest.mark.parametrize(("answer", "ready"), [(404, True), (499, True), (500, False)])
async def test_one_whose_paths_are_not_known_is_ready_once_it_answers(answer: int, ready: bool):
    """Whatever it says, unless that is an error of its own."""
    world = World(answer, ready_status=499)
    await asyncio.sleep(0.1)
    assert world.model.ready == ready


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        (ConnectFailed("refused"), 1.1),
        (500, 3.1),
        (ConnectionLost("cut"), 3.1),
        (UpstreamTimeout("slow"), 9.1),
    ],
)
async def test_a_refused_connection_is_believed_at_once_and_a_bad_answer_the_third_time(
    answer: Answer, seconds: float
):
    world = World()
    await asyncio.sleep(0.1)
    world.answer = answer
    await asyncio.sleep(seconds - 1.2)
    assert world.model.ready
    await asyncio.sleep(1.2)
    assert not world.model.ready
    assert world.model.message.startswith("the model does not listen: ") == (seconds < 3)
    assert world.changes == [True, False]


async def test_one_bad_answer_among_good_ones_changes_nothing():
    world = World()
    for _ in range(5):
        world.answer = 200
        await asyncio.sleep(1.5)
        world.answer = 500
        await asyncio.sleep(1.5)
    assert world.changes == [True]


async def test_a_killed_model_that_is_back_at_once_is_seen_to_have_been_gone():
    """Its end cuts an idle connection, and the probe that follows as well: it still took that connection."""
    world = World()
    await asyncio.sleep(0.1)
    world.answer = ConnectionLost("cut")
    world.model.lost(("h", 1))
    await asyncio.sleep(0.04)
    world.answer = ConnectFailed("refused")
    await asyncio.sleep(0.06)
    world.answer = 200
    await asyncio.sleep(0.4)
    assert world.changes == [True, False, True]


async def test_a_model_that_cuts_its_probes_is_not_probed_in_a_run():
    world = World()
    await asyncio.sleep(0.1)
    world.answer = ConnectionLost("cut")
    probes = world.probes
    await asyncio.sleep(30)
    assert world.probes - probes < 130  # four a second while it is not ready, and a few more


async def test_a_model_that_computes_need_not_answer_its_probe():
    world = World()
    await asyncio.sleep(0.1)
    world.busy, world.answer = True, UpstreamTimeout("slow")
    await asyncio.sleep(60)
    assert world.model.ready
    world.busy = False
    await asyncio.sleep(12)
    assert not world.model.ready


async def test_a_request_that_finds_nobody_is_a_sign_and_many_are_no_run_of_probes():
    world = World()
    await asyncio.sleep(0.1)
    world.answer = ConnectFailed("refused")
    for _ in range(1000):
        with pytest.raises(ConnectFailed):
            await world.model.send(Request("POST", "/p", (), b""), 1.0)
    assert not world.model.ready
    await asyncio.sleep(1)
    assert world.probes < 10


BATCH = Request(method="POST", target="/predict", headers=(), body=b"")


async def test_after_a_lost_connection_nothing_is_sent_until_a_probe_was_refused():
    """A process that was killed takes connections until its end: what follows waits, and is refused."""
    world = World()
    await asyncio.sleep(0.1)
    world.answer = ConnectionLost("cut")
    with pytest.raises(ConnectionLost):
        await world.model.send(BATCH, 10)
    assert world.model.begin(BATCH, 10, lambda _: None) is None
    waiting = asyncio.create_task(world.model.send(BATCH, 10))
    probes = world.probes
    await asyncio.sleep(0.2)
    assert probes < world.probes < probes + 6
    assert (world.batches, waiting.done()) == (1, False)
    world.answer = ConnectFailed("refused")
    with pytest.raises(ConnectFailed):
        await waiting
    assert (world.batches, world.model.gone) == (2, True)


async def test_after_a_lost_connection_a_model_that_answers_a_probe_is_sent_to_again():
    """It ended one connection and is well: what waited goes on as soon as that is known."""
    world = World()
    await asyncio.sleep(0.1)
    world.answer = ConnectionLost("cut")
    with pytest.raises(ConnectionLost):
        await world.model.send(BATCH, 10)
    world.answer = 200
    begun = asyncio.get_running_loop().time()
    assert (await world.model.send(BATCH, 10)).status == 200
    assert asyncio.get_running_loop().time() == begun
    assert world.model.ready


async def test_a_run_of_lost_connections_is_no_run_of_probes():
    """However many requests a model ends its connections upon, it is asked 20 times a second at most."""
    world = World()
    await asyncio.sleep(0.1)
    begun, probes = asyncio.get_running_loop().time(), world.probes
    while asyncio.get_running_loop().time() < begun + 1:
        world.answer = ConnectionLost("cut")
        with pytest.raises(ConnectionLost):
            await world.model.send(BATCH, 10)
        world.answer = 200
        assert (await world.model.send(BATCH, 10)).status == 200
    assert 15 < world.probes - probes < 25


@pytest.mark.parametrize(("probed", "most"), [(ConnectionLost("cut"), 1.0), (UpstreamTimeout("slow"), 10.1)])
async def test_a_model_in_doubt_is_sent_to_again_in_the_end(probed: Answer, most: float):
    """Probes that end as the request did, or time out, say nothing for ever: the next request finds out."""
    world = World()
    await asyncio.sleep(0.1)
    world.answer = ConnectionLost("cut")
    with pytest.raises(ConnectionLost):
        await world.model.send(BATCH, 10)
    world.answer = probed
    begun = asyncio.get_running_loop().time()
    with pytest.raises(type(probed)):
        await world.model.send(BATCH, 10)
    assert asyncio.get_running_loop().time() - begun <= most
    assert world.batches == 2


@pytest.mark.parametrize("error", [AnswerUnreadable("garbage"), UpstreamTimeout("slow")])
async def test_garbage_and_slowness_put_no_model_in_doubt(error: UpstreamError):
    """Whoever says something, or is slow, is not dead."""
    world = World()
    await asyncio.sleep(0.1)
    world.answer = error
    with pytest.raises(type(error)):
        await world.model.send(BATCH, 0.01)
    world.answer, world.seconds = 200, 1.0  # of the probe that it would wait for
    clock = asyncio.get_running_loop().time
    begun = clock()
    assert (await world.model.send(BATCH, 10)).status == 200
    assert clock() < begun + 1.0


async def test_who_waits_for_a_model_in_doubt_waits_no_longer_than_its_time():
    """Its deadline goes on."""
    world = World()
    await asyncio.sleep(0.1)
    world.answer = ConnectionLost("cut")
    with pytest.raises(ConnectionLost):
        await world.model.send(BATCH, 10)
    with pytest.raises(UpstreamTimeout, match="answered no probe within"):
        await world.model.send(BATCH, 0.01)
    assert world.batches == 1


async def test_who_had_no_time_to_connect_says_nothing_of_the_model():
    """A request of a millisecond, in a loop that was late: the model does not pass for one started anew."""
    world = World()
    await asyncio.sleep(0.1)
    world.answer = ConnectTimeout("cannot connect to h:1 within 0.001 s")
    with pytest.raises(ConnectTimeout):
        await world.model.send(BATCH, 0.001)
    assert (world.model.ready, world.model.gone) == (True, False)
    world.answer = 200
    await asyncio.sleep(0.1)
    assert world.changes == [True]


async def test_a_probe_that_was_sent_before_a_connection_was_lost_does_not_vouch_for_the_model():
    """It was answered by the process that has been killed since."""
    world = World()
    await asyncio.sleep(0.9)
    world.seconds = 0.4  # of the probe that goes out at 1 s
    await asyncio.sleep(0.2)
    assert world.probes == 2
    world.answer = ConnectionLost("cut")
    with pytest.raises(ConnectionLost):
        await world.model.send(BATCH, 10)
    world.answer = 200  # what the probe got, whose answer comes now
    await asyncio.sleep(0.21)
    assert (world.probes, world.model.ready) == (2, True)
    world.answer = ConnectFailed("refused")
    assert world.model.begin(BATCH, 10, lambda _: None) is None
    with pytest.raises(ConnectFailed):
        await world.model.send(BATCH, 10)
    assert (world.probes, world.batches, world.model.gone) == (3, 2, True)


@pytest.mark.parametrize(
    "told_by", ["an idle connection", "a probe", "a probe on a kept connection", "a request"]
)
async def test_a_process_that_took_the_others_place_is_another_though_nobody_was_ever_refused(told_by: str):
    """It counts as gone until a probe of the next one is answered; no part of a request reaches it."""
    world = World()
    world.listening.now = 1
    await asyncio.sleep(0.1)
    world.listening.now = 2
    gone = lambda: (world.model.ready, world.model.gone, world.model.message)  # noqa: E731
    probes = world.probes
    if told_by == "a request":
        world.prepares = True
        with pytest.raises(ConnectFailed, match="warm-up"):
            await world.model.send(BATCH, 10)
        assert gone() == (False, True, "the model was restarted")
    else:
        world.kept = told_by == "a probe on a kept connection"
        if told_by == "an idle connection":
            world.model.lost(("h", 1))
        await asyncio.sleep(0.2 if told_by == "an idle connection" else 1.2)
        assert world.changes == [True, False, True]
        assert world.probes <= probes + 3
    await asyncio.sleep(5)
    assert gone() == (True, False, "")
    assert (world.changes, world.batches, world.retired) == ([True, False, True], 0, 1)


async def test_a_request_on_its_way_to_a_process_that_was_replaced_does_not_reach_the_next_unprepared():
    """Another saw it first, while this one was connecting."""
    world = World()
    world.listening.now = 1
    await asyncio.sleep(0.1)

    def restarted() -> None:
        world.listening.now = 2
        world.listening.look()  # the kernel has told another
        world.model._replaced()

    world.prepares = True
    world.on_connect = restarted
    with pytest.raises(ConnectFailed, match="warm-up"):
        await world.model.send(BATCH, 10)
    world.on_connect = lambda: None
    assert world.model.begin(BATCH, 10, lambda _: None) is None
    await asyncio.sleep(5)
    with pytest.raises(ConnectFailed, match="warm-up"):
        await world.model.send(BATCH, 10)
    assert (await world.model.prepare(BATCH, 10)).status == 200
    assert (world.model.ready, world.changes) == (True, [True, False, True])
    world.on_connect = lambda: setattr(world.listening, "now", 3)
    with pytest.raises(ConnectFailed, match="restarted"):
        await world.model.prepare(BATCH, 10)
    assert world.batches == 1


async def test_a_request_cannot_take_the_connection_that_a_probe_made_to_a_process_not_prepared():
    """It is kept as soon as the probe was answered, before the probe's own task goes on."""
    world = World()
    world.listening.now = 1
    await asyncio.sleep(0.5)
    world.prepares, world.listening.now = True, 2
    world.on_answer = lambda: begun.append(world.model.begin(BATCH, 10, lambda _: None))
    begun: list[GiveUp | None] = []
    await asyncio.sleep(1)
    assert begun
    assert set(begun) == {None}


@pytest.mark.parametrize("meanwhile", ["refused", "another is seen", "another takes its place"])
async def test_a_probe_that_the_process_before_has_answered_says_nothing_of_the_next(meanwhile: str):
    """It ends, and still answers what it has."""
    world = World()
    world.listening.now = 1
    await asyncio.sleep(0.5)
    probes = world.probes

    def then() -> None:
        world.on_connect = world.on_answer = lambda: None
        world.listening.now = 0 if meanwhile == "refused" else 2
        if meanwhile == "refused":
            world.model._went_wrong(ConnectFailed("refused"))
        elif meanwhile == "another is seen":
            world.model._connected(lambda: None)

    world.kept = meanwhile != "another takes its place"
    if world.kept:
        world.on_answer = then
    else:
        world.on_connect = then
    world.model.lost(("h", 1))
    await asyncio.sleep(0.001)
    assert (world.probes, world.model.ready, world.model.gone) == (probes + 1, False, True)
    await asyncio.sleep(1)
    assert world.changes == [True, False, True]


@pytest.mark.parametrize("known", [True, False])
async def test_whether_restarts_can_be_known_is_told_once(known: bool, capsys: pytest.CaptureFixture[str]):
    world = World()
    world.listening.now = int(known)
    await asyncio.sleep(10)
    await world.close()
    assert capsys.readouterr().err.count("detected by refused connections only") == (not known)


@pytest.mark.parametrize(
    ("error", "known", "gone"),
    [
        (ConnectTimeout("cannot connect to h:1 within 2 s"), True, False),
        (ConnectTimeout("cannot connect to h:1 within 2 s"), False, True),
        (OSError(errno.EMFILE, "too many open files"), True, False),
        (OSError(errno.EADDRNOTAVAIL, "no port is left"), False, False),
        (OSError("Multiple exceptions: [Errno 111] refused, [Errno 99] no port is left"), True, False),
        (OSError("Multiple exceptions: [Errno 111] refused, [Errno 111] refused"), True, True),
        (OSError(errno.ECONNREFUSED, "refused"), True, True),
        (OSError(errno.EHOSTUNREACH, "unreachable"), False, True),
    ],
    ids=str,
)
async def test_only_a_process_that_is_gone_is_prepared_again(error: Exception, known: bool, gone: bool):
    """A model that accepts no connection for a while is not gone, if the kernel shows it; nor if we fail."""
    world = World()
    world.listening.now = int(known)
    await asyncio.sleep(0.1)
    failed = error
    if isinstance(error, OSError):
        failed = ConnectFailed("cannot connect")
        failed.__cause__ = error
    world.answer = failed
    seen = []
    for _ in range(100):
        await asyncio.sleep(0.1)
        seen.append(world.model.gone)
    assert any(seen) == gone
    assert not world.model.ready
    world.answer = 200
    await asyncio.sleep(1)
    assert world.changes == [True, False, True]


async def test_one_that_takes_no_connection_is_not_ready_however_much_waits_for_one():
    """A model that computes has a kernel that takes connections for it: this one hangs, or has too many."""
    world = World()
    world.listening.now = 1
    await asyncio.sleep(0.1)
    world.busy, world.answer = True, ConnectTimeout("cannot connect to h:1 within 2 s")
    await asyncio.sleep(10)
    assert (world.model.ready, world.model.gone) == (False, False)


async def test_connections_to_a_process_that_refuses_others_are_given_up_once():
    """It ends, and may answer on those it has: its probe would be taken for the next one's."""
    world = World()
    await asyncio.sleep(0.1)
    world.answer = ConnectFailed("refused")
    await asyncio.sleep(10)
    assert (world.model.gone, world.retired) == (True, 1)


@pytest.mark.parametrize(
    ("error", "is_call"),
    [
        (ConnectFailed("refused"), True),
        (ConnectionLost("cut"), True),
        (RequestNotTaken("goodbye"), False),
    ],
)
async def test_a_failed_call_says_nothing_of_the_model_s_other_port(error: UpstreamError, is_call: bool):
    """Nor does a server that ends one call by its own word: requests go on at once."""
    world = World()
    world.model._calls, world.model._grpc_port = world, 2
    await asyncio.sleep(0.1)
    call = Request("POST", "/its.Own/Method", (), b"")
    call.trailers = is_call
    world.answer = error
    with pytest.raises(type(error)):
        await world.model.open(call, 10, 10)
    assert (world.model.ready, world.model.gone) == (True, False)
    world.answer = 200
    assert world.model.begin(BATCH, 10, lambda _: None) is not None


async def test_it_is_ready_only_while_its_second_port_takes_calls_as_well():
    """Whatever is answered there: its ready path says whether it serves."""
    world, calls = World(), World(ConnectFailed("refused"))
    world.model._calls, world.model._grpc_port = calls, 2
    await asyncio.sleep(1)
    assert (world.model.ready, world.model.gone) == (False, False)
    assert world.model.message == "no call can be sent to port 2: refused"
    calls.answer = 404
    await asyncio.sleep(0.5)
    assert world.model.ready
    calls.answer = UpstreamTimeout("slow")
    world.busy = True
    await asyncio.sleep(20)
    assert world.model.ready
    world.busy = False
    await asyncio.sleep(20)
    assert not world.model.ready


def test_a_call_that_a_model_did_not_take_may_go_to_another_pod():
    error = failure(RequestNotTaken("goodbye"), executed=False)
    assert (error.reason, error.not_admitted) == (Reason.MOVED, True)
    assert failure(RequestNotTaken("goodbye"), executed=True).reason == Reason.MODEL_UNREACHABLE
