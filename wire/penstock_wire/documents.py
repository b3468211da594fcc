"""What all documents share: JSON or YAML in, struct out, `v: 1` checked, one clear error."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import yaml

from penstock_wire.errors import DocumentError

VERSION = 1
"""The version of every document, its member `v`."""

T = TypeVar("T")


def decode(kind: type[T], data: bytes, *, what: str, text: bool = False) -> T:
    """Decode a document.

    Args:
        kind: the struct.
        data: JSON, or YAML where `text` is set.
        what: what the document is, for the error message.
        text: the document may be YAML (files that people write).

    Raises:
        DocumentError: not readable, not of the expected shape, or of an unknown version.
    """
    try:
        document: Any = yaml.safe_load(data) if text else msgspec.json.decode(data)
    except (msgspec.DecodeError, yaml.YAMLError, ValueError, AttributeError, RecursionError) as error:
        # NB: PyYAML's constructors of dates and numbers raise what Python raises: ValueError, AttributeError.
        form = "JSON or YAML" if text else "JSON"
        raise DocumentError(f"{what}: expected {form}, found bytes that are not: {error}") from error
    if document is None and text:
        document = {}
    if not isinstance(document, dict):
        raise DocumentError(f"{what}: expected an object, found {type(document).__name__}")
    version = document.get("v", VERSION if text else None)
    if version != VERSION:
        raise DocumentError(f"{what}: expected v: {VERSION}, found v: {version!r}")
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise DocumentError(f"{what}: {error}") from error
