"""Formats tables, ages and bars as plain text. Pure except for `Screen`."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

_GAP = "   "
_LEAST = 16
"""The narrowest room, in characters, in which text is folded."""
_OLDEST = 2000
"""Times up to the end of this year are not plausible: Penstock is younger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """The output of a command.

    Args:
        out: the stream.
        width: characters of a line.
        live: whether it is a terminal, on which a page can be redrawn.
        height: lines of the terminal; a redrawn page does not exceed it.
    """

    out: TextIO
    width: int
    live: bool
    height: int = 10_000

    @classmethod
    def of_terminal(cls) -> Screen:
        """Make a screen of standard output: as wide as its terminal, and unlimited elsewhere."""
        live = sys.stdout.isatty()
        if not live:
            return cls(out=sys.stdout, width=10_000, live=False)
        size = shutil.get_terminal_size()
        return cls(out=sys.stdout, width=size.columns, live=True, height=size.lines)

    def show(self, lines: Sequence[str], *, anew: bool = False, last: bool = False) -> None:
        """Write lines, cut to the width.

        Args:
            lines: without their ends.
            anew: clear the terminal first. The head of a page matters most and would scroll away first, so
                the last lines are left out if the terminal does not have room for all.
            last: show all lines, since no further page replaces them.
        """
        room = max(self.height - 2, 1)  # one line for the note on omitted lines, one for the cursor
        if anew and not last and len(lines) > room + 1:
            left_out = len(lines) - room
            lines = [*lines[:room], f"… {left_out} more lines; make the terminal higher to see them"]
        text = "\n".join(cut(line, self.width) for line in lines)
        self.out.write(("\x1b[H\x1b[2J" if anew else "") + text + "\n")
        self.out.flush()


def cut(line: str, width: int) -> str:
    """Cut a line to at most so many characters.

    Args:
        line: any text; unprintable characters, which could move the cursor, become spaces.
        width: the most characters.
    """
    plain = "".join(letter if letter.isprintable() else " " for letter in line)
    return plain if len(plain) <= width else f"{plain[: max(width - 1, 0)]}…"


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int | None = None,
    most: int | None = None,
) -> list[str]:
    """Lay out rows under a head, each column as wide as its widest cell.

    Args:
        head: names of the columns.
        rows: cells.
        width: the most characters of a line; the last column is folded to fit; None = unlimited.
        most: the most lines of a cell of the last column; None = unlimited.
    """
    if width is not None:
        before = [max(map(len, column)) for column in zip(head, *rows, strict=True)][:-1]
        room = width - sum(before) - len(_GAP) * len(before)
        rows = [
            [*(cells if at == 0 else [""] * len(cells)), text]
            for *cells, last in rows
            for at, text in enumerate(_first(folded(last, room), most))
        ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]


def folded(text: str, width: int, *, indent: str = "") -> list[str]:
    """Fold a text into lines; into a single line if there is hardly any room.

    Args:
        text: the words.
        width: characters of a line.
        indent: prefix of each line.
    """
    if width - len(indent) < _LEAST:
        return [indent + text]
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent) or [""]


def fitted(lines: Iterable[str], width: int) -> list[str]:
    """Fold the lines that are too long, each with its own indent.

    Args:
        lines: any lines; what follows a line break in one, as in a traceback, is indented by two more.
        width: characters of a line.
    """
    made = []
    for text in lines:
        outer = text[: len(text) - len(text.lstrip())]
        for number, part in enumerate(text.strip().split("\n")):
            line = f"{outer}  {part.rstrip()}" if number else outer + part.rstrip()
            indent = line[: len(line) - len(line.lstrip())]
            made += [line] if len(line) <= width else folded(line.strip(), width, indent=indent)
    return made


def narrowed(
    head: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, spare: Sequence[str] = ()
) -> list[str]:
    """Make a table, with less room between its columns, and with fewer of them, if it would be too wide.

    Args:
        head: names of the columns.
        rows: cells.
        width: characters of a line.
        spare: columns that may be left out, the least important first.
    """
    columns = [(max(map(len, cells)), cells) for cells in zip(head, *rows, strict=True)]
    for name in spare:
        if sum(wide for wide, _ in columns) + len(columns) - 1 <= width:
            break
        columns = [(wide, cells) for wide, cells in columns if cells[0] != name]
    room = (width - sum(wide for wide, _ in columns)) // max(len(columns) - 1, 1)
    gap = " " * min(max(room, 1), len(_GAP))
    padded = [[cell.ljust(wide) for cell in cells] for wide, cells in columns]
    return [gap.join(row).rstrip() for row in zip(*padded, strict=True)]


def _first(lines: list[str], most: int | None) -> list[str]:
    """Return the first lines; the last of them ends in "…" if there are more."""
    if most is None or len(lines) <= most:
        return lines
    return [*lines[: most - 1], f"{lines[most - 1]} …"]


def by_reason(load: Mapping[str, Any]) -> str:
    """Format the errors of a backend's load by reason, the most frequent first: `deadline 17, queue_full 3`.

    Args:
        load: `status.load`.
    """
    errors = sorted((load.get("errors") or {}).items(), key=lambda error: (-error[1], error[0]))
    return ", ".join(f"{reason} {count}" for reason, count in errors)


def last_crash(status: Mapping[str, Any], now: datetime) -> tuple[str, str]:
    """When a model's container ended last, and how, in words; two empty texts if it never did.

    Args:
        status: a ModelBackend's.
        now: the time.
    """
    crash = (status.get("model") or {}).get("lastCrash") or {}
    at = when(crash.get("time"))
    if at is None:
        return "", ""
    return f"{span((now - at).total_seconds())} ago", f"pod {crash.get('pod')} {crash.get('message')}"


def when(text: str | None) -> datetime | None:
    """Parse a time of the API; None if it is absent or not plausible.

    NB: the apiserver accepts more date-times than Python, such as one in the year 0.

    Args:
        text: RFC 3339.
    """
    try:
        parsed = datetime.fromisoformat((text or "").upper())
    except ValueError:
        return None
    parsed = parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
    return parsed if parsed.year > _OLDEST else None


def span(seconds: float) -> str:
    """Format a duration in one or two units, as kubectl shows an age.

    Args:
        seconds: the duration; a negative one counts as 0.
    """
    whole = max(int(seconds), 0)
    for unit, size, below, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size}{unit}" + (f"{rest}{below}" if rest and whole < 10 * size else "")
    return f"{whole}s"


def bars(values: Sequence[int], *, height: int) -> list[str]:
    """Draw a bar for each value, from the bottom up, with the scale at the left.

    Args:
        values: integers from 0.
        height: the most lines; if all values are smaller, each line is a unit.
    """
    most = max([*values, 1])
    lines = min(height, most)
    margin = len(str(most))
    drawn = []
    for line in range(lines, 0, -1):
        level = most * line / lines
        # A bar is drawn in a line that it fills at least by half.
        marks = "".join("█" if value >= level - most / lines / 2 else " " for value in values)
        label = str(round(level)) if line in (1, lines) or lines == most else ""
        drawn.append(f"{label:>{margin}} ┤{marks}".rstrip())
    return [*drawn, f"{0:>{margin}} ┼{'─' * len(values)}"]


def share_bar(percent: float, *, width: int) -> str:
    """Draw a share of a whole as a bar.

    Args:
        percent: from 0 to 100; the bar is empty only at 0 and full only at 100.
        width: characters of the whole bar.
    """
    filled = round(width * percent / 100)
    filled = max(filled, 1) if percent > 0 else 0
    filled = min(filled, width - 1) if percent < 100 else width
    return "█" * filled + "░" * (width - filled)
