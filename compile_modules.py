"""Compiles the modules that a request passes through with mypyc, which halves their part of a request's CPU.

    python compile_modules.py FOLDER     extension modules into FOLDER, laid out as the packages are
    python compile_modules.py --cached   print a folder with the packages, compiled; made where it is missing

An extension module that lies beside its .py is what Python imports; without it the .py is, and nothing else
differs. So Python is the fallback wherever mypyc or a C compiler is missing, and what one develops with.

Two things decide what is in `MODULES`: that it is on the path of each request or batch, and that mypyc can do
it right. What it does wrong without a word, `faults` and `dangling` find, and no build has it:

- A compiled coroutine that awaits while it handles an exception leaves that exception behind as the one being
  handled, in all that the loop runs later.
- A name that two `except` clauses of a function bind has the type of the first: the second clause raises.
- A compiled `finally` takes a name to have what the `try` gave it, also where that has raised before: the
  `finally` raises then, and what stands behind that is not done.
- A compiled function that calls itself does not have a recursion limit: a full stack ends the process.
- An object of a compiled class below one that is not (`asyncio.Protocol`, `abc.ABC`, `Generic`, an exception)
  takes weak references and does not end them: who follows one later reads freed memory.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
CACHE = ROOT / ".mypyc_cache"
PACKAGES = {
    name: ROOT / name.partition("_")[2] / name
    for name in ("penstock_wire", "penstock_sidecar", "penstock_router")
}
MODULES: dict[str, Sequence[str]] = {
    "penstock_wire": (
        "closed_paths",
        "framing.bodies",
        "framing.call",
        "framing.client",
        "framing.connection",
        "framing.served",
        "headers",
        "hop.bodies",
        "hop.client",
        "hop.exchange",
        "hop.frames",
        "hop.heads",
        "hop.end",
        "hop.server",
        "hop.upstream",
        "http.caches",
        "http.client.answer",
        "http.client.connection",
        "http.client.head",
        "http.client.pool",
        "http.head_cache",
        "http.memory",
        "http.messages",
        "http.sending",
        "http.server.connection",
        "http.server.exchange",
        "http.server.head",
        "http.server.reader",
        "http.server.turns",
        "http.server.writer",
        "http2.asking",
        "http2.call",
        "http2.client",
        "http2.connection",
        "http2.exchange",
        "http2.fields",
        "http2.frames",
        "http2.head",
        "http2.end",
        "http2.inference",
        "http2.members",
        "http2.passed_call",
        "http2.protobuf",
        "http2.rest_upstream",
        "http2.status",
        "http2.tensors",
        "instances_form",
        "json_slices",
        "request_ids",
        "timers",
    ),
    "penstock_sidecar": (
        "admission.controller",
        "admission.error_responses",
        "admission.errors",
        "admission.slots",
        "batching.assembly",
        "batching.batch",
        "batching.bisection",
        "batching.cutter",
        "batching.dispatcher",
        "batching.fault_tracker",
        "batching.item_responses",
        "batching.reuse",
        "batching.runner",
        "batching.turns",
        "estimators.cost_fit",
        "estimators.robust_line",
        "estimators.hold_policy",
        "estimators.latency_model",
        "estimators.model_pace",
        "estimators.return_times",
        "estimators.thrifty_work",
        "estimators.throughput",
        "estimators.wait_estimator",
        "handler",
        "metrics",
        "model.answers",
        "path_guard",
        "protocols.base",
        "protocols.instances",
        "protocols.item_answers",
        "protocols.media_types",
        "protocols.v2",
        "protocols.v2_tensors",
        "queue.batch_key",
        "queue.batch_limits",
        "queue.deadline_list",
        "queue.eviction",
        "queue.fair_queueing",
        "queue.group_size",
        "queue.grouping",
        "queue.key",
        "queue.queue",
        "queue.request",
        "queue.structures",
        "work",
    ),
    "penstock_router": (
        "choice.affinity",
        "choice.load_balancing",
        "choice.match_rules",
        "choice.steering",
        "endpoints",
        "forwarding.counting",
        "forwarding.forwarder",
        "forwarding.outcome",
        "forwarding.request",
        "forwarding.retry",
        "holding.hold_queue",
        "holding.release_window",
        "messages.arrived_head",
        "messages.header_policy",
        "metrics",
        "mirroring.compare",
        "mirroring.compare_queue",
        "mirroring.copy",
        "mirroring.eligibility",
        "mirroring.large_answers",
        "mirroring.mirror",
        "mirroring.mirrors",
        "mirroring.totals",
        "pods.pod",
        "pods.pool",
        "series",
    ),
}
"""What is compiled. Not: what runs once a connection or less often, whose coroutines use `async with`
(`http.server.server`, `http.server.streams`, `http.client.connecting`, the router's `forwarding.proxy`);
`http` and `errors`, which are Protocols and exceptions; `queue.lazy_heap`, which is generic."""
UNABLE = 3
"""Exit code where nothing can be compiled here."""
SHARED = "penstock_hot"
_CONFIG = """[mypy]
explicit_package_bases = True
mypy_path = .
ignore_missing_imports = True
follow_imports = normal
"""


def sources() -> list[Path]:
    """The modules that are compiled."""
    return [
        PACKAGES[package] / f"{name.replace('.', '/')}.py"
        for package, names in MODULES.items()
        for name in names
    ]


def unable() -> str:
    """Why nothing can be compiled here; empty where it can."""
    for module in ("mypyc", "setuptools"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"expected a C compiler, found none ({compiler})"
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        return "Python's header files are missing"
    return ""


def faults(source: str) -> Iterator[tuple[int, str]]:
    """Constructs that mypyc would compile wrongly.

    Args:
        source: a module's text.

    Yields:
        Line, and what is wrong there.
    """
    methods: set[ast.AST] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            methods.update(node.body)
        elif isinstance(node, ast.AsyncWith):
            yield node.lineno, "`async with` awaits while an exception may be handled"
        elif isinstance(node, ast.Try | ast.TryStar):
            handlers = [line for handler in node.handlers for line in handler.body]
            for inner in (child for block in (*handlers, *node.finalbody) for child in ast.walk(block)):
                if isinstance(inner, ast.Await | ast.AsyncFor | ast.Yield | ast.YieldFrom):
                    yield inner.lineno, "it is waited while an exception may be handled"
            given = {name.id for name in _named(node.body) if isinstance(name.ctx, ast.Store)}
            for name in _named(node.finalbody):
                if isinstance(name.ctx, ast.Load) and name.id in given:
                    yield name.lineno, f"`finally` reads `{name.id}`, which its `try` may not have given it"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            itself = f"self.{node.name}" if node in methods else node.name
            for inner in ast.walk(node):
                if isinstance(inner, ast.Call) and ast.unparse(inner.func) == itself:
                    yield inner.lineno, f"`{itself}` calls itself without a limit"
            known: dict[str, str] = {}
            for inner in ast.walk(node):
                if isinstance(inner, ast.ExceptHandler) and inner.name and inner.type:
                    kind = ast.unparse(inner.type)
                    if known.setdefault(inner.name, kind) != kind:
                        yield (
                            inner.lineno,
                            f"`{inner.name}` is bound by an `except` before, too",
                        )


def _named(block: Sequence[ast.stmt]) -> list[ast.Name]:
    """The names in some statements."""
    return [name for line in block for name in ast.walk(line) if isinstance(name, ast.Name)]


def dangling(texts: Mapping[str, str]) -> Iterator[tuple[str, int, str]]:
    """Classes whose objects would take weak references and not end them.

    Args:
        texts: all that is compiled together, by the module's full name.

    Yields:
        Module, line, and what is wrong: a class must have no base, or one that is compiled with it and is no
        `Protocol`; or be a `Protocol`, of which there are no objects; or be left to Python, with
        `@mypyc_attr(native_class=False)`.
    """
    classes = {
        (module, node.name): node
        for module, text in texts.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and not _left_to_python(node)
    }
    safe = {key for key, node in classes.items() if not (node.bases or node.keywords)}
    names = {module: dict(_names(module, text)) for module, text in texts.items()}
    grown = -1
    while grown != len(safe):
        grown = len(safe)
        for (module, name), node in classes.items():
            bases = [names[module].get(ast.unparse(base)) for base in node.bases]
            if not node.keywords and all(base in safe for base in bases):
                safe.add((module, name))
    for (module, name), node in classes.items():
        if (module, name) not in safe and [ast.unparse(base) for base in node.bases] != ["Protocol"]:
            unknown = [ast.unparse(base) for base in (*node.bases, *node.keywords)]
            yield module, node.lineno, f"`{name}` has a base that is not compiled: {', '.join(unknown)}"


def _names(module: str, text: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """The classes that a module's names refer to, as module and name."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            yield node.name, (module, node.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, (node.module, alias.name)


def _left_to_python(node: ast.ClassDef) -> bool:
    return "mypyc_attr(native_class=False)" in map(ast.unparse, node.decorator_list)


def check() -> None:
    """Look for all that mypyc would compile wrongly.

    Raises:
        SystemExit: there is such a construct; the message names its place.
    """
    for path in sources():
        for line, what in faults(path.read_text()):
            raise SystemExit(f"{path}:{line}: mypyc compiles this wrongly: {what}")
    for module, line, what in dangling(texts()):
        raise SystemExit(f"{module}:{line}: mypyc compiles this wrongly: {what}")


def texts() -> dict[str, str]:
    """The source of the compiled modules, by the module's full name."""
    return {
        f"{package}.{name}": (PACKAGES[package] / f"{name.replace('.', '/')}.py").read_text()
        for package, names in MODULES.items()
        for name in names
    }


def compile_into(folder: Path) -> None:
    """Put the extension modules into a folder.

    Raises:
        SystemExit: mypyc or the C compiler has failed, or a module has what mypyc compiles wrongly.
    """
    check()
    with tempfile.TemporaryDirectory(prefix="penstock-mypyc-") as temporary:
        work = Path(temporary)
        for package, source in PACKAGES.items():
            shutil.copytree(source, work / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        (work / "mypy.ini").write_text(_CONFIG)
        # NB: a process of its own, since mypyc and setuptools go by the working folder and sys.argv.
        script = Path(__file__).absolute()
        done = subprocess.run(
            [sys.executable, str(script), "--build"], cwd=work, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{(done.stdout + done.stderr)[-4000:]}\ncompile_modules.py: mypyc has failed")
        for built in sorted(work.glob("*.so")) + sorted(work.glob("penstock_*/**/*.so")):
            target = folder / built.relative_to(work)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(built, target)


def _build() -> None:
    """Compile in the working folder."""
    from mypyc.build import mypycify
    from setuptools import setup
    from setuptools.command.build_ext import build_ext

    class Parallel(build_ext):  # type: ignore[misc]  # setuptools has no types
        """Compiles as many files of C at once as there are processors; setuptools one after another."""

        def build_extensions(self) -> None:
            compiler = self.compiler
            compile_file, compile_files = compiler._compile, compiler.compile  # noqa: SLF001 - no other way
            running: list[Future[None]] = []

            def compile_and_wait(*arguments: Any, **options: Any) -> list[str]:
                objects: list[str] = compile_files(*arguments, **options)
                while running:
                    running.pop().result()
                return objects

            with ThreadPoolExecutor(os.cpu_count()) as pool:
                compiler._compile = lambda *each: running.append(  # noqa: SLF001
                    pool.submit(compile_file, *each)
                )
                compiler.compile = compile_and_wait
                super().build_extensions()

    paths = [f"{name.replace('.', '/')}.py" for name in texts()]
    # NB: one file of C for all takes gcc seven times as long, and gives the same number of instructions.
    extensions = mypycify(
        ["--config-file", "mypy.ini", *paths],
        opt_level="1",
        debug_level="0",
        group_name=SHARED,
        multi_file=True,
    )
    arguments = ["--quiet", "build_ext", "--inplace"]
    setup(name=SHARED, ext_modules=extensions, cmdclass={"build_ext": Parallel}, script_args=arguments)


def cached() -> Path:
    """A folder for PYTHONPATH with the packages and what is compiled of them; made where it is missing.

    Raises:
        SystemExit: it cannot be made.
    """
    flags = [os.environ.get(name, "") for name in ("CC", "CFLAGS", "LDFLAGS")]
    digest = hashlib.sha256(f"{sys.version} {importlib.metadata.version('mypy')} {flags}".encode())
    files = [path for source in PACKAGES.values() for path in sorted(source.rglob("*.py"))]
    for path in (Path(__file__), *files):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    folder = CACHE / digest.hexdigest()[:16]
    if not folder.is_dir():
        CACHE.mkdir(exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=CACHE, prefix="part-"))
        for package, source in PACKAGES.items():
            shutil.copytree(source, made / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        compile_into(made)
        made.chmod(0o755)
        try:
            made.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(made)
        for old in sorted(CACHE.iterdir(), key=lambda path: path.stat().st_mtime)[:-4]:
            shutil.rmtree(old, ignore_errors=True)
    return folder


def main() -> int:
    """Read the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="compile_modules.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="where the extension modules go")
    parser.add_argument("--cached", action="store_true", help="print a folder with the compiled packages")
    parser.add_argument("--if-possible", action="store_true", help="do not fail without a compiler")
    parser.add_argument("--build", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.build:
        _build()
    elif not (arguments.cached or arguments.folder):
        parser.error("expected a folder, or --cached")
    elif why := unable():
        print(f"compile_modules.py: nothing is compiled, the modules stay Python: {why}", file=sys.stderr)
        return 0 if arguments.if_possible else UNABLE
    elif arguments.cached:
        print(cached())
    else:
        compile_into(arguments.folder.absolute())
    return 0


if __name__ == "__main__":
    sys.exit(main())
