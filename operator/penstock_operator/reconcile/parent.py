"""Loads the resource that a key names, as each reconciler's first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from penstock_operator.api import Resource, ResourceError
from penstock_operator.kinds import Kind
from penstock_operator.kube.cluster import Obj
from penstock_operator.reconcile.context import ReconcileContext
from penstock_operator.reconcile.status_writer import write_status
from penstock_operator.status import parse_failed
from penstock_operator.store import ObjectKey

R = TypeVar("R", bound=Resource)


def unreadable(ctx: ReconcileContext, stored: Obj, error: str) -> dict[str, Any]:
    """Return the status of a resource that cannot be read."""
    return parse_failed(stored, error, now=ctx.now())


def forget(ctx: ReconcileContext, key: ObjectKey) -> None:
    """Drop what is cached of a resource that is gone."""
    ctx.view.forget(key)


async def load_parent(
    ctx: ReconcileContext,
    key: ObjectKey,
    kind: Kind,
    model: type[R],
    *,
    unreadable: Callable[[ReconcileContext, Obj, str], dict[str, Any]] = unreadable,
    forget: Callable[[ReconcileContext, ObjectKey], None] = forget,
) -> tuple[Obj, R] | None:
    """Return the resource as the store has it, and as its model.

    Args:
        unreadable: makes the status if the resource cannot be read.

    Returns:
        None if there is nothing to reconcile: the resource is gone, is being deleted, or cannot be read,
        which its status then says.

    Raises:
        ClusterError: the status could not be written.
    """
    stored = ctx.store.get(kind, key.namespace, key.name)
    if stored is None:
        forget(ctx, key)
        return None
    try:
        resource = ctx.view.read(stored)
    except ResourceError as error:
        await write_status(ctx, stored, unreadable(ctx, stored, str(error)))
        return None
    if not isinstance(resource, model) or resource.deleting:
        return None
    return stored, resource
