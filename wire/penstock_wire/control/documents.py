"""Reads documents: JSON or YAML in, struct out, `v: 1` checked, one clear error."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any, TypeVar

import msgspec
import yaml

from penstock_wire import yaml_text
from penstock_wire.control import handwritten
from penstock_wire.errors import DocumentError

VERSION = 1
"""The version of every document, its member `v`."""

T = TypeVar("T")


def decode(kind: type[T], data: bytes, *, what: str, text: bool = False, by_hand: bool = False) -> T:
    """Decode a document.

    Args:
        kind: the struct.
        data: JSON, or YAML if `text` is set.
        what: name of the document, for the error message.
        text: the document can be YAML (files that people write).
        by_hand: a user wrote it: unknown members are refused, durations and sizes can be
            text (`handwritten`).

    Raises:
        DocumentError: the document is unreadable, does not have the expected shape, or has an unknown
            version; if written by hand, it is empty, or has an unknown member.
    """
    if not text and not by_hand:
        return _straight(kind, data, what=what)
    try:
        document: Any = _json_or_yaml(data, once=by_hand)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DocumentError(f"{what}: expected JSON or YAML, found bytes that are not: {error}") from error
    if document is None:
        if by_hand:
            raise DocumentError(
                f"{what}: expected an object ({{}} for the defaults), found an empty document"
            )
        document = {}
    if not isinstance(document, dict):
        raise DocumentError(f"{what}: expected an object, found {type(document).__name__}")
    version = document.get("v", VERSION)
    if version != VERSION:
        raise DocumentError(f"{what}: expected v: {VERSION}, found v: {version!r}")
    if by_hand:
        if {"apiVersion", "kind"} <= document.keys():
            resource = f"a Kubernetes resource of kind {document['kind']}"
            raise DocumentError(f"{what}: expected a settings file, found {resource}")
        document = handwritten.read(document, kind, what=what)
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise DocumentError(f"{what}: {error}") from error


def digest(document: bytes) -> str:
    """Return the name of a document's bytes: two documents with one digest are the same."""
    return hashlib.sha256(document).hexdigest()[:32]


class _Head(msgspec.Struct):
    v: msgspec.Raw = msgspec.Raw(b"None")


_HEAD = msgspec.json.Decoder(_Head)
_TYPES = {b"[": "list", b'"': "str", b"n": "NoneType", b"t": "bool", b"f": "bool"}


def _straight(kind: type[T], data: bytes, *, what: str) -> T:
    """Decode JSON into the struct; members that the struct lacks are skipped without making objects."""
    try:
        straight = bytes(_HEAD.decode(data).v)
        if straight != b"%d" % VERSION:
            shown = straight[:20].decode("utf-8", "replace")
            raise DocumentError(f"{what}: expected v: {VERSION}, found v: {shown}")
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        first = data.lstrip()[:1]
        if first != b"{":
            found_type = _TYPES.get(first, "number")
            raise DocumentError(f"{what}: expected an object, found {found_type}") from error
        raise DocumentError(f"{what}: {error}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise DocumentError(f"{what}: expected JSON, found bytes that are not: {error}") from error


def _json_or_yaml(data: bytes, *, once: bool) -> Any:
    """Parse a document as JSON and, only if it is not JSON, as YAML; with `once`, no member may stand twice.

    The operator and mounted files use JSON. A YAML parser takes a hundred times as long for it, and reads
    some of it differently: ``1e-7`` is a string there.
    """
    try:
        document = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return yaml_text.read(data)
    return json.loads(data, object_pairs_hook=_each_once) if once else document


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        name = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"expected each member once, found {name!r} again")
    return members
