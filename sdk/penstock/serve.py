"""`python -m penstock.serve module:Class`: the model server of `python` backends, also on a laptop.

It imports the target and checks its shape, listens, constructs the target in a thread (GET of the ready path
is 503 meanwhile), prints `ready data=HOST:PORT` and serves until SIGTERM, which lets calls under way end, or
SIGINT, which does not. A target that cannot be loaded ends the process with exit code 1; the last line of
standard error says why.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock_wire.extras import needs
from penstock_wire.version import ShowVersion

with needs("penstock.serve", "sdk"):
    from penstock.arguments import json_object
    from penstock.composition import Application, refuse_builder
    from penstock.errors import LoadError
    from penstock.local.nodes import application_line, settings_line
    from penstock.model import Model
    from penstock.server import ModelServer
    from penstock.target import Served, Target, locate, target_of
    from penstock.threads import in_thread
    from penstock.try_page import DOCS_PATH
    from penstock.user_code import USER_CODE, described, trace_of
    from penstock_wire import contract
    from penstock_wire.addresses import join
    from penstock_wire.errors import set_origin
    from penstock_wire.http.memory import MemoryBound
    from penstock_wire.http.server.server import H1Front
    from penstock_wire.memory_limit import container_limit, most_kept, trimmer
    from penstock_wire.process import log, on_signal, run
    from penstock_wire.unpack import activate

THREADS = 64
"""Calls of blocking methods that can run at once; the largest maxConcurrentBatches of a BatchPolicy."""

MAX_BODY_BYTES = (1024 + 64) * 1024 * 1024
"""The largest maxBatchBytes of a BatchPolicy, plus room for the JSON around the items."""

CLOSE_SECONDS = 3.0
"""Time limit of the hook `close`; together with `STOP_SECONDS` it fits into a pod's usual 30 s."""

STOP_SECONDS = 25.0
"""How long calls under way can go on after SIGTERM."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the model server.

    Args:
        argv: the arguments; None: the process's own.

    Returns:
        The exit code.
    """
    options = _parse(argv)
    set_origin(backend=os.environ.get(contract.BACKEND_ENV, ""), pod=os.environ.get(contract.POD_ENV, ""))
    # Removed from the environment before the target's code runs: that code can expose its environment.
    secret = os.environ.pop(contract.RECONFIGURE_SECRET_ENV, "")
    if options.mark:  # of `penstock run`, where the working directory is for the target's imports alone
        sys.path.insert(0, str(Path.cwd()))
    activate()
    try:
        with USER_CODE:
            located = locate(options.target)
            if options.mark and isinstance(located, Application):
                _announce(options, application_line(located, options.init_kwargs))
                return 0
            refuse_builder(located)
            target = target_of(options.target, located, options.init_kwargs)
            if options.own_settings is not None:
                _announce(options, settings_line(located, options.own_settings))
    except Exception as error:
        return _cannot_load(options.target, error)
    return run(lambda: _serve(target, options, secret))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m penstock.serve", description=__doc__)
    # NB: no PENSTOCK_PORT environment variable here: Kubernetes sets one in every pod of a namespace that has
    # a Service named "penstock".
    parser.add_argument("--version", action=ShowVersion)
    parser.add_argument("target", help="what to serve: module:Class or module:function")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port",
        type=int,
        default=contract.MODEL_PORT,
        help="port to listen on, 0 = a free one (%(default)s)",
    )
    parser.add_argument(
        "--ready-path", default="/", help="path of the readiness check (default: %(default)s)"
    )
    parser.add_argument(
        "--init-kwargs", type=json_object, default={}, help="keyword arguments of the class, JSON"
    )
    parser.add_argument(
        "--mark",
        default="",
        help="begins the lines for the process that started this one: an application "
        "is then not refused, but its nodes are printed",
    )
    parser.add_argument(
        "--own-settings",
        type=int,
        metavar="SIZE",
        help="print a class's settings for its sidecar, with this maxBatchSize; 0 = its own",
    )
    parser.add_argument("--docs", action="store_true", help=f"serve a page to try it at {DOCS_PATH}")
    return parser.parse_args(argv)


def _announce(options: argparse.Namespace, line: str) -> None:
    """Print a line for the process that started this one."""
    # NB: by one write, and not to sys.stdout: user code prints meanwhile, and can replace that.
    print(f"{options.mark}{line}\n", end="", file=sys.__stdout__, flush=True)


def bounded_front(limit: int | None) -> H1Front:
    """Make a front that takes no longer bodies, and keeps no more of them together, than there is memory for.

    Args:
        limit: bytes that the container may use; None if it has no limit: two of the longest bodies are kept.
    """
    most = 2 * MAX_BODY_BYTES if limit is None else most_kept(limit)
    return H1Front(max_body_bytes=min(MAX_BODY_BYTES, most // 2), memory=MemoryBound(most, trimmer()))


async def _serve(target: Target, options: argparse.Namespace, secret: str) -> int:
    stopping = asyncio.Event()
    patience = STOP_SECONDS

    def interrupt() -> None:
        """Stop on Ctrl-C without waiting for answers."""
        nonlocal patience
        patience = 0.0
        stopping.set()

    on_signal(signal.SIGTERM, stopping.set)
    on_signal(signal.SIGINT, interrupt)
    front, server = (
        bounded_front(container_limit()),
        ModelServer(options.ready_path, reconfigure_secret=secret, docs=options.docs),
    )
    try:
        listener = await front.listen(options.host, options.port, server.handle)
    except OSError as error:
        return _cannot_load(
            target.name, LoadError(f"cannot listen on {join(options.host, options.port)}: {error}")
        )
    executor = ThreadPoolExecutor(THREADS, thread_name_prefix="model")
    stop = asyncio.ensure_future(stopping.wait())
    build = asyncio.ensure_future(_load(target, executor))
    await asyncio.wait((build, stop), return_when=asyncio.FIRST_COMPLETED)
    code = 0
    if build.done() and isinstance(built := build.result(), Served):
        methods = {name: Model(served, executor) for name, served in built.methods.items()}
        server.serve(Model(built, executor), methods, default=built.default)
        _announce(options, f"ready data={join(*listener.address)}")
        await stop
    elif build.done():
        code = _cannot_load(target.name, build.result())
    else:
        log("stopped while the model was loading")
    stop.cancel()
    await front.close(patience)
    if build.done() and isinstance(built := build.result(), Served):
        await _close(built, executor)
    await _end_threads(executor, code)
    return code


async def _load(target: Target, executor: ThreadPoolExecutor) -> Served | Exception:
    """Construct the target and call its hooks `load` and `warmup`."""
    built = await asyncio.get_running_loop().run_in_executor(executor, _build, target)
    if isinstance(built, Served):
        for hook in ("load", "warmup"):
            error = await _call_hook(built, hook, executor)
            if error is not None:
                return error
    return built


async def _call_hook(built: Served, hook: str, executor: ThreadPoolExecutor) -> Exception | None:
    """Call a hook, if the target has it, in a thread; return the exception that it raised."""
    method = built.hooks.get(hook)
    if method is None:
        return None
    try:
        result = await in_thread(executor, method)
        if inspect.isawaitable(result):
            with USER_CODE:
                await result
    except Exception as error:
        return error
    return None


async def _close(built: Served, executor: ThreadPoolExecutor) -> None:
    """Call the hook `close`, for a limited time."""
    called = asyncio.ensure_future(_call_hook(built, "close", executor))
    done, _ = await asyncio.wait((called,), timeout=CLOSE_SECONDS)
    error = called.result() if done else f"it did not end within {CLOSE_SECONDS:g} s"
    if error is not None:
        log("close failed", level="error", error=error if isinstance(error, str) else described(error))


def _build(target: Target) -> Served | Exception:
    try:
        with USER_CODE:
            return target.build()
    except Exception as error:  # also a StopIteration, which cannot leave a thread as an exception
        return error


def _cannot_load(name: str, error: object) -> int:
    """Print the reason as the last line of standard error: Kubernetes makes it the pod's termination message.

    Messages about the target's shape already begin with its name.
    """
    if isinstance(error, Exception) and not isinstance(error, LoadError):
        sys.stderr.write(trace_of(error))
        error = described(error)
    reason = str(error)
    if not reason.startswith((f"{name}:", f"{name}.")):
        reason = f"{name}: {reason}"
    print(f"penstock.serve: cannot load {reason}", file=sys.stderr, flush=True)
    return 1


async def _end_threads(executor: ThreadPoolExecutor, code: int) -> None:
    """Wait a moment for the model's threads; if one is still at work, end the process immediately."""
    ended = asyncio.get_running_loop().run_in_executor(None, executor.shutdown)
    if not (await asyncio.wait((ended,), timeout=1.0))[0]:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # NB: a normal exit waits for every thread, also of a loading or hanging model


if __name__ == "__main__":
    sys.exit(main())
