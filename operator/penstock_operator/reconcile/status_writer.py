"""Writes statuses and Events, only when something changed."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from penstock_operator.clock import rfc3339_micro
from penstock_operator.errors import Conflict, NotFound
from penstock_operator.kinds import EVENT, kind_of
from penstock_operator.kube import events
from penstock_operator.kube.cluster import Obj
from penstock_operator.reconcile import parent_check
from penstock_operator.reconcile.context import ReconcileContext, conditions_of
from penstock_operator.store import key_of
from penstock_wire.words import cut

CONTROLLER = "penstock.dev/operator"

_QUIET = frozenset({"Reconciling", "Progressing"})
"""Conditions whose transitions are not reported: they come with every change, or `release` reports them."""


async def write_status(
    ctx: ReconcileContext,
    stored: Obj,
    status: dict[str, Any],
    *,
    reported: Iterable[tuple[str, str]] = (),
    unchanged: bool = False,
) -> bool:
    """Write the status if it differs from the stored one, and report what changed.

    Args:
        reported: reasons and messages for which the caller sends Events.
        unchanged: whether the apiserver must refuse it if the object has another version by now: for a status
            that follows from the one before.

    Returns:
        Whether it was written.

    Raises:
        Conflict: the object has another version by now, which is in the store.
        ClusterError: the apiserver refused.
        Outdated: the object is gone, or replaced by another of its name.
    """
    if same_status(status, stored.get("status") or {}):
        return False
    key = key_of(stored)
    ctx.memory.status_in_flight[key] = status
    try:
        return await _write(ctx, stored, status, reported, unchanged=unchanged)
    finally:
        del ctx.memory.status_in_flight[key]


async def _write(
    ctx: ReconcileContext,
    stored: Obj,
    status: dict[str, Any],
    reported: Iterable[tuple[str, str]],
    *,
    unchanged: bool,
) -> bool:
    kind, metadata = kind_of(stored), stored["metadata"]
    body: Obj = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        # NB: with the uid, the status of a deleted object never lands in another of its name.
        "metadata": {"namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]},
        "status": status,
    }
    if unchanged:
        body["metadata"]["resourceVersion"] = metadata["resourceVersion"]
    try:
        answer = await ctx.cluster.apply_status(kind, body)
    except (NotFound, Conflict):
        known = ctx.store.get(kind, metadata["namespace"], metadata["name"])
        if known is None or known["metadata"]["uid"] != metadata["uid"]:
            return False  # deleted meanwhile, as the watch has shown
        await parent_check.confirm(ctx, kind, metadata["namespace"], metadata["name"])
        raise  # it is still the same one: look again
    ctx.observer.wrote("status", kind.kind)
    # NB: the answer has whatever a user changed meanwhile; for the watch, that will not be new.
    ctx.memory.status_in_flight[key_of(stored)] = answer.get("status") or {}
    ctx.changed(ctx.store.put(answer))
    underway = any(entry["type"] == "Reconciling" for entry in status.get("conditions") or ())
    shown: set[tuple[str | None, str | None]] = set(reported)
    moved = sorted(transitions(stored, status), key=lambda pair: pair[1]["type"] != "Ready")
    # What has become true together is one Event, that of Ready, with the words of all.
    together = [new for _, new in moved if new["status"] == "True"]
    if not together or together[0]["type"] != "Ready":
        together = []
    for old, new in moved:
        fields = {"key": str(key_of(stored)), "condition": new["type"], "status": new["status"]}
        ctx.log("condition changed", **fields, reason=new.get("reason"), text=new.get("message"))
        # One cause in several conditions makes one Event: that of Ready, if it is among them.
        cause = (new.get("reason"), new.get("message"))
        if not worth_an_event(old, new, underway=underway) or (cause[1] and cause in shown):
            continue
        shown.add(cause)
        if new in together[1:]:
            continue
        if new in together:
            new = new | {"message": "; ".join(filter(None, (each.get("message") for each in together)))}
        await _emit(ctx, stored, new, failing=_failing(new) and not underway)
    return True


def same_status(status: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two statuses are the same, up to the order of keyed lists and sets, and empty objects."""
    return bool(status == other or _unordered(status) == _unordered(other))


def _unordered(value: Any) -> Any:
    """Return the status with keyed lists and sets sorted: the apiserver merges them in its own order."""
    if isinstance(value, dict):
        return {name: _unordered(member) for name, member in value.items() if member != {}}
    if isinstance(value, list):
        members = [_unordered(member) for member in value]
        for key in ("type", "name"):
            if all(isinstance(member, dict) and key in member for member in members):
                return sorted(members, key=lambda member: str(member[key]))
        return sorted(members) if all(isinstance(member, str) for member in members) else members
    return value


def transitions(stored: Obj, status: dict[str, Any]) -> list[tuple[dict[str, Any] | None, dict[str, Any]]]:
    """Return (old or None, new) of each condition that changed its status, or its reason while not True."""
    before = conditions_of(stored)
    events = []
    for new in status.get("conditions") or ():
        old = before.get(new["type"])
        if new["type"] in _QUIET:
            continue
        changed = old is None or old["status"] != new["status"]
        if changed or (
            old is not None and new["status"] != "True" and old.get("reason") != new.get("reason")
        ):
            events.append((old, new))
    return events


def worth_an_event(old: dict[str, Any] | None, new: dict[str, Any], *, underway: bool) -> bool:
    """Whether a transition is worth a Kubernetes Event.

    The first moments of a healthy object are not, nor is it that its pods wait for new settings.
    """
    if new.get("reason") == "Waiting":
        return False
    return old is not None or (new["type"] in ("Ready", "Stalled") and not underway)


def _failing(condition: dict[str, Any]) -> bool:
    if condition["type"] == "Stalled":
        return bool(condition["status"] == "True")
    return condition["type"] in ("Ready", "Accepted", "ModelLoaded") and condition["status"] == "False"


def _note(text: str) -> str:
    # NB: the apiserver counts bytes in an Event's note, and characters in conditions.
    most = 1024 if len(text.encode()) <= 1024 else len(text.encode()[:1022].decode(errors="ignore"))
    return cut(text, most)  # its "…" takes three bytes


async def _emit(ctx: ReconcileContext, stored: Obj, condition: dict[str, Any], *, failing: bool) -> None:
    await send_event(
        ctx,
        stored,
        action=f"{condition['type']}{condition['status']}",
        reason=condition.get("reason") or condition["type"],
        note=condition.get("message") or f"{condition['type']} is {condition['status']}",
        warning=failing,
    )


async def send_event(
    ctx: ReconcileContext, stored: Obj, *, action: str, reason: str, note: str, warning: bool = False
) -> None:
    """Send an Event about an object.

    Args:
        action: what was done or found, one CamelCase word.
        reason: why, one CamelCase word.
        note: in words; a long one is cut.
    """
    metadata = stored["metadata"]
    event: Obj = {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {
            "namespace": metadata["namespace"],
            "name": f"{metadata['name']}.{secrets.token_hex(8)}",
        },
        "eventTime": rfc3339_micro(ctx.clock.now()),
        "reportingController": CONTROLLER,
        "reportingInstance": ctx.identity[:128],
        "action": action,
        "reason": reason,
        "note": _note(note),
        "type": "Warning" if warning else "Normal",
        "regarding": {
            "apiVersion": kind_of(stored).api_version,
            "kind": stored["kind"],
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
    }
    if ctx.emit is not None:
        await ctx.emit(event)
    else:
        await events.send(event, ctx.cluster, ctx.observer, ctx.log)
