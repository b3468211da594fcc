"""Reports the extra that a command needs and is installed without. Imports nothing that an extra brings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def needs(command: str, extra: str) -> Iterator[None]:
    """Wrap a command's imports: if another distribution's package is missing, end the process with a reason.

    Args:
        command: the command that the user called.
        extra: the extra of the distribution `penstock` that brings these packages.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "penstock").startswith("penstock"):
            raise
        raise SystemExit(
            f"{command}: expected the packages of penstock[{extra}], found none named {missing.name!r}; "
            f"in a checkout `pip install '.[{extra}]'` installs them"
        ) from None
