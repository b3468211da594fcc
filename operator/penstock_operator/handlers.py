"""Watches the cluster with kopf, which is used only as a source of events.

kopf runs in a thread with a loop of its own: when it ends, which it does by design on many API faults, it
cancels every unknown task of its loop, and it takes over the process's signal handlers if it can. In its own
thread it ends alone: our workers and the control server continue, and it is started again. Only `on.event` is
used: it writes nothing to objects and adds no finalizer. Its handlers pass the object on and return; they
cannot fail, since kopf would log and drop the error.

kopf makes a queue, a task and a record for each object that it lists or is shown: half a millisecond's work.
So it gets only what is new (`_News`): its first lists are empty and have the version of ours, so its watches
begin there; later lists, and watches, come without the objects that the store has in the same version.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, NotRequired, Protocol, TypedDict, cast

import aiohttp
import kopf
import msgspec
from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory
from yarl import URL

from penstock_operator import nesting
from penstock_operator.kinds import GROUP, Kind
from penstock_operator.kube.cluster import PAGE, Credentials, Obj
from penstock_operator.kube.pages import Answer, Pages
from penstock_operator.store import reduced
from penstock_wire.words import cut

_BACKOFF = (0.5, 1.0, 2.0, 5.0, 10.0)
LOGIN_BACKOFF = 2.0
"""Seconds until a login that failed is tried again; kopf's own are 60."""
SILENT_SECONDS = 70.0
"""Seconds of silence after which a watch counts as stalled and is opened again from its last version: the
apiserver sends a bookmark every minute."""
ENDING_SECONDS = 15.0
"""Most seconds for kopf to end, once one of its root tasks has; normally it takes some 5 s."""


class Sink(Protocol):
    """Receives the events, in the thread of the loop in which `Watches` was made."""

    def is_stored(self, kind: Kind, obj: Obj) -> bool:
        """Whether this version of an object is known already; called in kopf's thread, with metadata."""

    def put(self, obj: Obj) -> None:
        """Take a version of an object."""

    def remove(self, obj: Obj) -> None:
        """Take the deletion of an object."""


class _NoDiffs(kopf.DiffBaseStorage):
    """Storage without the copies with which kopf compares objects.

    kopf makes up to five deep copies of every object of every event, to find changes for handlers that ask
    for them. We have no such handlers; the copies took four fifths of its thread's CPU time.
    """

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        pass


class _NoMemories(ResourceMemories):
    """kopf's records of objects, 1 KB each, where handlers can leave notes; ours do not, so none is kept."""

    async def recall(self, raw_body: Any, **more: Any) -> ResourceMemory:
        return await super().recall(raw_body, **{**more, "ephemeral": True})


class Watches:
    """Watches parents and children until stopped.

    Args:
        credentials: returns the credentials; called again when they are refused.
        kinds: what is watched, each with its label selector or None.
        listed: the versions of lists that the sink has, by their kinds: a kind's first watch begins there.
        started: called, in our loop, at each start of the watches.
        relists: called, in our loop, when kopf lists a kind, to look for objects that were deleted while
            there was no watch: kopf does not show these.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        credentials: Callable[[], Awaitable[Credentials]],
        started: Callable[[], None] = lambda: None,
        relists: Callable[[], None] = lambda: None,
        kinds: Mapping[Kind, str | None],
        listed: Mapping[Kind, str] | None = None,
        namespace: str | None,
        log: Callable[..., None],
    ) -> None:
        self._sink = sink
        self._credentials = credentials
        self._started = started
        self._relists = relists
        self._kinds = kinds
        self._listed = dict(listed or {})
        self._namespace = namespace
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._inner: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._sessions: list[aiohttp.ClientSession] = []

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start to watch."""
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)
        self._thread.start()

    async def stop(self, timeout: float = 5.0) -> None:
        """Stop to watch.

        Args:
            timeout: seconds to wait for the thread; it is a daemon and does not hold the process.
        """
        self._stop.set()
        if self._inner is not None:
            loop, flag = self._inner
            with contextlib.suppress(RuntimeError):  # its loop is closed already
                loop.call_soon_threadsafe(flag.set)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, timeout)

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            began = self._now()
            try:
                self._run_loop()
                self._log("watches ended")
            except (Exception, asyncio.CancelledError) as error:  # it is started again after any error
                self._log("watches ended", level="warning", error=f"{type(error).__name__}: {error}")
            failures = 0 if self._now() - began > 60 else failures + 1
            self._stop.wait(_BACKOFF[min(failures, len(_BACKOFF) - 1)])

    def _run_loop(self) -> None:
        """Do as `asyncio.run`, which would wait for ever for a task that ignores its cancellation."""
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._watch())
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            with contextlib.suppress(TimeoutError):  # tasks that do not end are left behind
                if left:
                    loop.run_until_complete(asyncio.wait(left, timeout=ENDING_SECONDS / 3))
                loop.run_until_complete(asyncio.wait_for(self._close_sessions(), ENDING_SECONDS / 3))
                loop.run_until_complete(asyncio.wait_for(loop.shutdown_asyncgens(), ENDING_SECONDS / 3))
            loop.close()

    async def _close_sessions(self) -> None:
        while self._sessions:  # those that kopf has used are closed already
            await self._sessions.pop().close()

    async def _watch(self) -> None:
        stop = asyncio.Event()
        self._inner = (asyncio.get_running_loop(), stop)
        if self._stop.is_set():
            return
        where: dict[str, Any] = (
            {"namespaces": [self._namespace]} if self._namespace else {"clusterwide": True}
        )
        self._hand(self._started)
        before = asyncio.all_tasks()
        roots = await kopf.spawn_tasks(
            registry=self._registry(), settings=self._settings(), memories=_NoMemories(), standalone=True,
            stop_flag=stop, **where,
        )  # fmt: skip
        whole = asyncio.create_task(kopf.run_tasks(roots, ignored=before))
        # NB: kopf begins to end when one of its root tasks has. If a request of another task then logs in
        # again, it waits for ever for a login that has ended: the watches would silently be lost.
        await asyncio.wait(roots, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({whole}, timeout=ENDING_SECONDS)
        if not whole.done():
            raise TimeoutError(f"kopf did not end within {ENDING_SECONDS:.0f} s; it is left behind")
        await whole

    def _settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.persistence.diffbase_storage = _NoDiffs()
        settings.peering.standalone = True
        settings.scanning.disabled = True
        # NB: no worker_limit: a slot is held for the whole idle timeout. So is the object, hence a short one.
        settings.queueing.idle_timeout = 0.1
        # NB: without it kopf holds every whole list in memory at once, as text and parsed.
        settings.watching.chunk_size = PAGE
        settings.watching.inactivity_timeout = SILENT_SECONDS
        selectors = settings.watching.label_selectors
        for kind, selector in self._kinds.items():
            if selector is not None:
                selectors[kind.group, kind.version, kind.plural] = selector
        return settings

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        # NB: a login with refused credentials must return the same object, so that kopf detects the refusal.
        logins: dict[Credentials, kopf.AiohttpSession] = {}

        @kopf.on.login(registry=registry, backoff=LOGIN_BACKOFF)
        async def login(**_kwargs: Any) -> kopf.AiohttpSession:
            credentials = await self._credentials()
            if credentials not in logins:
                logins[credentials] = self._session(credentials)
                self._sessions.append(logins[credentials].aiohttp_session)
            return logins[credentials]

        for kind in self._kinds:
            self._listen(registry, kind)
        return registry

    def _listen(self, registry: kopf.OperatorRegistry, kind: Kind) -> None:
        @kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=kind.plural)
        async def on_event(event: Any, **_: Any) -> None:
            obj: Obj = {"apiVersion": kind.api_version, **event["object"], "kind": kind.kind}
            if event["type"] == "DELETED":
                self._hand(self._sink.remove, obj)
            else:
                # NB: before it waits for our loop, which can be busy for long.
                self._hand(self._sink.put, reduced(obj))

    def _session(self, credentials: Credentials) -> kopf.AiohttpSession:
        """Make a session from credentials as kopf does, but with bounded answers that have only news."""
        scheme, _, token = credentials.authorization.partition(" ")
        info = kopf.ConnectionInfo(
            server=credentials.server,
            ca_path=credentials.ca_path,
            insecure=credentials.insecure,
            scheme=scheme or None,
            token=token or None,
            certificate_path=credentials.certificate_path,
            private_key_path=credentials.private_key_path,
        )
        root = URL(credentials.server).path.rstrip("/")
        news = _News(
            {root + kind.path(self._namespace): kind for kind in self._kinds},
            listed=self._listed,
            is_stored=self._sink.is_stored,
            relists=lambda: self._hand(self._relists),
        )
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers=info.as_http_headers(),
            response_class=_Answer,
            middlewares=(Pages(), news),
        )
        return kopf.AiohttpSession(server=credentials.server, aiohttp_session=session)

    def _hand(self, act: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(act, *args)
        except RuntimeError:
            self._stop.set()  # our loop is closed: the process ends

    def _now(self) -> float:
        return self._loop.time()


class _News:
    """A middleware of aiohttp's client that leaves out of kopf's lists and watches what the sink has.

    Args:
        kinds: the kinds by the paths of their lists.
        listed: see `Watches`; what was used is taken out.
        relists: called at each list that goes through.
    """

    def __init__(
        self,
        kinds: Mapping[str, Kind],
        *,
        listed: dict[Kind, str],
        is_stored: Callable[[Kind, Obj], bool],
        relists: Callable[[], None],
    ) -> None:
        self._kinds = kinds
        self._listed = listed
        self._is_stored = is_stored
        self._relists = relists

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Carry out a request."""
        kind = self._kinds.get(request.url.path)
        if kind is None:
            return await handler(request)
        query = request.url.query
        is_new = partial(_is_new, kind, self._is_stored)
        version = "" if "watch" in query else self._listed.get(kind, "")
        if version:
            request.url = request.url.update_query(limit=1)
        answer = cast("_Answer", await handler(request))
        if answer.status != 200:
            return answer
        if "watch" in query:
            # NB: values of Kubernetes' own types are never deep, and the check costs 0.2 ms an event.
            cut = nesting.cut if kind.group == GROUP else bytes
            lines = _Lines(answer.content, lambda line: _event(cut(line), is_new))
            answer.content = cast("aiohttp.StreamReader", lines)
        elif version:
            self._listed.pop(kind, None)
            answer.instead = version
        else:
            answer.is_new = is_new
            if "continue" not in query:
                self._relists()
        return answer


class _Answer(Answer):
    """An answer of the apiserver, whole or a watch: cut to what a parser can read, and to what is kept.

    kopf parses both by itself, and a RecursionError there would end all watches, again after each start. It
    holds what it has parsed until the garbage collector runs, which counts objects, not bytes.

    Attributes:
        instead: if not empty, kopf gets an empty list of this version.
        is_new: which objects of a list remain.
    """

    instead = ""
    is_new: Callable[[Obj], bool] | None = None

    async def json(self, **more: Any) -> Any:
        if self.instead:
            return {"items": [], "metadata": {"resourceVersion": self.instead}}
        answer = await super().json(**{"loads": _loads, **more})
        if self.is_new is not None:
            answer["items"] = [item for item in answer.get("items") or () if self.is_new(item)]
        return answer


def _loads(text: str) -> Any:
    answer = nesting.decode(text.encode())
    if len(text) > nesting.LONG and isinstance(answer.get("items"), list):
        kind = {"kind": answer["kind"].removesuffix("List"), "apiVersion": answer.get("apiVersion")}
        answer["items"] = [reduced({**kind, **item}) for item in answer["items"]]
    return answer


def _is_new(kind: Kind, is_stored: Callable[[Kind, Obj], bool], obj: Obj) -> bool:
    return not is_stored(kind, obj)


class _Metadata(TypedDict):
    namespace: NotRequired[str]
    name: str
    uid: str
    resourceVersion: str


class _Object(TypedDict):
    metadata: _Metadata


class _Head(TypedDict):
    type: str
    object: _Object


_read_head = msgspec.json.Decoder(_Head).decode


def _event(line: bytes, is_new: Callable[[Obj], bool]) -> bytes:
    """Return a line of a watch; if it is long, with what is kept of its object.

    Instead of an event that is not new, return a bookmark of its version, which kopf passes on to nobody.
    """
    try:
        head = _read_head(line)
    except msgspec.MsgspecError:
        return line  # a part of a line, or not of an object
    if head["type"] in ("ADDED", "MODIFIED") and not is_new(cast("Obj", head["object"])):
        version = head["object"]["metadata"]["resourceVersion"]
        return msgspec.json.encode({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": version}}})
    if len(line) <= nesting.LONG:
        return line
    event = nesting.decode(line)
    if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
        event["object"] = reduced(event["object"])
    return msgspec.json.encode(event)


class _Lines:
    """A `StreamReader` with other lines, if it is read in chunks, as a watch is.

    Args:
        content: the one that is read.
        read: returns what is read instead of a line.
    """

    def __init__(self, content: aiohttp.StreamReader, read: Callable[[bytes], bytes]) -> None:
        self._content = content
        self._read = read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        begun: list[bytes] = []
        async for piece in self._content.iter_chunked(size):
            whole, newline, rest = piece.rpartition(b"\n")
            if newline:
                lines = b"".join([*begun, whole]).split(b"\n")
                yield b"".join([self._read(line) + newline for line in lines])
                begun.clear()
            begun.append(rest)
        yield self._read(b"".join(begun))


class KopfLog(logging.Handler):
    """Carries kopf's log lines into ours."""

    def __init__(self, log: Callable[..., None]) -> None:
        super().__init__(level=logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        if record.getMessage().startswith("OS signals are ignored"):
            return  # as it should be: they are the main thread's
        level = "error" if record.levelno >= logging.ERROR else "warning"
        self._log("library log", level=level, logger=record.name, text=cut(record.getMessage(), 2000))
