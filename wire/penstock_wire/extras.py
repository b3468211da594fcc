"""Reports the extra that a command needs and is installed without. Imports nothing that an extra brings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from penstock_wire.version import DISTRIBUTION


def missing(command: str, extra: str, found: str) -> str:
    """The message where an extra's packages are not installed.

    Args:
        command: what the user called.
        extra: the extra of the distribution that brings these packages.
        found: what was found in their place.
    """
    return (
        f"{command}: expected the packages of {DISTRIBUTION}[{extra}], found {found}; "
        f"`pip install '{DISTRIBUTION}[{extra}]'` installs them, `pip install '.[{extra}]'` in a checkout"
    )


@contextlib.contextmanager
def needs(command: str, extra: str) -> Iterator[None]:
    """Wrap a command's imports: if another distribution's package is missing, end the process with a reason.

    Args:
        command: the command that the user called.
        extra: the extra that brings these packages.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "penstock").startswith("penstock"):
            raise
        raise SystemExit(missing(command, extra, f"none named {error.name!r}")) from None
