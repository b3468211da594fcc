"""Entry point of `kubectl-penstock`, which kubectl runs as `kubectl penstock`."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence

from penstock_wire.extras import needs
from penstock_wire.version import ShowVersion

with needs("kubectl-penstock", "cli"):
    from penstock_cli.cluster import Cluster, CommandError
    from penstock_cli.commands import Command, abort, adopt, pause, promote, rollout, status, top, ui, why
    from penstock_cli.text import Screen

COMMANDS: dict[str, Command] = {
    "status": status,
    "top": top,
    "why": why,
    "rollout": rollout,
    "promote": promote,
    "pause": pause,
    "abort": abort,
    "adopt": adopt,
    "ui": ui,
}


def parser() -> argparse.ArgumentParser:
    """All commands and their arguments."""
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    _add_common(common)
    whole = argparse.ArgumentParser(prog="kubectl penstock", description="What Penstock does, and why.")
    _add_common(whole)
    whole.add_argument("--version", action=ShowVersion)
    commands = whole.add_subparsers(title="commands", required=True, metavar="COMMAND", dest="command")
    for name, command in COMMANDS.items():
        text = command.__doc__ or ""
        subparser = commands.add_parser(
            name,
            parents=[common],
            help=text.split("\n", 1)[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(subparser)
    return whole


def _add_common(parser: argparse.ArgumentParser) -> None:
    """Declare what may stand before a command and after it, as with kubectl."""
    parser.add_argument("-n", "--namespace", help="default: the context's")
    parser.add_argument("--kubeconfig", help="default: $KUBECONFIG, else ~/.kube/config")
    parser.add_argument("--context", help="default: the kubeconfig's current one")


def run(arguments: Sequence[str] | None, screen: Screen) -> int:
    """Run one command.

    Args:
        arguments: of the command line; None for the process's own.
        screen: where it writes.

    Returns:
        The exit code: 0, or 1 where it could not do what it was asked for, or watched a release fail.
    """
    try:
        given = parser().parse_args(arguments)
        cluster = Cluster.connect(given.kubeconfig, given.context, given.namespace)
        return COMMANDS[given.command].run(cluster, given, screen)
    except CommandError as error:
        print(f"kubectl-penstock: {error}", file=sys.stderr)
        return 1


def main() -> int:
    """Entry point."""
    with contextlib.suppress(KeyboardInterrupt):
        try:
            return run(None, Screen.of_terminal())
        except BrokenPipeError:  # such as of `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
    return 130


if __name__ == "__main__":
    sys.exit(main())
