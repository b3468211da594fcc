"""Runs the operator under cProfile, in CPU time: `python -m bench.control_profile FILE FLAGS…`.

Writes FILE.main for the loop that reconciles and FILE.kopf for the thread that watches. CPU time, since on a
busy machine wall time shows what the process waited for.
"""

from __future__ import annotations

import cProfile
import sys
import threading
import time

from penstock_operator.__main__ import main


def run(into: str) -> int:
    """Run the operator.

    Args:
        into: where the profiles go.
    """
    watching = cProfile.Profile(time.thread_time)
    plain = threading.Thread.run

    def profiled(thread: threading.Thread) -> None:
        if thread.name != "kopf":
            plain(thread)
            return
        watching.runcall(plain, thread)

    threading.Thread.run = profiled  # type: ignore[method-assign,assignment]  # replaces the library's method
    own = cProfile.Profile(time.thread_time)
    try:
        return own.runcall(main)
    finally:
        own.dump_stats(f"{into}.main")
        watching.dump_stats(f"{into}.kopf")


if __name__ == "__main__":
    path = sys.argv.pop(1)
    sys.exit(run(path))
