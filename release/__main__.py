"""`python -m release VERSION [STEP…]` builds what a release consists of; it pushes and signs where asked."""

import argparse
import json
import sys
from pathlib import Path

from devcluster.console import step
from devcluster.errors import DevclusterError
from release import bills, chart, images, notes, packages, registry
from release.errors import ReleaseError
from release.version import ROOT, read_commit

BUILD = ("packages", "images", "chart", "bills", "notes", "sums")
PUBLISH = ("push", "sign", "verify")


def main(arguments: list[str] | None = None) -> int:
    """Run the steps; returns the exit code.

    Args:
        arguments: of the command line; None = this process's.
    """
    parser = argparse.ArgumentParser(
        prog="python -m release",
        description="Builds a release into a folder. Without steps: all up to the push; with a registry also "
        "push and sign.",
        epilog="push needs the registry's login (skopeo login, helm registry login); sign needs a key of "
        "cosign's or, without --key, the identity of the workflow that runs it.",
    )
    parser.add_argument("version", help="what pyproject.toml and Chart.yaml say, such as 0.1.0")
    parser.add_argument("steps", nargs="*", metavar="step", help=", ".join(BUILD + PUBLISH))
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder (dist)")
    parser.add_argument("--registry", default="", help="host and path, such as ghcr.io/owner/penstock")
    parser.add_argument("--plain-http", action="store_true", help="the registry speaks HTTP")
    parser.add_argument("--key", type=Path, help="cosign's private key; for verify the public one")
    given = parser.parse_args(arguments)
    steps = given.steps or [*BUILD, *(("push", "sign") if given.registry else ())]
    if unknown := [name for name in steps if name not in BUILD + PUBLISH]:
        parser.error(f"step: expected one of {', '.join(BUILD + PUBLISH)}, found {unknown[0]!r}")
    try:
        if given.registry or "push" in steps:
            given.registry = registry.read_address(given.registry)
        run(steps, given)
    except (ReleaseError, DevclusterError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def run(steps: list[str], given: argparse.Namespace) -> None:
    """Run some steps.

    Args:
        steps: in their order.
        given: the command line.

    Raises:
        ReleaseError: one failed.
        DevclusterError: a program that it needs failed.
    """
    commit, out = read_commit(given.version), given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    listed = out / "pushed.json"
    for name in steps:
        with step(f"{commit.version}: {name}", who="release"):
            if name == "packages":
                packages.build_pure(out, commit.epoch)
                packages.build_compiled(out, commit.epoch)
            elif name == "images":
                for target in images.TITLES:
                    images.build(target, out / "images", commit)
            elif name == "chart":
                chart.package(out, commit, given.registry)
            elif name == "bills":
                bills.write_bills(out, commit)
            elif name == "notes":
                notes.write(out, commit)
            elif name == "sums":
                bills.write_sums(out)
            elif name == "push":
                pushed = registry.push(out, commit, given.registry, plain=given.plain_http)
                listed.write_text(json.dumps(pushed, indent=1) + "\n")
                registry.write_sums(out, pushed)
                # Last: what is signed is known by now, whatever becomes of this.
                registry.push_metadata(given.registry, plain=given.plain_http)
            elif name == "sign":
                pushed = registry.read_pushed(listed)
                registry.sign(pushed, out, commit, key=given.key, plain=given.plain_http)
            elif not given.key:
                raise ReleaseError("--key: expected cosign's public key, found nothing")
            else:
                registry.verify(registry.read_pushed(listed), commit, key=given.key, plain=given.plain_http)


if __name__ == "__main__":
    sys.exit(main())
