"""Reports, which sidecars and routers send to the operator once a second, and the operator's answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from penstock_wire.control import documents
from penstock_wire.control.artifact import ArtifactState, ArtifactTurn
from penstock_wire.errors import DocumentError

State = Literal["starting", "loading", "ready", "draining"]

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
"""A number that every JSON reader represents exactly, and that sums and divides without overflow."""

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Extent = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Measure = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
MOST_WORK = float(2**53 - 1)
Work = Annotated[float, msgspec.Meta(ge=0, le=MOST_WORK)]
"""What items cost, in items of the usual cost."""
Name = Annotated[str, msgspec.Meta(max_length=253)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Code = Annotated[str, msgspec.Meta(max_length=64)]
"""A status or a reason."""

Path = Annotated[str, msgspec.Meta(max_length=256)]
MAX_CAUSE = 256
"""Most characters of a cause in a mirror's report."""
Cause = Annotated[str, msgspec.Meta(max_length=MAX_CAUSE)]
"""Why a mirror's copy got no answer, in words."""

MAX_DIFFERENCES = 5
"""Most differing paths that are kept per mirror."""

MAX_CLASSES = 64
"""Most service curves in one report."""

# NB: without the annotation mypyc makes a new tuple of floats wherever it is used.
FIRST_BYTE_SECONDS: tuple[float, ...] = (
    *(0.001, 0.0015, 0.002, 0.003, 0.005, 0.007),
    *(0.01, 0.015, 0.02, 0.03, 0.05, 0.07),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.7),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.0),
    *(10.0, 15.0, 20.0, 30.0, 60.0, 120.0),
)
"""Upper bounds of the counts in `BackendTotals.seconds`, inclusive; one more count has those beyond them.

Six steps per factor of ten: an answer that takes 200 ms longer falls into another bucket from 20 ms to 0.5 s,
and one that takes 1.7 times as long from 1 ms to 30 s. They never change: writer and reader can differ in
version."""

FIRST_BYTE_BUCKETS = len(FIRST_BYTE_SECONDS) + 1


class Items(msgspec.Struct, frozen=True, kw_only=True):
    """Items now: `queued` wait, `ongoing` are in the model. Their sum is the load.

    Args:
        work: both in items of the usual cost, by what they cost; absent where costs count for nothing.
    """

    queued: Count = 0
    ongoing: Count = 0
    work: Work | msgspec.UnsetType = msgspec.UNSET

    @property
    def load(self) -> float:
        """Queued and ongoing, by what they cost where that is known."""
        return self.queued + self.ongoing if self.work is msgspec.UNSET else self.work


class Totals(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Counts since the process started, so that a lost report loses nothing.

    Args:
        arrived: items of readable requests.
        arrived_work: the same in items of the usual cost; absent where costs never counted.
        answered: items that the model answered.
        refused: items that the sidecar answered with an error, by reason.
        batches: batches sent.
        batch_items: items in those batches.
    """

    arrived: Count = 0
    answered: Count = 0
    refused: Annotated[dict[Code, Count], msgspec.Meta(max_length=64)] = {}
    batches: Count = 0
    batch_items: Count = 0
    arrived_work: Work | msgspec.UnsetType = msgspec.UNSET


def line_through(items: float, level: float, slope: float) -> tuple[float, float]:
    """Return a, b of the line a + b·W through one of its points, with neither below 0.

    Args:
        items: W of the point, > 0.
        level: the line there, ≥ 0.
        slope: b as measured; it counts from 0 to `level / items`.
    """
    b = min(max(slope, 0.0), level / items)
    return level - b * items, b


class ByCost(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a class's batches are where they are cut by cost, on average of those that the curve rests on.

    Args:
        items: items of a batch.
        cost: sum of their costs.
        error: median error of a batch's time by the work, as a share of the time.
        error_by_items: the same by the number of items alone.
        cap: the largest cost of an item that counts; absent if all do.
        limit: the most work of a batch, where larger ones take longer for their work; absent if they do not.
    """

    items: Extent
    cost: Work
    error: Extent
    error_by_items: Extent
    cap: Work | msgspec.UnsetType = msgspec.UNSET
    limit: Work | msgspec.UnsetType = msgspec.UNSET


class Fit(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A service curve L(W) = a + b·W of one class of requests.

    Both numbers can be negative by chance.

    Args:
        a_ms: milliseconds that a batch of any size takes.
        b_ms: milliseconds that each item adds.
        n: number of batches that the curve was fitted to.
        items: mean number of items in these batches; None in reports of sidecars that do not count it.
        spread: standard deviation of the number of items in them; None as before. A curve from batches of
            nearly one size says little of b.
        work: work of a batch by terms, in items of the usual cost: `item` (of each item), `cost` (of each
            unit of their costs), `padded` and `square` (of the padded costs); absent where W is the number of
            items.
        batch: what batches are there; absent as `work` is.
    """

    a_ms: Measure
    b_ms: Measure
    n: Count
    items: Extent | None = None
    spread: Extent | None = None
    work: Annotated[dict[str, Extent], msgspec.Meta(max_length=8)] | msgspec.UnsetType = msgspec.UNSET
    batch: ByCost | msgspec.UnsetType = msgspec.UNSET

    def bounded(self) -> tuple[float, float]:
        """Both numbers without negative parts; at `items`, where it was measured, the curve stays."""
        if not self.items:
            return max(self.a_ms, 0.0), max(self.b_ms, 0.0)
        return line_through(self.items, max(self.a_ms + self.b_ms * self.items, 0.0), self.b_ms)


class Reconfigure(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The outcome of the latest `userConfig`.

    Args:
        version: the settings version that brought it.
        ok: whether the model accepted it.
        message: the model's words if it did not.
    """

    version: Count
    ok: bool
    message: Text = ""


class SidecarReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One report of a sidecar.

    Args:
        pod: name of its pod.
        uid: uid of its pod.
        seq: counts this process's reports.
        state: `starting` (no settings), `loading` (the model does not answer its ready path yet), `ready`,
            `draining`.
        settings_version: version of the operator's settings in effect; 0 for none, or for those of a file.
        settings_digest: their digest (`documents.digest`); empty for none, and from older sidecars.
        items: the queue now.
        oldest_age_ms: how long the oldest queued item has waited.
        totals: since the process started.
        message: why it is not ready, in words.
        warning: what is wrong although it is ready, in words.
        fit: service curves by key class (the path).
        slots: batches that can be in the model at once now.
        reconfigure: outcome of the latest `userConfig`, None if there was none.
        processor_wait: share of the time since the last report in which the serving thread waited for a
            processor (`processor_wait`); None if unknown.
        artifact: how far the model's artifact has come; None without one.
    """

    v: int = documents.VERSION
    pod: Name
    uid: Name
    seq: Count
    state: State
    settings_version: Count = 0
    settings_digest: Name = ""
    items: Items = msgspec.field(default_factory=Items)
    oldest_age_ms: Count = 0
    totals: Totals = msgspec.field(default_factory=Totals)
    message: Text = ""
    warning: Text = ""
    fit: Annotated[dict[str, Fit], msgspec.Meta(max_length=MAX_CLASSES)] = {}
    slots: Count = 1
    reconfigure: Reconfigure | None = None
    processor_wait: Share | None = None
    artifact: ArtifactState | None = None


class BackendTotals(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Requests of one endpoint to one backend, since the router started.

    `errors`, `refused` and `seconds` count the draw alone, so that two backends can be compared: the requests
    that got this backend by weight and chance, each once, when the head of its answer went out or its client
    left. Nothing counts that a client decides: not the requests that match a rule of the backend or have a
    key of their client's, and not a mirror's copies. A request whose client did not allow enough time is not
    an error; it counts as one that took longer than this time. The time in which a client sends a body that
    streams does not count, nor does a cycle of calls that the client itself states. A request that was sent
    to no pod counts for the backend that was drawn for it. Older routers send none of these three,
    and no `reasons`.

    Args:
        requests: requests whose last try went to this backend.
        codes: of those, by status of the answer.
        retries: tries on another pod.
        held: those of its requests that wait in the router now.
        errors: in the draw, answers with a status of 500 or above, and refusals with 429.
        refused: of these, those that the router or a sidecar gave instead of the model, by reason.
        seconds: the draw's requests by the time from arrival to the head of the answer (or until their client
            left), within the bounds of `FIRST_BYTE_SECONDS`; the last count is of those beyond. Empty for
            none; their sum is the number of requests of the draw.
        reasons: of all `requests`, answers as in `errors`, whatever caused them, by reason
            (`MODEL_ANSWER` for the model's own).
    """

    requests: Count = 0
    codes: Annotated[dict[Code, Count], msgspec.Meta(max_length=1000)] = {}
    retries: Count = 0
    held: Count = 0
    errors: Count = 0
    refused: Annotated[dict[Code, Count], msgspec.Meta(max_length=64)] = {}
    seconds: Annotated[tuple[Count, ...], msgspec.Meta(max_length=FIRST_BYTE_BUCKETS)] = ()
    reasons: Annotated[dict[Code, Count], msgspec.Meta(max_length=64)] = {}


class Difference(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The place where a mirror's answer first differed from the answer of the backend that served.

    Args:
        path: the place; `$` for the whole answer.
        kind: the kind of difference, one word.
        expected: what the served answer has there: a type of JSON, a status, or, where settings ask for
            values, a value as JSON.
        found: the same of the mirror's.
        count: comparisons that ended at this path (with any indexes) in this way.
    """

    path: Path
    kind: Code
    expected: Code = ""
    found: Code = ""
    count: Count = 0


class MirrorTotals(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Totals of one mirror's copies of one endpoint's requests, since the router started.

    Args:
        sent: copies that were sent.
        dropped: requests that were drawn and not copied, by reason.
        unanswered: copies that were sent and not answered by the mirror's model, by reason.
        causes: the first of these for each reason, in words.
        codes: copies that were sent and are over, by status of the answer.
        compared: pairs of answers that were compared.
        differing: of those, the pairs that differ, by kind.
        skipped: pairs of answers that were not compared, by reason.
        answered: copies that the mirror's model answered.
        seconds: total time of these answers.
        served_seconds: total time of the served answers to the same requests.
        first: the first differing paths.
    """

    sent: Count = 0
    dropped: Annotated[dict[Code, Count], msgspec.Meta(max_length=64)] = {}
    unanswered: Annotated[dict[Code, Count], msgspec.Meta(max_length=64)] = {}
    causes: Annotated[dict[Code, Cause], msgspec.Meta(max_length=128)] = {}
    codes: Annotated[dict[Code, Count], msgspec.Meta(max_length=1000)] = {}
    compared: Count = 0
    differing: Annotated[dict[Code, Count], msgspec.Meta(max_length=64)] = {}
    skipped: Annotated[dict[Code, Count], msgspec.Meta(max_length=64)] = {}
    answered: Count = 0
    seconds: Seconds = 0.0
    served_seconds: Seconds = 0.0
    first: Annotated[tuple[Difference, ...], msgspec.Meta(max_length=MAX_DIFFERENCES)] = ()


class EndpointReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The state of one endpoint in one router.

    Args:
        listening: its port is bound.
        error: why it is not bound; empty if it is.
        held: requests that wait for a ready pod now.
        oldest_held_ms: how long the oldest of them has waited.
        backends: totals by backend name.
        mirrors: totals by the name of a mirror.
    """

    listening: bool = False
    error: Text = ""
    held: Count = 0
    oldest_held_ms: Count = 0
    backends: Annotated[dict[Name, BackendTotals], msgspec.Meta(max_length=1000)] = {}
    mirrors: Annotated[dict[Name, MirrorTotals], msgspec.Meta(max_length=100)] = {}


Endpoints = Annotated[dict[Name, EndpointReport], msgspec.Meta(max_length=20_000)]


class TenantReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a shared router serves for one namespace.

    Args:
        door: the namespace's front door listens.
        endpoints: by name.
    """

    door: bool = False
    endpoints: Endpoints = {}


class RouterReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One report of a router; its other members as in `SidecarReport`.

    Args:
        endpoints: by name; none of a shared router.
        tenants: by namespace, of a shared router.
        changes: it takes settings that are a change of those that it has (`router_settings.changed`).
        base: these are the tenants that have changed since its report of this number, which the operator has
            taken (`ReportAnswer.taken`); 0: these are all.
        door: the front door of the one namespace that this is about listens (`of_tenant`).
    """

    v: int = documents.VERSION
    pod: Name
    uid: Name
    seq: Count
    state: State
    settings_version: Count = 0
    settings_digest: Name = ""
    endpoints: Endpoints = {}
    processor_wait: Share | None = None
    tenants: Annotated[dict[Name, TenantReport], msgspec.Meta(max_length=20_000)] = {}
    changes: bool = False
    base: Count = 0
    door: bool = False

    def of_tenant(self, tenant: TenantReport) -> RouterReport:
        """Return what a shared router's report says of a namespace, as if that had a router of its own.

        It has the version of the settings, and not the digest, which changes with any of the namespaces.
        """
        return msgspec.structs.replace(
            self, endpoints=tenant.endpoints, tenants={}, door=tenant.door, settings_digest=""
        )


class ReportAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=False):
    """The operator's answer to a report.

    Args:
        next_report_ms: time until the next report.
        settings: the settings document as one JSON object, if the reporter has another.
        authorities: certificates that can sign the operator's, PEM, if the reporter has others.
        routers: to a sidecar, the addresses of its namespace's routers; empty if they are not known.
        artifact: to a sidecar whose pod has the files of an artifact, or downloads them.
        taken: to a shared router, the number of its report, if further ones can leave out what has not
            changed since; 0: the next one is to have all.
    """

    v: int = documents.VERSION
    next_report_ms: int = 1000
    settings: msgspec.Raw | None = None
    authorities: str | None = None
    routers: tuple[str, ...] = ()
    artifact: ArtifactTurn | msgspec.UnsetType = msgspec.UNSET
    taken: Count | msgspec.UnsetType = msgspec.UNSET


def decode_sidecar(data: bytes) -> SidecarReport:
    """Decode a sidecar's report (raises DocumentError)."""
    return documents.decode(SidecarReport, data, what="sidecar report")


def decode_router(data: bytes) -> RouterReport:
    """Decode a router's report (raises DocumentError)."""
    return documents.decode(RouterReport, data, what="router report")


class _ReadAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A `ReportAnswer` for decoding: msgspec accepts no object for `Raw | None`, but null for `Raw`."""

    v: int
    next_report_ms: int = 1000
    settings: msgspec.Raw = msgspec.Raw(b"null")
    authorities: str | None = None
    routers: tuple[str, ...] = ()
    artifact: ArtifactTurn | msgspec.UnsetType = msgspec.UNSET
    taken: Count | msgspec.UnsetType = msgspec.UNSET


def decode_answer(data: bytes) -> tuple[ReportAnswer, bytes | None]:
    """Decode the operator's answer (raises DocumentError); also return the bytes of the settings document."""
    try:
        read = msgspec.json.decode(data, type=_ReadAnswer)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DocumentError(f"report answer: {error}") from error
    if read.v != documents.VERSION:
        raise DocumentError(f"report answer: expected v: {documents.VERSION}, found v: {read.v}")
    settings = None if bytes(read.settings) == b"null" else bytes(read.settings)
    answer = ReportAnswer(
        v=read.v,
        next_report_ms=read.next_report_ms,
        settings=None if settings is None else msgspec.Raw(settings),
        authorities=read.authorities,
        routers=read.routers,
        artifact=read.artifact,
        taken=read.taken,
    )
    return answer, settings


def encode(document: Any) -> bytes:
    """Encode a report or an answer as JSON."""
    return msgspec.json.encode(document)
