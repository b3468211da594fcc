"""Argument types that several commands share."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object (an argparse type).

    Raises:
        argparse.ArgumentTypeError: the text is not a JSON object.
    """
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise argparse.ArgumentTypeError(f"expected a JSON object, found {text[:64]!r}: {error}") from error
