"""How a router counts gRPC calls that pass to the model as they are: by the status that ends them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock_router.series import Series
from penstock_wire.headers import Headers
from penstock_wire.http import (
    ConnectionLost,
    GiveUp,
    Opened,
    Request,
    Response,
    UpstreamError,
    UpstreamTimeout,
)
from penstock_wire.http.client.answer import Answer, Body
from penstock_wire.http.messages import Trailers
from penstock_wire.http2.rest_upstream import Ended
from tests.support.worlds.router_world import World


class Model:
    """An `Upstream` that answers each call with 200; its status comes with the head, behind it, or later."""

    def __init__(self, *, streams: bool, head: Headers = (), trailers: Headers = ()) -> None:
        self.streams = streams
        self.head = head
        self.trailers = Trailers(trailers if not streams else ())
        self.body = Body(Ended())

    def begin(self, *arguments: Any) -> GiveUp:
        """See `Upstream.begin`."""
        request: Request = arguments[2]
        opened: Opened = arguments[6]
        answer = Answer(200, self.head, None, self.body) if self.streams else Response(200, self.head, b"m")
        answer.trailers = self.trailers if request.trailers else None
        asyncio.get_running_loop().call_soon(opened, answer)
        return lambda: None


async def counted(
    model: Model, *, broken: Exception | None = None, code: bytes = b"", fields: Headers = ()
) -> Series:
    """The numbers of one call, with the trailers of a stream behind its messages."""
    world = World("10.0.0.1", network=model)
    request = Request("POST", "/echo.Echo/Call", ((b"content-type", b"application/grpc"), *fields), b"m")
    request.trailers = True
    answer = await world.send(request)
    assert answer.status == 200
    series = world.state.series("b")
    if model.streams:
        assert not sum(series.totals(0).seconds)
        model.body.feed(b"m")
        model.trailers.fields = ((b"grpc-status", code),) if code else ()
        model.body.fail(broken) if broken else model.body.finish()
        assert answer.stream is not None
        try:
            assert [piece async for piece in answer.stream] == [b"m"]
        except UpstreamError:
            assert broken
    assert sum(series.totals(0).seconds) == 1
    return series


@pytest.mark.parametrize("where", ["head", "trailers", "stream"])
@pytest.mark.parametrize(
    ("code", "status", "errors"),
    [
        (0, "200", 0), (1, "499", 0), (2, "500", 1), (3, "400", 0), (4, "504", 1), (5, "404", 0),
        (8, "429", 0), (12, "501", 0), (13, "500", 1), (14, "503", 1), (15, "500", 1),
    ],
)  # fmt: skip
async def test_a_call_counts_by_the_status_it_ends_with(
    where: str, code: int, status: str, errors: int
) -> None:
    """As an answer over HTTP of the same meaning; so do releases judge it, where its head had 200.

    But a method that a model does not have is, as a path over HTTP, its client's choice.
    """
    said = b"%d" % code
    fields = {where: ((b"grpc-status", said),)} if where != "stream" else {}
    series = await counted(Model(streams=where == "stream", **fields), code=said)
    totals = series.totals(0)
    assert (totals.codes, totals.errors, series.calls) == ({status: 1}, errors, {code: 1})
    assert totals.reasons == ({"model_answer": 1} if int(status) >= 500 else {})


async def test_a_stream_that_breaks_off_is_an_error_and_a_request_without_trailers_is_not_read() -> None:
    """Its client gets UNAVAILABLE; whoever sends the status of gRPC over HTTP is counted by HTTP's."""
    series = await counted(Model(streams=True), broken=ConnectionLost("gone"))
    assert (series.totals(0).codes, series.totals(0).errors, series.calls) == ({"502": 1}, 1, {})
    assert series.cuts == {"model_unreachable": 1}
    world = World("10.0.0.1", network=Model(streams=False, head=((b"grpc-status", b"13"),)))
    await world.ask()
    assert world.state.series("b").totals(0).codes == {"200": 1}


@pytest.mark.parametrize("timeout", [b"100", None])
@pytest.mark.parametrize("where", ["head", "trailers", "stream", "broken"])
async def test_a_deadline_of_the_client_is_no_evidence(where: str, timeout: bytes | None) -> None:
    """Whoever found it out: the model, which has `grpc-timeout`, or the router; the endpoint's own is."""
    fields = () if timeout is None else ((b"x-penstock-timeout-ms", timeout),)
    streams = where in ("stream", "broken")
    told = {} if streams else {where: ((b"grpc-status", b"4"),)}
    broken = UpstreamTimeout("late") if where == "broken" else None
    series = await counted(Model(streams=streams, **told), broken=broken, code=b"4", fields=fields)
    totals = series.totals(0)
    assert (totals.codes, totals.errors) == ({"504": 1}, 0 if timeout else 1)


async def test_a_stream_that_the_endpoint_s_time_cuts_is_an_error() -> None:
    """It ends as if its client had left, which is none."""
    model = Model(streams=True)
    world = World("10.0.0.1", network=model)
    world.state.total = 0.2
    request = Request("POST", "/echo.Echo/Call", ((b"content-type", b"application/grpc"),), b"m")
    request.trailers = True
    answer = await world.send(request)
    assert answer.stream is not None
    with pytest.raises((UpstreamTimeout, asyncio.CancelledError)):
        await anext(aiter(answer.stream))
    del answer
    totals = world.state.series("b").totals(0)
    assert (totals.codes, totals.errors) == ({"504": 1}, 1)


@pytest.mark.parametrize("streams", [True, False])
async def test_a_call_that_ends_without_a_status_counts_as_its_client_reads_it(streams: bool) -> None:
    """As UNKNOWN."""
    series = await counted(Model(streams=streams))
    assert (series.totals(0).codes, series.totals(0).errors, series.calls) == ({"500": 1}, 1, {2: 1})
