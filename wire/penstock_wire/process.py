"""The command line of data-plane processes: flags with environment variables, JSON logs, the ready line."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import gc
import json
import logging
import os
import re
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from penstock_wire.addresses import join
from penstock_wire.durations import parse_ms
from penstock_wire.version import ShowVersion
from penstock_wire.words import cut

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_ADDRESS = re.compile(r"^(?P<host>\[[0-9a-fA-F:]+\]|[^:\[\]]+):(?P<port>[0-9]{1,5})$")
_threshold = 20

OPEN_FILES = 65_536
"""Most files and connections that a process asks for: more than the connections that any port accepts."""

NOWHERE: Mapping[str, str] = {}
"""For log lines of what has no namespace but its process's own: the collector names that one."""


def set_log_level(level: str) -> None:
    """Log this level and above: debug, info, warning or error."""
    global _threshold
    _threshold = _LEVELS[level]


def log(message: str, *, level: str = "info", **fields: object) -> None:
    """Write one JSON line to standard error: a constant message, its values as fields.

    Args:
        message: a constant text.
        level: debug, info, warning or error.
        fields: its values; never request data.
    """
    if _LEVELS[level] >= _threshold:
        write_line(message, level, fields)


def write_line(message: str, level: str, fields: Mapping[str, object]) -> None:
    """As `log`, whatever is logged: for lines that an option of their own asks for."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    line = json.dumps({"time": now, "level": level, "message": message, **fields}, default=str)
    # NB: one write, so that lines of two threads never mix; `print` writes the newline separately.
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def address(text: str) -> tuple[str, int]:
    """Parse `HOST:PORT` (an argparse type).

    Raises:
        argparse.ArgumentTypeError: the text is not of that form.
    """
    match = _ADDRESS.match(text)
    if match is None or int(match["port"]) > 65535:
        raise argparse.ArgumentTypeError(f"expected HOST:PORT such as 127.0.0.1:8012, found {text!r}")
    return match["host"].strip("[]"), int(match["port"])


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0", "on", "off"):
        raise argparse.ArgumentTypeError(f"expected true or false, found {text!r}")
    return text.lower() in ("true", "1", "on")


def duration(text: str) -> float:
    """Parse a duration such as `30s` into seconds (an argparse type)."""
    try:
        return parse_ms(text) / 1000
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


class Parser(argparse.ArgumentParser):
    """An argument parser whose flags also come from `PENSTOCK_<FLAG>` environment variables."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_argument("--version", action=ShowVersion)

    def flag(self, name: str, **options: Any) -> None:
        """Add `--name`; its environment variable applies if the command line has none."""
        variable = "PENSTOCK_" + name.upper().replace("-", "_")
        if variable in os.environ:
            options["default"] = os.environ[variable]
            options.pop("required", None)
        options["help"] = f"{options.get('help', '')} [{variable}]".strip()
        self.add_argument(f"--{name}", **options)

    def switch(self, name: str, *, help: str) -> None:
        """Add `--name`, true if given without a value; else true or false, as in its variable."""
        self.flag(name, type=_switch, nargs="?", const=True, default=False, help=help)


def ready(*, data: tuple[str, int], admin: tuple[str, int]) -> None:
    """Print the first line of standard output, which has the addresses that the process listens on."""
    print(f"ready data={join(*data)} admin={join(*admin)}", flush=True)


def keep_what_is_here() -> None:
    """Limit the garbage collector to objects made from now on, and make it run less often.

    Objects of a ready process stay for good: there is no use in scanning them again and again, nor in a scan
    after each few hundred waiting objects, such as requests, that reference counting alone removes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def raise_file_limit() -> None:
    """Raise the process's limit of open files and connections as far as allowed, up to `OPEN_FILES`.

    Container runtimes set 1024, which is meant for programs that use select(2), and allow far more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            log("open files stay limited", level="warning", limit=soft, error=str(error))


class _LibraryLog(logging.Handler):
    """Writes what libraries log as JSON lines too, such as asyncio on an exception that nobody handles."""

    def __init__(self) -> None:
        super().__init__(level=logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; of a connection that ended amid its handshake, as debug."""
        error = record.exc_info[1] if record.exc_info else None
        ended = record.name == "asyncio" and "the handler is closed" in str(error)
        level = "debug" if ended else "error" if record.levelno >= logging.ERROR else "warning"
        try:
            fields = {"logger": record.name, "text": cut(record.getMessage(), 2000)}
            if error is not None:
                fields["traceback"] = "".join(traceback.format_exception(error))[-4000:]
            log("library log", level=level, **fields)
        except Exception:  # a message that does not fit its arguments
            self.handleError(record)


def log_libraries() -> None:
    """Write what libraries log from now on as lines of our own: for a process that is all ours."""
    logging.basicConfig(handlers=[_LibraryLog()], level=logging.WARNING, force=True)


def run(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run a coroutine on uvloop, with the limit of open files raised; return its exit code."""
    raise_file_limit()
    import uvloop

    return uvloop.run(main())


def on_signal(number: signal.Signals, act: Callable[[], None]) -> None:
    """Call `act` in the running loop on each signal of this number; a forked child does what Python does."""
    asyncio.get_running_loop().add_signal_handler(number, act)
    if not _OURS:
        os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_restore)
    _OURS.add(number)


_OURS: set[signal.Signals] = set()
_MASK = threading.local()


def _hold() -> None:
    """Let signals wait while a thread forks: its child would take them for ours, and drop them."""
    _MASK.before = signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _MASK.before)


def _restore() -> None:
    """Undo `on_signal` in a forked child, which has the loop's wakeup fd: its signals would be ours."""
    signal.set_wakeup_fd(-1)
    for number in _OURS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _release()
