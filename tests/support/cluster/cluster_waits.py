"""Waits for a state of the cluster; a wait that fails shows the last answers."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")
PATIENCE = 120.0
"""Seconds that a wait takes at most. No claim: what is promised within a time is measured by itself, and a
busy machine is not a failure of ours."""

NO_ANSWER = re.compile(
    "connection refused|connection reset|i/o timeout|tls handshake timeout|etcdserver: |unable to connect|"
    "request timed out|client connection lost|unexpected eof|currently unable to handle",
    re.IGNORECASE,
)
"""Texts of kubectl when the API server did not answer."""


class Unanswered(AssertionError):
    """The server did not answer. A wait asks again, and shows this if it fails; elsewhere it is a failure."""


_heard: deque[tuple[str, Any]] = deque(maxlen=12)
"""The questions and answers of the current look of a wait."""


def heard(asked: str, answer: Any) -> None:
    """Record an answer, which the current wait shows if it fails.

    Args:
        answer: an object as the apiserver has it, several, or a text.
    """
    _heard.append((asked, answer))


def shown(answer: Any, most: int = 1500) -> str:
    """An answer in short, for the message of a failure.

    Args:
        answer: an object as the apiserver has it, several, or a text.
    """
    if isinstance(answer, list):
        text = f"{len(answer)}: " + "; ".join(shown(each, most // max(1, len(answer))) for each in answer)
    elif isinstance(answer, dict) and "metadata" in answer:
        names = ("name", "generation", "deletionTimestamp")
        kept = {name: answer["metadata"][name] for name in names if name in answer["metadata"]}
        members = ("status", "spec") if answer.get("kind") == "Secret" else ("status", "data", "spec")
        text = json.dumps(kept | {name: answer[name] for name in members if name in answer})
    else:
        text = str(answer)
    return text if len(text) <= most else f"{text[:most]} …"


def wait_for(what: str, look: Callable[[], T | None], *, seconds: float = PATIENCE, every: float = 0.25) -> T:
    """Wait until `look` returns something true and return it.

    The last look begins after the deadline: a machine that stood still meanwhile has had its chance.

    Args:
        look: a look at it; if the server does not answer, the wait looks again.
        seconds: at most.
        every: seconds between two looks.

    Raises:
        AssertionError: it did not within `seconds`; the message has the last thing seen, and the answers that
            the cluster gave to the last look.
    """
    deadline = time.monotonic() + seconds
    while True:
        last = time.monotonic() > deadline
        _heard.clear()
        result: Any
        try:
            result = look()
        except (Unanswered, ConnectionError, TimeoutError, subprocess.TimeoutExpired) as error:
            result = None
            _heard.append(("no answer", error))
        if result:
            return cast("T", result)
        if last:
            answers = "".join(f"\n  {asked}: {shown(answer)}" for asked, answer in _heard)
            raise AssertionError(f"waited {seconds:g} s for {what}; last seen: {result!r}{answers[:8000]}")
        time.sleep(every)


def failure(text: str) -> AssertionError:
    """The error for what kubectl said: another where it had no answer."""
    return Unanswered(text) if NO_ANSWER.search(text) else AssertionError(text)
