"""Finds the causes in conditions, each once: in full where it arises, and as a reference elsewhere. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock_cli.cluster import Resource

_WELL_FALSE = frozenset({"Reconciling", "Stalled"})
"""Conditions that are False if all is well."""
_WELL = frozenset({"Applied", "Listening", "Promoted"})
"""Reasons for which the message of a True condition adds nothing."""
_EFFECTS = frozenset({"BackendNotReady", "WaitingForBackend", "CapacityShort", "StableNotReady"})
"""Reasons of endpoints and splits that are caused by the backends in their messages."""
_AT_ZERO = "ScaledToZero"
"""The reason of Ready for a backend that should have no pods, and has none."""
_WITHOUT_PODS = "NoReadyPod"
"""The reason of conditions that are unknown or false because a backend's pods are not ready."""
_WITHOUT_LOAD = ("MetricsAvailable", "NoReports")
"""The condition and reason of a load that is unknown for the same cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The causes printed so far, for references to them.

    Args:
        causes: name of the resource that shows a cause, by namespace, reason and message.
        unready: reason of a ModelBackend that is not ready, or is at 0, by namespace and name.
    """

    causes: dict[tuple[str, str, str], str] = field(default_factory=dict)
    unready: dict[tuple[str, str], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What one or several conditions say.

    Args:
        reason: theirs.
        kinds: each with its status, such as Ready=False.
        message: theirs, or a reference; may be empty.
    """

    reason: str
    kinds: list[str]
    message: str

    def __str__(self) -> str:
        return f"{self.reason} ({', '.join(self.kinds)})" + (f": {self.message}" if self.message else "")


def lines(resource: Resource, name: str, shown: Shown, *, everything: bool) -> list[str]:
    """Make the lines for the conditions of a resource, one for each cause; as `found`."""
    return [str(cause) for cause in found(resource, name, shown, everything=everything)]


def found(resource: Resource, name: str, shown: Shown, *, everything: bool) -> list[Cause]:
    """Find the causes in the conditions of a resource.

    Args:
        resource: as the API has it.
        name: its name in references.
        shown: the causes printed so far; new ones are added.
        everything: whether conditions that are well are shown too, and all in full.
    """
    namespace = resource["metadata"]["namespace"]
    conditions = list((resource.get("status") or {}).get("conditions") or ())
    ready: dict[str, Any] = next((each for each in conditions if each["type"] == "Ready"), {})
    without_pods = ready.get("status") == "False" or ready.get("reason") == _AT_ZERO
    if resource.get("kind") == "ModelBackend" and without_pods:
        shown.unready[namespace, resource["metadata"]["name"]] = ready["reason"]
    made = []
    for reason, message, kinds in _grouped(conditions if everything else _noteworthy(conditions, ready)):
        where = name
        if resource.get("kind") != "ModelBackend":
            # Backends share nothing: the same message at two of them has two causes.
            where = shown.causes.setdefault((namespace, reason, message), name)
        if message and where != name and not everything:
            message = f"see {where}"
        elif reason in _EFFECTS:
            message += _references(message, namespace, shown)
        made.append(Cause(reason=reason, kinds=kinds, message=message))
    return made


def _noteworthy(conditions: Iterable[dict[str, Any]], ready: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the conditions that are not well, and those that are well but have a message of interest."""
    for condition in conditions:
        well = condition["status"] == ("False" if condition["type"] in _WELL_FALSE else "True")
        if well and (not condition.get("message") or condition["reason"] in _WELL):
            continue
        follows = condition["reason"] == _WITHOUT_PODS
        follows = follows or (condition["type"], condition["reason"]) == _WITHOUT_LOAD
        if follows and ready.get("status") == "False":
            continue  # Ready has the cause
        yield condition


def _grouped(conditions: Iterable[dict[str, Any]]) -> list[tuple[str, str, list[str]]]:
    """Group conditions by reason and message, in the order of their first appearance."""
    groups: dict[tuple[str, str], list[str]] = {}
    for condition in conditions:
        key = (condition.get("reason") or "", condition.get("message") or "")
        groups.setdefault(key, []).append(f"{condition['type']}={condition['status']}")
    return [(reason, message, kinds) for (reason, message), kinds in groups.items()]


def _references(message: str, namespace: str, shown: Shown) -> str:
    """Make references to the causes of the unready backends that a message names."""
    words = {word.strip(".-") for word in re.findall(r"[a-z0-9.-]+", message)}
    known = sorted(name for place, name in shown.unready if place == namespace and name in words)
    if not known:
        return ""
    return "; see " + ", ".join(f"ModelBackend/{name} ({shown.unready[namespace, name]})" for name in known)
