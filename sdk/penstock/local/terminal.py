"""The output for people: log lines and, only on a terminal, a view below them that is redrawn in place."""

from __future__ import annotations

import datetime
import json
import shutil
import threading
from collections.abc import Sequence
from typing import Any, TextIO

CLEAR = "\x1b[2K"
UP = "\x1b[1A"
COLOURS = {"error": "\x1b[31m", "warning": "\x1b[33m"}
PLAIN = "\x1b[0m"
UNTOLD = ("backend has no targets",)
"""Messages about what this command does on purpose."""


class Terminal:
    """Writes lines; the view stays below them.

    Args:
        out: where to.
        live: whether `out` can redraw lines; without that there is no view and no colour.
    """

    def __init__(self, out: TextIO, *, live: bool) -> None:
        self.live = live
        self._out = out
        self._view: list[str] = []
        self._lock = threading.Lock()

    def say(self, text: str, *, level: str = "info") -> None:
        """Write a line.

        Args:
            text: the line.
            level: of a log line; errors and warnings have a colour on a terminal.
        """
        if self.live and level in COLOURS:
            text = f"{COLOURS[level]}{text}{PLAIN}"
        with self._lock:
            self._write(self._erased() + text + "\n" + "".join(self._view))

    def show(self, lines: Sequence[str]) -> None:
        """Have these lines as the view, in place of those that were."""
        if not self.live:
            return
        width = shutil.get_terminal_size().columns - 1
        with self._lock:
            erased = self._erased()
            self._view = [line[:width] + "\n" for line in lines]
            self._write(erased + "".join(self._view))

    def child_line(self, name: str, line: str) -> None:
        """Write a line of a child: its logs in words, anything else as it is, behind the child's name."""
        fields = _log_fields(line)
        if fields is None:
            self.say(f"{name:<8}| {line}")
        elif fields["message"] not in UNTOLD:
            level = str(fields.get("level", "info"))
            self.say(readable(name, fields), level=level)

    def _erased(self) -> str:
        return (UP + "\r" + CLEAR) * len(self._view)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def _log_fields(line: str) -> dict[str, Any] | None:
    """The members of a line that `penstock_wire.process.log` wrote; None for any other line."""
    if not line.startswith('{"time"'):
        return None
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and "message" in document else None


def readable(name: str, fields: dict[str, Any]) -> str:
    """A log line for a person: the time of day, who says it, how grave it is, the message, its values.

    Args:
        name: of the child.
        fields: the members of its JSON line.
    """
    try:
        moment = datetime.datetime.fromisoformat(str(fields.get("time"))).astimezone().strftime("%H:%M:%S ")
    except ValueError:
        moment = ""
    level = fields.get("level", "info")
    grave = f"{level}: " if level in COLOURS else ""
    rest = {key: value for key, value in fields.items() if key not in ("time", "level", "message")}
    values = "".join(
        f"  {key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in rest.items()
    )
    return f"{name:<8}| {moment}{grave}{fields['message']}{values}"
