"""One line for each thing that takes time: what it is when it starts, how long it took when it ends."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

HEARTBEAT_SECONDS = 20.0


def say(message: str, *, who: str = "devcluster") -> None:
    """Print one progress line to stderr; stdout is for what a command answers.

    Args:
        message: The line, without a newline.
        who: The program that prints it.
    """
    print(f"[{who}] {message}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(what: str, progress: Callable[[], str] | None = None, *, who: str = "devcluster") -> Iterator[None]:
    """Tell that `what` begins, that it is still going on, and how long it took.

    Args:
        what: The work, such as `building etcd v3.6.16`.
        progress: Tells how far it is, for the heartbeat line of every 20 seconds.
        who: The program that does it.

    Yields:
        Nothing; the work is the body.
    """
    begin = time.monotonic()
    ended = threading.Event()

    def heartbeat() -> None:
        while not ended.wait(HEARTBEAT_SECONDS):
            detail = f": {progress()}" if progress else ""
            say(f"  … {what}, {time.monotonic() - begin:.0f} s{detail}", who=who)

    say(f"{what} …", who=who)
    thread = threading.Thread(target=heartbeat, daemon=True)
    thread.start()
    try:
        yield
    except BaseException:  # also Ctrl-C: report that the step failed
        say(f"{what}: failed after {time.monotonic() - begin:.1f} s", who=who)
        raise
    finally:
        ended.set()
        thread.join()
    say(f"{what}: {time.monotonic() - begin:.1f} s", who=who)
