"""The interface of a protocol whose requests can be batched: read, join, split, merge. No I/O, no clock.

Items and bodies are bytes as they were sent; they are never parsed into objects and written again.
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

# Ids may be guessable: a random part keeps two processes' ids apart, a number those of one process.
_prefix = os.urandom(6).hex()
_numbers = itertools.count(1)


def new_id() -> str:
    """Make a unique id for a batch, of letters, digits and a dash."""
    return f"{_prefix}-{next(_numbers)}"


@mypyc_attr(native_class=False)
class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was read.

    Args:
        items: the units of batching; `len()` of an item is its number of bytes. Empty for a request that is
            one unit of load without an item, and does not share its batch.
        parameters: values that must be equal in a batch besides method, target and header fields; part of
            the key.
        lone: the request must not share its batch nor be cut, whatever its items.
        fields: the request's header fields with the right content type for its body; None to send them as
            they came.
    """

    items: Sequence[Any]
    parameters: Hashable = ()
    lone: bool = False
    fields: Headers | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A body and the header fields that describe it (`content-type` and the like, never a length)."""

    headers: Headers
    body: bytes


class OwnAnswer:
    """The model's own answer to one item.

    Args:
        response: the answer with all its fields, including those that only Penstock may set; None if it
            cannot be read.
        fault: why it cannot be read, "" if it can.
        raw: the body as it is in the model's answer, JSON, by the name of its member; empty without a body.
    """

    __slots__ = ("fault", "raw", "response")

    def __init__(self, response: Response | None, fault: str, raw: dict[str, bytes]) -> None:
        self.response = response
        self.fault = fault
        self.raw = raw


class OwnAnswers:
    """The model's own answers to single items of one request's part of a batch.

    Args:
        answers: by the item's place in that part, ascending; at least one.
    """

    __slots__ = ("answers",)

    def __init__(self, answers: dict[int, OwnAnswer]) -> None:
        self.answers = answers


class BatchProtocol(Protocol):
    """Reads requests, joins their items into one request, splits its answer."""

    name: str
    """Its name on the command line (`--protocol`)."""
    item_streams: bool
    """Whether the model is asked for a stream for each item of a batch if the clients accept streams."""

    asks: Headers
    """Fields that ask the model for answers by item (`item_answers`). Also a request of several items that is
    alone in its batch has them: its answer does not depend on who shares the batch."""

    def passes(self, request: Request) -> bool:
        """Whether a request is not of the protocol, and passes through as it is, its body as a stream.

        Args:
            request: its head; the body may not be there yet.
        """
        ...

    def parse(self, request: Request) -> Parsed | None:
        """Read a request.

        Returns:
            None if its body is not of the protocol: it then passes through as it is.

        Raises:
            PenstockError: `bad_json` or `bad_shape`, with what was expected and found, and where.
        """
        ...

    def join(self, parts: Sequence[Sequence[Any]], parameters: Hashable) -> Message:
        """Make the message of a batch.

        Args:
            parts: for each request, its items in this batch.
            parameters: the parameters that `parse` returned, equal for all requests.
        """
        ...

    def split(
        self, answer: Response, parts: Sequence[Sequence[Any]], parameters: Hashable
    ) -> Sequence[Response | PenstockError | OwnAnswers]:
        """Split a 2xx answer to a batch: one answer for each part, in order; an error is for that part alone.

        `OwnAnswers` are returned only for an answer of that form (see `item_answers.is_form`).

        Args:
            answer: the model's.
            parts: as in `join`.
            parameters: as in `join`.

        Raises:
            PenstockError: `bad_answer` (502): not readable, or not as many answers as there were items.
        """
        ...

    def merge(self, answers: Sequence[Response], parameters: Hashable) -> Response:
        """Merge the answers to the parts of one request that was larger than a batch.

        Args:
            answers: the answers that `split` returned for its parts, in order; at least two.
            parameters: the parameters that `parse` returned.

        Raises:
            PenstockError: `bad_answer`: the answers do not fit together.
        """
        ...
