"""The interface of a protocol whose requests can be batched: read, join, split, merge. No I/O, no clock.

Items and bodies are bytes as they were sent, never parsed into objects and written again.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import msgspec

from penstock_wire._mypyc import mypyc_attr
from penstock_wire.errors import PenstockError
from penstock_wire.headers import Headers
from penstock_wire.http import Request, Response

# Ids need not be unguessable: a random part keeps those of two processes apart, a number those of one.
_prefix = os.urandom(6).hex()
_numbers = itertools.count(1)


def new_id() -> str:
    """An id for a batch or an item, unlike all others; of letters, digits and a dash."""
    return f"{_prefix}-{next(_numbers)}"


@mypyc_attr(native_class=False)
class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was read.

    Args:
        items: what a batch is made of; of each, `len()` is its bytes. None for a request that is one unit of
            load without an item of its own, and shares its batch with no other.
        parameters: what must be equal in a batch besides method, target and header fields; part of the key.
        lone: it must not share its batch, nor be cut, whatever its items.
        fields: the request's header fields with a content type that is true of its body; None where they are
            to be sent as they came.
    """

    items: Sequence[Any]
    parameters: Hashable = ()
    lone: bool = False
    fields: Headers | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A body with the fields that go with it (`content-type` and the like, never a length)."""

    headers: Headers
    body: bytes


class OwnAnswer:
    """What the model answered to one item.

    Args:
        response: the answer with all its fields, also those that only Penstock may set; None where it
            cannot be read.
        fault: why it cannot be read, "" where it can.
        raw: the body as it stands in the model's answer, JSON, by the name of its member; empty without one.
    """

    __slots__ = ("fault", "raw", "response")

    def __init__(self, response: Response | None, fault: str, raw: dict[str, bytes]) -> None:
        self.response = response
        self.fault = fault
        self.raw = raw


class OwnAnswers:
    """Of the items that a request has in a batch, those which the model answered by themselves.

    Args:
        answers: by place among these items, ascending; at least one.
    """

    __slots__ = ("answers",)

    def __init__(self, answers: dict[int, OwnAnswer]) -> None:
        self.answers = answers


class BatchProtocol(Protocol):
    """Reads requests, joins their items into one request, splits its answer."""

    name: str
    """As `--protocol` takes it."""
    isolates: bool
    """Whether a failed batch is halved and run again unless `onBatchError` says otherwise."""
    key_fields: bool
    """Whether header fields that a model may act upon are part of the key; not where each item carries its
    own."""
    item_streams: bool
    """Whether the model is asked for a stream for each item of a batch whose clients accept one."""

    def passes(self, request: Request) -> bool:
        """Whether a request is none of the protocol's, and passes through as it is, its body a stream.

        Args:
            request: its head; the body may not be there yet.
        """
        ...

    def parse(self, request: Request) -> Parsed | None:
        """Read a request.

        Returns:
            None where its body is none of the protocol's: it then passes through as it is.

        Raises:
            PenstockError: `bad_json`, `bad_shape`: what was expected, found, and where.
        """
        ...

    def join(self, parts: Sequence[Sequence[Any]], parameters: Hashable) -> Message:
        """The message of a batch.

        Args:
            parts: the items of each request, or of the part of it that is in this batch.
            parameters: what `parse` returned, equal for all.
        """
        ...

    def split(
        self, answer: Response, parts: Sequence[Sequence[Any]], parameters: Hashable
    ) -> Sequence[Response | PenstockError | OwnAnswers]:
        """One answer for each part, in order, from a 2xx answer to a batch; an error is of that part alone.

        `OwnAnswers` stand only in what `item_answers.is_form` says to be of that form.

        Args:
            answer: the model's.
            parts: as in `join`.
            parameters: as in `join`.

        Raises:
            PenstockError: `bad_answer` (502): not readable, or not as many answers as there were items.
        """
        ...

    def merge(self, answers: Sequence[Response]) -> Response:
        """One answer from those of the parts of one request that was larger than a batch.

        Args:
            answers: what `split` returned for its parts, in order; at least two.

        Raises:
            PenstockError: `bad_answer`: they do not fit together.
        """
        ...
