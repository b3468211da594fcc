"""Makes the request that is sent to the model for one that passes through."""

from __future__ import annotations

from penstock_sidecar.model.answers import from_model
from penstock_sidecar.queue.batch_key import lone_fields
from penstock_wire.headers import IDLE_MS, Headers, milliseconds
from penstock_wire.http import Exchange, Request
from penstock_wire.http.messages import CONTINUE


def outgoing(exchange: Exchange, request_id: bytes, timeout: float) -> Request:
    """Make the request for the model; the model's interim answers go to the client.

    Args:
        exchange: the client's exchange.
        request_id: the request's id.
        timeout: seconds that the model has for the head of its answer.
    """

    def interim(status: int, headers: Headers) -> None:
        if status != CONTINUE:
            exchange.interim(status, from_model(headers))

    request = exchange.request
    sent = Request(
        request.method,
        request.target,
        lone_fields(request, request_id, timeout),
        request.body,
        stream=request.stream,
        length=request.length,
        upgrade=request.upgrade,
        interim=interim,
    )
    sent.trailers = request.trailers
    return sent


def idle_seconds(request: Request) -> float | None:
    """Maximum seconds that a request's answer may pause; None if the request does not set it."""
    idle = milliseconds(request.headers, IDLE_MS)
    return idle / 1000 if idle is not None and idle > 0 else None
