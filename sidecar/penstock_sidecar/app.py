"""One sidecar process: its parts wired together, started, and ended."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any, cast

from msgspec import UNSET

from penstock_sidecar.access_log import logged
from penstock_sidecar.admin import Admin
from penstock_sidecar.admission.controller import MAX_QUEUED_BYTES
from penstock_sidecar.batching.dispatcher import Dispatcher
from penstock_sidecar.batching.streaming import StreamedSends
from penstock_sidecar.config import Config
from penstock_sidecar.drain import Drain, refusal
from penstock_sidecar.handler import SidecarHandler
from penstock_sidecar.interfaces import RequestPath
from penstock_sidecar.known_routers import KnownRouters
from penstock_sidecar.metrics import Metrics, fits_of_most_batches
from penstock_sidecar.model import health
from penstock_sidecar.model.artifact_check import ArtifactCheck
from penstock_sidecar.model.client import Model
from penstock_sidecar.model.readiness import Readiness
from penstock_sidecar.model.reconfigure import Reconfigure
from penstock_sidecar.model.restart_detector import ListenerIdentity
from penstock_sidecar.model.warmup import Warmup
from penstock_sidecar.passthrough.passthrough import NONE, STREAM_BYTES, Passthrough
from penstock_sidecar.path_guard import Guard
from penstock_sidecar.protocols import PROTOCOLS
from penstock_sidecar.protocols.instances import INSTANCES_PROTOCOL, Instances
from penstock_sidecar.protocols.v2 import V2_PROTOCOL
from penstock_sidecar.tracing import Tracing
from penstock_wire import contract, process
from penstock_wire.access_log import AccessLog
from penstock_wire.build import BUILD
from penstock_wire.closed_paths import ClosedPaths
from penstock_wire.control import report
from penstock_wire.control import settings as wire_settings
from penstock_wire.control.artifact import ArtifactAdvice
from penstock_wire.control.processor_wait import ProcessorWait
from penstock_wire.control.reporter import Reporter
from penstock_wire.control.settings import Settings
from penstock_wire.control.settings_source import SettingsSource
from penstock_wire.exact_timer import ExactTimer
from penstock_wire.headers import BATCH_LIMIT, Headers
from penstock_wire.hop.frames import PROTOCOL
from penstock_wire.hop.successor import HopSuccessor
from penstock_wire.http import Listener, Service, Streams, Upstream
from penstock_wire.http.client.pool import H1Upstream
from penstock_wire.http.server.limits import MAX_BODY_BYTES
from penstock_wire.http.server.server import H1Front
from penstock_wire.http2.connection import H2Connection
from penstock_wire.http2.rest_upstream import RestUpstream
from penstock_wire.http2.upstream import H2Upstream
from penstock_wire.memory_limit import bound
from penstock_wire.process import log
from penstock_wire.tracing import started

SHARE = 4
"""One part in this many of what all connections may keep is the most for one body, and for the queue's items:
a body is kept beside its items, and these beside the batch that is made of them."""
LONGEST_TURN = 10.0
"""Seconds that a turn of the event loop may last before `/livez` fails.

A process that hangs answers no probe. So `/livez` fails for as long again after the turn has ended: the
probes that came meanwhile, and the next one, get the reason.
"""
HEARTBEAT = 1.0
IDLE_SECONDS = 1.0
MAX_PATH = 256
"""Maximum characters of a service curve's path in a report: clients choose it, and a report is bounded."""
ADVICE_SECONDS = 2.0
"""How long a pod's first step waits for the operator's answer to a report."""
CLOSE_SECONDS = 5.0
CLOSE_NOW_SECONDS = 0.5
"""Seconds for answers to be sent: at a regular end (`CLOSE_SECONDS`), and after a second signal."""


class Sidecar:
    """All parts of one process; made inside the running loop.

    Args:
        config: the command line.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        memory = bound(config.memory_limit)
        self._metrics = Metrics(memory)
        self._max_body_bytes = min(MAX_BODY_BYTES, memory.most // SHARE)
        self._max_queued_bytes = min(MAX_QUEUED_BYTES, memory.most // SHARE)
        self._data = H1Front(max_body_bytes=self._max_body_bytes, memory=memory, http2=H2Connection)
        self._admin = H1Front(max_body_bytes=64 * 1024, memory=memory)
        self._upstream = H1Upstream(memory=memory)
        self._calls = H2Upstream(memory)
        self._routers = KnownRouters()
        self._listener_identity = ListenerIdentity(*config.model)
        ready_path, upstream = config.ready_path, cast("Upstream", self._upstream)
        if config.model_grpc_port == config.model[1]:  # it speaks gRPC alone
            ready_path = health.PATH
            if config.protocol == V2_PROTOCOL.name:
                ready_path = config.ready_path if config.ready_path.startswith("/v2/") else "/v2/health/ready"
                upstream = RestUpstream(self._calls)
        self._model = Model(
            host=config.model[0],
            port=config.model[1],
            listening=self._listener_identity,
            ready_path=ready_path,
            ready_status=config.ready_status,
            upstream=upstream,
            busy=lambda: self._path.ongoing > 0 or self._readiness.busy,
            unprepared=lambda: self._readiness.unprepared,
            changed=self._model_changed,
            look=self._look,
            probe_fields=self._probe_fields,
            calls=self._calls,
            grpc_port=config.model_grpc_port,
        )
        self._upstream.on_idle_lost = self._model.lost
        self._default = Settings(backend=config.backend)
        self._tracing = self._start_tracing(config)
        self._hops = HopSuccessor(
            lambda: (self._passthrough.free, self._passthrough.queued, self._passthrough.slots)
        )
        self._passthrough = self._make_passing(config)
        self._path: RequestPath = self._passthrough
        self._service: Service = self._passthrough.begin
        self._streams: Streams = self._passthrough.streams
        if config.protocol != NONE:
            memory.others.append(self._batching(config).kept)
        self._metrics.show(self._path, fits=self._path.fits, streams=self._open_streams)
        self._reconfigure = Reconfigure(
            config.reconfigure_path,
            send=self._model.prepare,
            requests=self._path,
            changed=self._report_now,
            settled=config.report_to is None,
            secret=config.reconfigure_secret,
        )
        self._readiness = Readiness(
            reconfigure=self._reconfigure,
            warmup=Warmup(
                config.warmup, timeout=config.warmup_timeout, send=self._model.prepare, clock=time.monotonic
            ),
            changed=self._readiness_changed,
        )
        self._artifact = ArtifactCheck(config.artifact)
        self._drain = Drain(
            requests=self._path,
            connections=self._data,
            propagation_delay=config.propagation_delay,
            timeout=config.drain_timeout,
            changed=self._phase_changed,
            grace=config.grace,
        )
        self._source: SettingsSource[Settings] = SettingsSource(
            path=config.settings,
            # NB: without an operator a person wrote the file.
            decode=lambda data: wire_settings.decode(data, text=True, by_hand=config.report_to is None),
            apply=self._apply,
            reports=config.report_to is not None,
        )
        self._processor_wait = ProcessorWait()
        self._reporter: Reporter | None = None
        if config.report_to is not None:
            self._reporter = Reporter(
                url=config.report_to,
                kind="sidecar",
                token_file=config.token_file,
                authorities=config.report_ca,
                make=self._report,
                on_settings=self._source.offer,
                on_alone=self._source.alone,
                on_routers=self._routers.are,
                on_artifact=self._artifact.answered,
            )
        self._beat = time.monotonic()
        self._hung = (0.0, -math.inf)  # the last turn of more than `LONGEST_TURN`: its seconds, its end
        self._last_arrival = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    @staticmethod
    def _start_tracing(config: Config) -> Tracing | None:
        named = {"service.instance.id": config.pod, "penstock.backend": config.backend}
        return started(lambda processor: Tracing(processor, named), by_name=config.tracing)

    def _make_passing(self, config: Config) -> Passthrough:
        return Passthrough(
            open=self._model.open,
            settings=self._default,
            observer=self._metrics,
            clock=time.monotonic,
            backend=lambda: self.settings.backend or config.backend,
            pod=config.pod,
            first=self._arrived_while_idle,
            on_room=lambda: self._hops.changed(),
            trusts=self._routers.trusts,
            takes_calls=bool(config.model_grpc_port),
        )

    def _batching(self, config: Config) -> Dispatcher:
        """Put the dispatcher before the passthrough; returns it."""
        protocol = PROTOCOLS[config.protocol]
        if protocol is INSTANCES_PROTOCOL:
            protocol = Instances(lambda: self._model.takes_tensors)
        self._hops = hops = HopSuccessor(
            lambda: (dispatcher.free, dispatcher.queue.items, dispatcher.capacity)
        )
        self._path = dispatcher = Dispatcher(
            send=self._model.send,
            begin=self._model.begin,
            cancellable=self._model.is_cancellable,
            exact_timer=ExactTimer,
            protocol=protocol,
            batching=self._default.batching,
            observer=self._metrics,
            clock=time.monotonic,
            unbatched=self._passthrough,
            on_room=hops.changed,
            trace=None if self._tracing is None else self._tracing.send,
            streamed=StreamedSends(open=self._model.open, cut=self._metrics.cut, clock=time.monotonic)
            if protocol.item_streams
            else None,
            max_queued_bytes=self._max_queued_bytes,
        )
        dispatcher.model_changed(loaded=False, gone=False)
        handler = SidecarHandler(
            dispatcher=dispatcher,
            protocol=protocol,
            passthrough=self._passthrough,
            observer=self._metrics,
            clock=time.monotonic,
            backend=lambda: self.settings.backend or config.backend,
            pod=config.pod,
            first=self._arrived_while_idle,
            max_body_bytes=self._max_body_bytes,
            trusts=self._routers.trusts,
            whole=config.model_grpc_port == config.model[1],
        )
        self._service, self._streams = handler.begin, handler.streams
        return dispatcher

    def _probe_fields(self) -> Headers:
        """The fields of each probe."""
        if self._config.protocol == NONE:
            return ()
        return ((BATCH_LIMIT, b"%d" % self.settings.batching.max_batch_size),)

    @property
    def settings(self) -> Settings:
        """The settings in effect."""
        return self._source.current or self._default

    async def run(self) -> int:
        """Serve until a signal ends it; returns the exit code."""
        self._source.read_file()
        if self._source.refused and self._config.report_to is None:
            return 2  # a sidecar without the user's settings would serve, but not as the user asked
        process.on_signal(signal.SIGTERM, self._signalled)
        process.on_signal(signal.SIGINT, self._interrupted)
        process.on_signal(signal.SIGHUP, self._source.reload_now)
        self._spawn("dispatch", self._path.run())
        self._spawn("heartbeat", self._heartbeat())
        self._spawn("settings", self._source.watch())
        self._spawn("model", self._model.watch())
        self._spawn("readiness", self._readiness.run())
        if self._reporter is not None:
            self._spawn("report", self._reporter.run())
        config = self._config
        admin = Admin(
            path=self._path,
            drain=self._drain,
            metrics=self._metrics,
            settings=lambda: self.settings,
            dead=self._dead,
            unready=self._unready,
            drain_secret=config.drain_secret,
            advice=None if config.artifact is None else self._advise,
            debug=config.debug,
        )
        try:
            data_listener = await self._listen()
            self._serve_artifact(config)
            admin_listener = await self._admin.listen(*config.admin, admin)
            process.keep_what_is_here()
            process.ready(data=data_listener.address, admin=admin_listener.address)
            await self._stop.wait()
            return await self._end()
        except OSError as error:
            log("cannot listen", level="error", error=str(error))
            return 1
        finally:
            await self._close()

    def _serve_artifact(self, config: Config) -> None:
        """Serve the files to other pods, where there are any."""
        if config.artifact is not None and self._reporter is not None:
            # Imported late: its server brings 2 MB of memory.
            from penstock_sidecar.model import artifact_port

            folder = config.artifact.parent
            artifact_port.listen(config.admin[0], contract.ARTIFACT_PORT, folder, lambda: self._artifact.turn)

    async def _advise(self) -> ArtifactAdvice:
        """Report at once, so that the operator knows how far the first step is."""
        self._report_now()
        return await self._artifact.advice(ADVICE_SECONDS)

    async def _listen(self) -> Listener:
        service, path = self._service, self._config.reconfigure_path
        if path is not None:
            service = Guard(
                service,
                closed=ClosedPaths([path]),
                observer=self._metrics,
                backend=lambda: self.settings.backend or self._config.backend,
                pod=self._config.pod,
                queued=lambda: self._path.queued,
            ).begin
        if self._tracing is not None:
            service = self._tracing.service(service)
        access = AccessLog(self._config.access_log)
        if access.on:
            service = logged(service, access, time.monotonic)
        return await self._data.serve(
            *self._config.listen,
            service,
            streams=self._streams,
            whole_bytes=STREAM_BYTES,
            successors={PROTOCOL: self._hops},
        )

    async def _end(self) -> int:
        """Drain and end; end at once on a second signal or when the grace is nearly over.

        Returns:
            The exit code: 1 if requests were cut.
        """
        self._drain.begin(final=True)
        if not self._model.ready:
            self._drain.hurry()
        drained = asyncio.create_task(self._drain.drained())
        now = asyncio.create_task(self._stop_now.wait())
        await asyncio.wait(
            {drained, now}, timeout=max(0.0, self._drain.left), return_when=asyncio.FIRST_COMPLETED
        )
        finished = drained.done()
        for task in (drained, now):
            task.cancel()
        left = self._path.queued + self._path.ongoing
        log("shutting down", drained=finished, left=left)
        if not finished:
            self._path.refuse(refusal())
            self._path.refuse_queued(refusal())
            await self._path.abort()
        # A client that reads slowly gets the time that is left; after a second signal none is left.
        await self._data.close(
            max(CLOSE_NOW_SECONDS, min(CLOSE_SECONDS, self._drain.left)) if finished else CLOSE_NOW_SECONDS
        )
        return 0 if finished or not left else 1

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._data.close(0.0)
        await self._admin.close(0.0)
        await self._upstream.close()
        await self._calls.close()
        self._listener_identity.close()
        if self._tracing is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._tracing.close)

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=name)

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and task.exception() is not None:
                log("task ended", level="error", task=name, error=repr(task.exception()))

        task.add_done_callback(ended)
        self._tasks.append(task)

    def _signalled(self) -> None:
        if self._stop.is_set():
            self._stop_now.set()
        self._stop.set()

    def _interrupted(self) -> None:
        """Handle Ctrl-C: a sidecar that runs alone need not drain."""
        if self._config.report_to is None:
            self._stop_now.set()
        self._signalled()

    async def _heartbeat(self) -> None:
        while True:
            now = time.monotonic()
            if now - self._beat > LONGEST_TURN:
                # NB: this may run before the probe that came while the process hung is read.
                self._hung = (now - self._beat, now)
                log("a turn of the event loop was long", level="error", seconds=round(now - self._beat, 1))
            self._beat = now
            await asyncio.sleep(HEARTBEAT)

    def _dead(self) -> str:
        for task in self._tasks:
            if task.done():
                return f"task {task.get_name()} has ended"
        now = time.monotonic()
        late = now - self._beat
        if late <= LONGEST_TURN and now - self._hung[1] < LONGEST_TURN:
            late = self._hung[0]
        return f"a turn lasted {late:.0f} s" if late > LONGEST_TURN else ""

    def _unready(self) -> str:
        if self._drain.draining:
            return f"draining: {self._drain.phase.value}"
        if self._state() == "starting":
            return "no settings yet"
        return self._artifact.message or self._model.message or self._readiness.message

    @property
    def _prepared(self) -> bool:
        return self._model.ready and self._readiness.ready and not self._artifact.message

    def _state(self) -> report.State:
        if self._drain.draining:
            return "draining"
        if self._source.current is None and self._config.report_to is not None:
            return "starting"
        return "ready" if self._prepared else "loading"

    def _report(self, sequence: int) -> bytes:
        counts = self._path.counts
        document = report.SidecarReport(
            pod=self._config.pod,
            uid=self._config.pod_uid,
            seq=sequence,
            state=self._state(),
            settings_version=self._source.version,
            settings_digest=self._source.digest,
            items=report.Items(
                queued=self._path.queued,
                ongoing=self._path.ongoing,
                work=UNSET if (work := self._path.work) is None else work,
            ),
            oldest_age_ms=round(self._path.oldest_age * 1000),
            totals=self._metrics.totals(
                batches=counts.batches, batch_items=counts.batch_items, work_beyond=counts.work_beyond
            ),
            message=self._unready()[:300],
            warning=self._metrics.warning,
            fit={path[:MAX_PATH]: fit for path, fit in fits_of_most_batches(self._path.fits())},
            slots=self._path.slots,
            reconfigure=self._reconfigure.result,
            processor_wait=self._processor_wait.share(),
            artifact=self._artifact.state,
        )
        return report.encode(document)

    def _arrived_while_idle(self) -> None:
        # NB: a caller that sends one request after the other finds the sidecar idle each time; only the first
        # arrival after a second of idleness is worth a report.
        now = time.monotonic()
        if now > self._last_arrival + IDLE_SECONDS:
            self._report_now()
        self._last_arrival = now

    def _open_streams(self) -> tuple[int, int]:
        return self._passthrough.open_streams, self._passthrough.open_tunnels

    def _report_now(self) -> None:
        if self._reporter is not None:
            self._reporter.report_now()

    def _apply(self, settings: Settings) -> None:
        self._path.apply(settings)
        self._metrics.warning = ""
        self._reconfigure.want(settings.user_config, settings.version or 0)
        self._readiness.settings_changed()
        self._artifact.demand = settings.artifact
        self._path.model_changed(loaded=self._prepared, gone=self._model.gone)
        self._report_now()

    def _look(self) -> Callable[[Headers], None]:
        """Begin a probe: returns a function that compares its answer with what the model has been given."""
        moment = self._reconfigure.moment

        def looked(headers: Headers) -> None:
            if self._reconfigure.looked(headers, moment):
                self._readiness.settings_changed()

        return looked

    def _model_changed(self) -> None:
        self._readiness.model_changed(ready=self._model.ready, gone=self._model.gone)
        self._path.model_changed(loaded=self._prepared, gone=self._model.gone)
        self._drain.model_changed(ready=self._prepared, gone=self._model.gone)
        if self._stop.is_set() and not self._model.ready:
            self._drain.hurry()
        self._report_now()

    def _readiness_changed(self) -> None:
        self._path.model_changed(loaded=self._prepared, gone=self._model.gone)
        if self._prepared:
            log("ready", build=BUILD)
            self._drain.model_changed(ready=True, gone=False)
        self._report_now()

    def _phase_changed(self) -> None:
        self._model.watch_closely(self._drain.draining)
        if self._model.gone:  # also if it was gone before the drain began: no later event reports that
            self._drain.model_changed(ready=False, gone=True)
        self._report_now()
