"""The access log: one JSON line for each sampled request, without query, fields or bodies."""

from __future__ import annotations

import argparse
import random
import zlib

from penstock_wire.http import Request, Response
from penstock_wire.process import write_line


def share(text: str) -> float:
    """Parse a share of requests such as `0.01` (an argparse type).

    Raises:
        argparse.ArgumentTypeError: the text is not a number from 0 to 1.
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"expected a share from 0 to 1 such as 0.01, found {text!r}")
    return value


class AccessLog:
    """Logs a share of the requests, chosen by their ids: a router and a sidecar choose the same requests.

    The level of other log lines does not matter.

    Args:
        share: share of the requests, from 0 to 1; 0 = none.
    """

    __slots__ = ("_below", "on")

    def __init__(self, share: float) -> None:
        self._below = round(share * 2**32)
        self.on = share > 0.0

    def write(
        self,
        request: Request,
        answer: Response | None,
        *,
        request_id: str,
        status: int,
        reason: str,
        seconds: float,
        received: int,
        **where: str,
    ) -> None:
        """Log a request that has ended, if it is one of the sample.

        Args:
            request: the request; its query is left out.
            answer: the answer that its client got, None for none.
            request_id: its id; if empty, the choice is random.
            status: of the answer, 499 if the client left before.
            reason: the reason of an error.
            seconds: from its arrival to the head of its answer.
            received: bytes of its body.
            where: what answered, by field name; empty ones are left out.
        """
        if not self.on:
            return
        chosen = zlib.crc32(request_id.encode()) if request_id else random.getrandbits(32)
        if chosen >= self._below:
            return
        if answer is None or request.method == "HEAD":  # an answer to HEAD leaves its body out
            sent: int | None = 0
        else:
            sent = len(answer.body) if answer.stream is None else answer.length
        fields: dict[str, object] = {
            "request_id": request_id,
            "method": request.method,
            "path": request.path,
            "status": status,
            "reason": reason,
            "ms": round(seconds * 1e3, 3),
            "received": received,
            "sent": sent,
        }
        fields.update({name: text for name, text in where.items() if text})
        write_line("request", "info", fields)
