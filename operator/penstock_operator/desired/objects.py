"""Metadata of all rendered objects, from an allow-list, and the hash that shows whether to apply."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock_operator.api import Resource
from penstock_operator.desired import labels

Object = dict[str, Any]
"""A Kubernetes object, decoded."""


def metadata(
    name: str,
    namespace: str,
    labelled: dict[str, str],
    owners: Sequence[Resource],
    *,
    controller: bool = True,
) -> Object:
    """Make a child's metadata: name, namespace, labels, owner references; nothing comes from the parent's."""
    return {
        "name": name,
        "namespace": namespace,
        "labels": labelled,
        "ownerReferences": labels.owner_references(owners, controller=controller),
    }


def desired_hash(desired: Object) -> str:
    """A hash of a desired object without its hash annotation: 16 hex digits."""
    annotations = desired.get("metadata", {}).get("annotations", {})
    if labels.DESIRED_HASH in annotations:
        rest = {key: value for key, value in annotations.items() if key != labels.DESIRED_HASH}
        bare = {key: value for key, value in desired["metadata"].items() if key != "annotations"}
        desired = desired | {"metadata": bare | ({"annotations": rest} if rest else {})}
    # NB: the same text as `digest` hashes, but for rare numbers and DEL, in a fifteenth of its time: each
    # reconcile hashes each object. Where it differs, an object is written once more.
    try:
        text = msgspec.json.encode(desired, order="sorted")
    except (UnicodeEncodeError, OverflowError):  # half a character, or a number of more than 64 bits
        return digest(desired)
    return hashlib.sha256(text).hexdigest()[:16] if text.isascii() else digest(desired)


def digest(value: object) -> str:
    """A hash of any JSON value: 16 hex digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def stamped(desired: Object) -> Object:
    """Return a copy of the object with its hash in the annotation `penstock.dev/desired-hash`."""
    meta = desired["metadata"]
    annotations = meta.get("annotations", {}) | {labels.DESIRED_HASH: desired_hash(desired)}
    return desired | {"metadata": meta | {"annotations": annotations}}


def service_account(meta: Object) -> Object:
    """A ServiceAccount; no pod gets its token automatically."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": meta,
        "automountServiceAccountToken": False,
    }
