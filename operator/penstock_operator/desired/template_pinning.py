"""Keeps a backend's pod template as it was last rendered, until a user changes a field that rolls.

An operator's rendering depends on its version and configuration (the sidecar's image, arguments and probes,
defaults beside the model), and a new pod template restarts every model. So the whole template is kept, and
an upgrade of the operator rolls nothing:

- the Deployment records, in the annotation `penstock.dev/rendered`, the last rendered template, and a hash of
  the part of the spec that it was rendered from;
- while that hash stays, the recorded template is the desired one, so that another client's edit is reverted;
  with another hash, or `sidecar.upgrade: Now`, the template is rendered again.

A kept template can be as old as the backend: every later version must still render what it mounts and calls
(the settings ConfigMap and its key, ports 8012 and 8013, the ServiceAccount, the operator's Service).
Defaults of fields that roll never change, or the hash would.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock_operator.api import ModelBackend
from penstock_operator.desired import labels, names
from penstock_operator.desired.objects import Object, digest
from penstock_wire import contract

_LONG = 512
"""Characters beyond which a string is recorded by its hash: only users write longer ones, in the spec."""
_MOST = 64 * 1024
"""The most bytes of a record; the annotations of an object can have 256 KiB together."""
_ELIDED = "penstock.dev/sha256"


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedTemplate:
    """The pod template of a backend.

    Args:
        record: value of the annotation that records it; None if it is too large to be recorded.
        upgrade_pending: whether this operator would render another one, which waits for the next change.
    """

    template: Object
    record: str | None
    upgrade_pending: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedRecord:
    """The last rendered template, as its Deployment records it.

    Args:
        inputs: hash of the part of the spec that the template was rendered from.
        template: the template, long strings replaced by their hash.
    """

    inputs: str
    hash: str
    template: Object


def inputs_of(backend: ModelBackend) -> str:
    """A hash of the user-specified fields that affect the pod template.

    Fields equal to their default do not count: a later version's new fields change no hash.
    """
    spec = backend.spec
    rolling = {
        "model": spec.model,
        "warmup": spec.warmup,
        "podTemplate": spec.pod_template,
        "drain": spec.drain,
        "sidecar": spec.sidecar.model_copy(update={"upgrade": "OnNextChange"}),
    }
    parts = {
        name: part.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        for name, part in rolling.items()
        if part is not None
    }
    return digest({name: part for name, part in parts.items() if part})


def choose(
    backend: ModelBackend, fresh: Object, *, record: RenderedRecord | None, live: Object | None
) -> PinnedTemplate:
    """Choose the recorded template or the fresh one."""
    inputs, rendered = inputs_of(backend), digest(fresh)
    now = backend.spec.sidecar.upgrade == "Now" and not backend.spec.suspend
    if record is not None and record.inputs == inputs and record.hash != rendered and not now:
        known = dict(_long_strings(fresh)) | dict(_long_strings((live or {}).get("spec", {}).get("template")))
        try:
            template = _restored(record.template, known)
        except KeyError:
            template = None
        if template is not None and digest(template) == record.hash:
            return PinnedTemplate(
                template=template, record=_written(inputs, record.hash, template), upgrade_pending=True
            )
    return PinnedTemplate(template=fresh, record=_written(inputs, rendered, fresh), upgrade_pending=False)


def recorded(live: Object | None) -> RenderedRecord | None:
    """The record of a live Deployment; None if there is none, or it is unreadable."""
    text = ((live or {}).get("metadata", {}).get("annotations") or {}).get(labels.RENDERED)
    if not isinstance(text, str):
        return None
    try:
        record = json.loads(text)
        inputs, rendered, template = record["inputs"], record["hash"], record["template"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return (
        RenderedRecord(inputs=inputs, hash=rendered, template=template)
        if isinstance(template, dict)
        else None
    )


def drain_secret(template: Object) -> str | None:
    """The drain secret in a pod template; None if there is none."""
    for container in _dicts(template.get("spec"), "initContainers"):
        for variable in _dicts(container, "env"):
            if (
                container.get("name") == names.SIDECAR_CONTAINER
                and variable.get("name") == contract.DRAIN_SECRET_ENV
            ):
                value = variable.get("value")
                return value if isinstance(value, str) and value else None
    return None


def _dicts(holder: object, member: str) -> list[Object]:
    elements = holder.get(member) if isinstance(holder, dict) else None
    return (
        [element for element in elements if isinstance(element, dict)] if isinstance(elements, list) else []
    )


def _written(inputs: str, rendered: str, template: Object) -> str | None:
    record = {"inputs": inputs, "hash": rendered, "template": _elided(template)}
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text if len(text.encode()) <= _MOST else None


def _elided(value: Any) -> Any:
    # NB: most members are short texts; a call for each would double the work.
    if isinstance(value, dict):
        return {
            name: member if type(member) is str and len(member) <= _LONG else _elided(member)
            for name, member in value.items()
        }
    if isinstance(value, list | tuple):
        return [_elided(member) for member in value]
    return {_ELIDED: digest(value)} if isinstance(value, str) and len(value) > _LONG else value


def _restored(value: Any, known: Mapping[str, str]) -> Any:
    """Reverse `_elided`; raises KeyError if a long string is not known any more."""
    if isinstance(value, dict):
        if set(value) == {_ELIDED}:
            return known[str(value[_ELIDED])]
        return {name: _restored(member, known) for name, member in value.items()}
    return [_restored(member, known) for member in value] if isinstance(value, list) else value


def _long_strings(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for member in value.values():
            yield from _long_strings(member)
    elif isinstance(value, list | tuple):
        for member in value:
            yield from _long_strings(member)
    elif isinstance(value, str) and len(value) > _LONG:
        yield digest(value), value
