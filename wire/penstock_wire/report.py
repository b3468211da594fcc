"""Reports: what sidecars and routers tell the operator once a second, and what it answers."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from penstock_wire import documents
from penstock_wire.errors import DocumentError

State = Literal["starting", "loading", "ready", "draining"]


class Items(msgspec.Struct, frozen=True, kw_only=True):
    """Items now: `queued` wait, `ongoing` are with the model. Their sum is the load."""

    queued: int = 0
    ongoing: int = 0


class Totals(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Counts since the process started, so that a lost report loses nothing.

    Args:
        arrived: items of requests that could be read.
        answered: items that got an answer of the model.
        refused: items that got an error of ours, by reason.
        batches: batches sent.
        batch_items: items in those batches.
    """

    arrived: int = 0
    answered: int = 0
    refused: dict[str, int] = {}
    batches: int = 0
    batch_items: int = 0


class Fit(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A service curve L(W) = a + b·W of one class of requests.

    Args:
        a_ms: milliseconds a batch of any size takes.
        b_ms: milliseconds that each item adds.
        n: batches it rests on.
    """

    a_ms: float
    b_ms: float
    n: int


class Reconfigure(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How the model took the latest `userConfig`.

    Args:
        version: the settings version that brought it.
        ok: whether the model took it.
        message: what the model said where it did not.
    """

    version: int
    ok: bool
    message: str = ""


class SidecarReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One report of a sidecar.

    Args:
        pod: name of its pod.
        uid: uid of its pod.
        seq: counts this process's reports.
        state: `starting` (no settings), `loading` (the model does not answer its ready path yet), `ready`,
            `draining`.
        settings_version: version of the settings in effect, 0 for none.
        items: the queue now.
        oldest_age_ms: how long the oldest queued item has waited.
        totals: since the process started.
        message: why it is not ready, for people.
        fit: service curves by key class (the path).
        slots: batches that may be with the model at once now.
        reconfigure: how the latest `userConfig` was taken, None where there was none.
    """

    v: int = documents.VERSION
    pod: str
    uid: str
    seq: int
    state: State
    settings_version: int = 0
    items: Items = msgspec.field(default_factory=Items)
    oldest_age_ms: int = 0
    totals: Totals = msgspec.field(default_factory=Totals)
    message: str = ""
    fit: dict[str, Fit] = {}
    slots: int = 1
    reconfigure: Reconfigure | None = None


class BackendTotals(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Requests of one endpoint to one backend, since the router started.

    Args:
        requests: requests whose last try went to this backend.
        codes: of those, by status of the answer.
        retries: tries on another pod.
    """

    requests: int = 0
    codes: dict[str, int] = {}
    retries: int = 0


class EndpointReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One endpoint in one router.

    Args:
        listening: its port is bound.
        error: why not, where it is not.
        held: requests that wait for a ready pod now.
        oldest_held_ms: how long the oldest of them has waited.
        backends: totals by backend name.
    """

    listening: bool = False
    error: str = ""
    held: int = 0
    oldest_held_ms: int = 0
    backends: dict[str, BackendTotals] = {}


class RouterReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One report of a router; the first five members as in `SidecarReport`."""

    v: int = documents.VERSION
    pod: str
    uid: str
    seq: int
    state: State
    settings_version: int = 0
    endpoints: dict[str, EndpointReport] = {}


class ReportAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=False):
    """What the operator answers.

    Args:
        next_report_ms: when to report again.
        settings: the settings document as one JSON object, where the reporter's version is behind.
        authorities: certificates of those who sign the operator's, PEM, where the reporter knows others.
    """

    v: int = documents.VERSION
    next_report_ms: int = 1000
    settings: msgspec.Raw | None = None
    authorities: str | None = None


def decode_sidecar(data: bytes) -> SidecarReport:
    """Decode a sidecar's report (raises DocumentError)."""
    return documents.decode(SidecarReport, data, what="sidecar report")


def decode_router(data: bytes) -> RouterReport:
    """Decode a router's report (raises DocumentError)."""
    return documents.decode(RouterReport, data, what="router report")


class _ReadAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A `ReportAnswer` as it is read: msgspec takes no object for `Raw | None`, and null for `Raw`."""

    v: int
    next_report_ms: int = 1000
    settings: msgspec.Raw = msgspec.Raw(b"null")
    authorities: str | None = None


def decode_answer(data: bytes) -> tuple[ReportAnswer, bytes | None]:
    """Decode the operator's answer (raises DocumentError); the settings document's bytes stand beside it."""
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
    )
    return answer, settings


def encode(document: Any) -> bytes:
    """The bytes of a report or an answer."""
    return msgspec.json.encode(document)
