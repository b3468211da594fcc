"""Writes the output for people: log lines and, on a terminal, a view below them that is redrawn in place."""

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
"""Hidden messages: this command causes them on purpose."""


class Terminal:
    """Writes lines; the view stays below them.

    Args:
        out: the output stream.
        live: whether `out` can redraw lines; else there is no view and no colour.
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
            level: level of a log line; errors and warnings have a colour on a terminal.
        """
        if self.live and level in COLOURS:
            text = f"{COLOURS[level]}{text}{PLAIN}"
        with self._lock:
            self._write(self._erased() + text + "\n" + "".join(self._view))

    def show(self, lines: Sequence[str]) -> None:
        """Replace the lines of the view."""
        if not self.live:
            return
        width = shutil.get_terminal_size().columns - 1
        with self._lock:
            erased = self._erased()
            self._view = [line[:width] + "\n" for line in lines]
            self._write(erased + "".join(self._view))

    def child_line(self, name: str, line: str) -> None:
        """Write a line of a child after the child's name: a log line in words, any other unchanged."""
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
    """Parse the members of a line by `penstock_wire.process.log`; None for any other line."""
    if not line.startswith('{"time"'):
        return None
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and "message" in document else None


def readable(name: str, fields: dict[str, Any]) -> str:
    """Format a log line for people: program, time of day, level if grave, message, values.

    Args:
        name: name of the child.
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
    text = f"{moment}{grave}{fields['message']}{values}"
    return "\n".join(f"{name:<8}| {line}" for line in text.splitlines())
