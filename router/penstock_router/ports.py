"""Binds the ports that endpoints listen on, and follows the settings while the router runs.

Sockets belong to ports, not to endpoints: a request on a port goes to the port's present owner, so two
endpoints can swap ports in one change. If a port cannot be bound, only its endpoint fails; this is reported,
and the port is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from penstock_router.messages.request_body import WHOLE_BYTES
from penstock_wire.control.router_settings import Endpoint
from penstock_wire.http import Front, Listener, Request, Service
from penstock_wire.process import NOWHERE, log

RETRY_SECONDS = 1.0


def owners(endpoints: Iterable[Endpoint]) -> tuple[dict[int, str], dict[str, str]]:
    """Owners by port, and errors by endpoint; if two endpoints want the same port, the first gets it."""
    held: dict[int, str] = {}
    errors: dict[str, str] = {}
    for endpoint in endpoints:
        if not endpoint.port:
            continue
        holder = held.setdefault(endpoint.port, endpoint.name)
        if holder != endpoint.name:
            errors[endpoint.name] = f"port {endpoint.port} is taken by endpoint {holder}"
    return held, errors


async def serve(front: Front, host: str, port: int, service: Service) -> Listener:
    """Listen for requests of endpoints; bodies that are not short are streams.

    Raises:
        OSError: the address cannot be bound.
    """
    return await front.serve(host, port, service, streams=_streams, whole_bytes=WHOLE_BYTES)


def _streams(request: Request) -> bool:
    return True


class Ports:
    """Keeps the wanted ports bound.

    Args:
        front: binds them.
        host: the address on which to listen.
        make_service: makes the service that takes the requests of a port.
        settled: called when every wanted port has been tried after a change, and when a port that had failed
            is bound.
        where: fields of each log line.
    """

    def __init__(
        self,
        *,
        front: Front,
        host: str,
        make_service: Callable[[int], Service],
        settled: Callable[[], None],
        where: Mapping[str, str] = NOWHERE,
    ) -> None:
        self._front = front
        self._host = host
        self._make_service = make_service
        self._settled = settled
        self._where = where
        self._wanted: frozenset[int] = frozenset()
        self._leaving: frozenset[int] = frozenset()
        self._sent_away: set[int] = set()
        self._listeners: dict[int, Listener] = {}
        self._errors: dict[int, str] = {}
        self._changed = asyncio.Event()
        self._ends = False
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def bound(self) -> Mapping[int, Listener]:
        return self._listeners

    @property
    def errors(self) -> Mapping[int, str]:
        """Why the other ports are not bound."""
        return self._errors

    @property
    def all_tried(self) -> bool:
        """Whether each wanted port is bound or has failed."""
        return all(port in self._listeners or port in self._errors for port in self._wanted)

    def want(self, ports: Iterable[int], leaving: Iterable[int] = ()) -> None:
        """Set which ports are to be bound; `run` follows.

        Args:
            ports: all wanted ports.
            leaving: those of them at which each answer must close its connection.
        """
        self._wanted = frozenset(ports)
        self._leaving = frozenset(leaving)
        self._changed.set()

    def end(self) -> None:
        """Close all ports; then `run` returns."""
        self._ends = True
        self.want(())

    async def run(self) -> None:
        """Bind and close ports as wanted, until cancelled or until `end`."""
        while True:
            self._changed.clear()
            await self._settle()
            if self._ends:
                await asyncio.gather(*self._closing)
                return
            try:
                async with asyncio.timeout(RETRY_SECONDS if self._errors else None):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _settle(self) -> None:
        for port in [port for port in self._listeners if port not in self._wanted]:
            # Requests in progress on it are answered, however long that takes; the socket is closed at once.
            task = asyncio.create_task(self._close(self._listeners.pop(port)))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
            log("port closed", port=port, **self._where)
        for port in [port for port in self._errors if port not in self._wanted]:
            del self._errors[port]
        self._send_away()
        news = False
        before = len(self._listeners)
        for port in sorted(self._wanted - self._listeners.keys()):
            news = await self._bind(port) or news
        if made := list(self._listeners)[before:]:
            log("ports bound", ports=made, **self._where)
        if news or not self._errors:
            self._settled()

    def _send_away(self) -> None:
        """Make answers close their connections at the leaving ports, and only there."""
        for port in self._sent_away - self._leaving:
            if port in self._listeners:
                self._listeners[port].open_keepalive()
        self._sent_away = {port for port in self._leaving if port in self._listeners}
        for port in self._sent_away:
            self._listeners[port].close_keepalive()

    async def _bind(self, port: int) -> bool:
        """Try to bind a port; returns whether the result is new."""
        try:
            listener = await serve(self._front, self._host, port, self._make_service(port))
        except OSError as error:
            message = f"port {port} cannot be bound: {error.strerror or error}"
            known = self._errors.get(port) == message
            self._errors[port] = message
            if not known:
                why = error.strerror or str(error)
                log("port cannot be bound", level="error", port=port, error=why, **self._where)
            return not known
        self._listeners[port] = listener
        self._errors.pop(port, None)
        return True

    @staticmethod
    async def _close(listener: Listener) -> None:
        await listener.close()
