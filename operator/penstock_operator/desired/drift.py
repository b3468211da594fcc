"""Compares a desired object with the live one. Pure.

The rule (both halves are needed):

- *hash*: the desired object differs from the last one, whose hash is in the child's annotation. Only this
  detects a field that left the desired object.
- *drift*: the normalised desired object is not contained in the live one: another client changed it.

Fields that others added are not in the desired object, so they are neither drift nor removed.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

from penstock_operator.desired.labels import DESIRED_HASH
from penstock_operator.desired.objects import Object, desired_hash

_SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10) ** 3, "M": Decimal(10) ** 6, "G": Decimal(10) ** 9, "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15, "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10, "Mi": Decimal(2) ** 20, "Gi": Decimal(2) ** 30, "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50, "Ei": Decimal(2) ** 60,
}  # fmt: skip

_QUANTITY_MAPS = frozenset({"limits", "requests"})
_QUANTITIES = frozenset({"sizeLimit", "divisor"})

_ATOMIC_MAPS = frozenset({"selector", "matchLabels", "podSelector", "namespaceSelector", "nodeSelector"})
"""Maps whose meaning every further member changes: a selector with more labels selects less."""

_UNORDERED = frozenset({"ownerReferences"})
"""Keyed lists whose order has no meaning."""

_TEXT_MAPS = frozenset({"annotations", "labels", "matchLabels", "nodeSelector", "volumeAttributes"})
"""Maps of text that users write: their empty values are kept."""

LIST_KEYS: dict[str, tuple[str, ...]] = {
    # x-kubernetes-list-map-keys of core/v1 and apps/v1; lists that are not here are atomic.
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "imagePullSecrets": ("name",),
    "secrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "ownerReferences": ("uid",),
    "conditions": ("type",),
}
_OMITTED_ZEROS = frozenset(
    {
        # bool
        "chapAuthDiscovery", "chapAuthSession", "hostIPC", "hostNetwork", "hostPID", "paused",
        "publishNotReadyAddresses", "readOnly", "sslEnabled", "stdin", "stdinOnce", "tty",
        # int32
        "healthCheckNodePort", "hostPort", "initialDelaySeconds", "minReadySeconds", "nodePort", "partition",
    }
)  # fmt: skip
"""Fields whose false or 0 vanishes: in k8s.io/api 1.36, core/v1 and apps/v1, those with `omitempty` that are
not pointers. Any other false (`automountServiceAccountToken`) stays: if it is missing, that is drift."""

CHANGED = "changed"
"""The reason of a write because the desired object is not the last one."""

_KEY_DEFAULTS = {"protocol": "TCP"}

_ZEROS: dict[str, Any] = {
    # Members of core/v1 whose zero value the apiserver treats as absent, and replaces by its default.
    "apiVersion": "v1",
    "failureThreshold": 3,
    "path": "/",
    "periodSeconds": 10,
    "protocol": "TCP",
    "scheme": "HTTP",
    "successThreshold": 1,
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "timeoutSeconds": 1,
}


def quantity(text: object) -> Decimal | None:
    """Convert a Kubernetes quantity to a number; None if it is not a quantity.

    Args:
        text: as in ``500m``, ``1Gi``, ``1e3``, or a number.
    """
    spelled = str(text).strip()
    digits = spelled.rstrip("numkKMGTPEi")
    suffix = spelled[len(digits) :]
    if suffix not in _SUFFIXES:  # `1E` is 10^18; `1e3` and `1E3` have no suffix but an exponent
        return None
    try:
        return Decimal(digits) * _SUFFIXES[suffix]
    except InvalidOperation:
        return None


def needs_write(desired: Object, live: Object, *, hashed: str | None = None) -> str | None:
    """Return why the child must be written, None if it is as desired.

    Args:
        desired: the object without the hash annotation.
        hashed: the hash of `desired`, if it is known already.

    Returns:
        `CHANGED` if the desired object is not the last one, ``drift`` if another client changed the live one.
    """
    annotations = live["metadata"].get("annotations") or {}
    if annotations.get(DESIRED_HASH) != (hashed or desired_hash(desired)):
        return CHANGED
    return None if contained(desired, live) else "drift"


def contained(desired: Any, live: Any, field: str = "") -> bool:
    """Whether the live value contains all of the desired one, after the apiserver's normalisation."""
    if live is None:
        return _empty(desired, field)
    if isinstance(desired, dict):
        if not isinstance(live, dict):
            return False
        if field in _TEXT_MAPS and not desired.keys() <= live.keys():
            return False
        if field in _ATOMIC_MAPS and set(live) - set(desired):
            return False
        if field in _QUANTITY_MAPS:
            return all(_same_quantity(value, live.get(name)) for name, value in desired.items())
        for name, value in desired.items():
            there = live.get(name)
            # NB: most members are texts that are the same; a call for each would double the work.
            if not (value and type(value) is str and value == there) and not contained(value, there, name):
                return False
        return True
    if isinstance(desired, list):
        return isinstance(live, list) and _contained_list(desired, live, field)
    if field in _QUANTITIES:
        return _same_quantity(desired, live)
    if desired is None:
        return True
    if field in _ZEROS and desired in ("", 0):
        desired = _ZEROS[field]
    return type(desired) is type(live) and bool(desired == live)


def _contained_list(desired: list[Any], live: list[Any], field: str) -> bool:
    keys = _keys_of(field, desired)
    if keys is None:
        return len(desired) == len(live) and all(
            contained(mine, theirs) for mine, theirs in zip(desired, live, strict=True)
        )
    there = {_list_key(item, keys): item for item in live if isinstance(item, dict)}
    mine = [_list_key(item, keys) for item in desired]
    # NB: the order counts, as in `env` and `initContainers`; an apply restores it, and drops what is there
    # twice. Others' can be between.
    wanted = set(mine)
    kept = [key for item in live if isinstance(item, dict) and (key := _list_key(item, keys)) in wanted]
    in_place = len(kept) == len(mine) if field in _UNORDERED else kept == mine
    return in_place and all(contained(item, there[key]) for key, item in zip(mine, desired, strict=True))


def _keys_of(field: str, desired: list[Any]) -> tuple[str, ...] | None:
    if not all(isinstance(item, dict) for item in desired):
        return None
    if field == "ports":
        # NB: a NetworkPolicy's ports are atomic: a port that another client adds opens it.
        key_of = {"containerPort": "containerPort", "targetPort": "port"}
        number = next((key_of[name] for item in desired for name in item if name in key_of), None)
        return (number, "protocol") if number else None
    return LIST_KEYS.get(field)


def _list_key(item: Object, keys: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple([item.get(key, _KEY_DEFAULTS.get(key)) for key in keys])


def _empty(value: Any, field: str) -> bool:
    """Whether a value vanishes from a live object: empty text or list, some zeros, maps of only these."""
    if isinstance(value, dict):
        return not value or (
            field not in _TEXT_MAPS and all(_empty(member, name) for name, member in value.items())
        )
    if isinstance(value, int):  # a bool, too
        return not value and field in _OMITTED_ZEROS
    return value is None or value == "" or value == []


def _same_quantity(desired: Any, live: Any) -> bool:
    if live is None:
        return desired is None
    mine, theirs = quantity(desired), quantity(live)
    return mine == theirs if mine is not None and theirs is not None else bool(desired == live)
