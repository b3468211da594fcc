"""The command `penstock`: `run` serves here, `deploy` on a cluster; `export` prints, `validate` checks."""

from __future__ import annotations

import argparse
import importlib.util
import platform
import subprocess
import sys
from collections.abc import Sequence

from penstock_wire.extras import needs
from penstock_wire.version import ShowVersion

with needs("penstock", "run"):
    from penstock import deploy, export
    from penstock.local import options
    from penstock.local.options import Options
    from penstock.local.session import serve

STARTED_NEED = ("prometheus_client", "yaml")
"""Modules that the router and sidecar of `run` import; checked here so that one message reports them."""
VALIDATE_NEEDS = ("cel_expr_python",)
"""The module that no other extra brings; an extra has all that `validate` imports, or lacks this one."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: the arguments; None: the process's own.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(
        prog="penstock",
        description="Serve models on this machine, and prepare their resources for a cluster.",
    )
    parser.add_argument("--version", action=ShowVersion)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="serve a class or function: model server, sidecar and router on loopback",
        description="Serve a class or function with the programs of a cluster, on loopback, until Ctrl-C.",
    )
    options.add_arguments(run)
    written = commands.add_parser(
        "export",
        help="print a class's or an application's resources",
        description="Print resources for a cluster, one backend and one endpoint for each class.",
    )
    export.add_arguments(written)
    deployed = commands.add_parser(
        "deploy",
        help="serve a class's or an application's code on a cluster, without an image",
        description="Serve code on a cluster with Penstock, in the SDK's image, from a ConfigMap.",
    )
    deploy.add_arguments(deployed)
    checked = commands.add_parser(
        "validate",
        help="check resources as the API server would, without a cluster",
        description="Check resources of YAML files: their schema and rules, and their parts of core/v1.",
    )
    checked.add_argument("files", nargs="+", metavar="FILE", help="YAML; - for standard input")
    argv = sys.argv[1:] if argv is None else argv
    arguments = parser.parse_args(argv)
    if arguments.command == "validate":
        _check("penstock validate", "validate", VALIDATE_NEEDS)
        program = [sys.executable, "-P", "-m", "penstock_operator.validation", *arguments.files]
        return subprocess.run(program, check=False).returncode  # noqa: S603 - our own module
    if arguments.command == "export":
        return export.run(arguments)
    if arguments.command == "deploy":
        return deploy.run(arguments, argv[1:])
    given = vars(arguments)
    del given["command"]
    if (system := platform.system()) != "Linux":
        print(
            f"penstock run: expected Linux, found {system}; run it in a virtual machine (WSL 2 is one), "
            "or serve the class on a cluster with `penstock deploy`",
            file=sys.stderr,
        )
        return 1
    _check("penstock run", "run", STARTED_NEED)
    return serve(Options(**given))


def _check(command: str, extra: str, modules: Sequence[str]) -> None:
    with needs(command, extra):
        for name in modules:
            if importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(f"no module named {name}", name=name)


if __name__ == "__main__":
    sys.exit(main())
