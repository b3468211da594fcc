"""Applies a parent's children that differ, deletes those no longer desired, and collects the problems."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from penstock_operator.desired.labels import SLICE_SERVICE
from penstock_operator.errors import ClusterError, NameTaken, Rejected
from penstock_operator.kinds import ENDPOINT_SLICE, SERVICE, kind_of
from penstock_operator.kube.cluster import Obj
from penstock_operator.reconcile.context import SHOWN_AFTER, Problems, ReconcileContext
from penstock_operator.status import refusal
from penstock_operator.store import Change, ObjectKey, key_of, owner_uids

_TERMINATING = "because it is being terminated"

_OF_ONE_CHILD = frozenset({409, 500})
"""HTTP statuses of failures that can concern one object alone: a conflict, a webhook that does not answer."""

SECONDS_AFTER_PROBLEM = 30.0
"""Seconds until the next try for a child whose name is taken or that is refused: no event will come."""


async def apply_children(
    ctx: ReconcileContext,
    of: ObjectKey,
    desired: Sequence[Obj],
    *,
    owners: Sequence[str],
    candidates: Callable[[], Sequence[Obj]],
    shared: bool = False,
    looked: dict[ObjectKey, Obj | None] | None = None,
    found: dict[ObjectKey, Obj] | None = None,
    confirm: Callable[[], Awaitable[None]],
) -> Problems:
    """Apply what differs and delete what is no longer desired; return what cannot be written.

    An EndpointSlice comes after its Service, and only beside one that is ours: nodes would send a part of
    the requests for a stranger's Service to its addresses.

    Args:
        owners: uids; one of them must own a live object for it to be ours.
        candidates: returns the existing objects of this key; called after the applies.
        found: gets each child that is as desired by now.
        confirm: called once, before the first object is made or gets an owner back (see `parent_check`).

    Raises:
        Outdated: the parent is gone; nothing more was written.
    """
    problems = Problems()
    without_service: set[str] = set()
    left_out: set[ObjectKey] = set()
    sure = False

    async def once() -> None:
        nonlocal sure
        if not sure:
            await confirm()
            sure = True

    def lacking(key: ObjectKey, ours: Obj | None) -> None:
        if key.kind == SERVICE.kind and ours is None:
            without_service.add(key.name)

    for child in desired:
        key = key_of(child)
        if (child["metadata"].get("labels") or {}).get(SLICE_SERVICE) in without_service:
            left_out.add(key)
            continue
        before = ctx.store.get(kind_of(child), key.namespace, key.name)
        try:
            live = await ctx.applier.ensure(child, owners=owners, shared=shared, looked=looked, confirm=once)
        except NameTaken as error:
            problems.taken.append(f"{error.kind}/{error.name}")
            ctx.log("name taken", level="warning", child=str(key), error=str(error))
            lacking(key, None)
        except Rejected as error:
            if error.status == 403 and _TERMINATING in error.message:
                break  # the namespace is being deleted, with everything in it
            _note(ctx, problems, of, key, error)
            lacking(key, before)
        except ClusterError as error:
            _note(ctx, problems, of, key, error)
            if error.status not in _OF_ONE_CHILD:
                return problems  # it is not about this child: spare the apiserver the rest
            lacking(key, before)
        else:
            if found is not None:
                found[key] = live
            # NB: the watch will not report as new what the answer has shown. Other keys depend on a child's
            # status, and on whether a Service exists.
            new = child["kind"] in (SERVICE.kind, ENDPOINT_SLICE.kind)
            matters = new if before is None else _face(before) != _face(live)
            if matters:
                ctx.changed(Change(before, live))
    try:
        await ctx.applier.prune(candidates(), {key_of(child) for child in desired} - left_out)
    except ClusterError as error:
        _note(ctx, problems, of, of, error)
    return problems


def _note(
    ctx: ReconcileContext, problems: Problems, of: ObjectKey, child: ObjectKey, error: ClusterError
) -> None:
    """Keep an error for the conditions and for the next try."""
    if isinstance(error, Rejected):
        ctx.log("child refused", level="warning", child=str(child), error=error.message)
    else:
        problems.failed = problems.failed or error
        if ctx.failures(of) < SHOWN_AFTER:
            return  # most succeed at the next try; a status that flickers does not help
    text = f"{child.kind} {child.name}"
    problems.refused = problems.refused or refusal(text, error.status, error.message)


def requeue_after(problems: Problems) -> float | None:
    """Return the seconds until the next look, if problems call for one.

    Raises:
        ClusterError: a write failed that is to be tried again with backoff.
    """
    if problems.failed is not None:
        raise problems.failed
    return SECONDS_AFTER_PROBLEM if problems.any else None


def _face(child: Obj) -> tuple[object, ...]:
    """Return the parts of a child that other keys depend on."""
    return child.get("status"), child.get("endpoints"), sorted(owner_uids(child))
