"""Says which extra a command needs, where it was installed without. Imports nothing that an extra brings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def needs(command: str, extra: str) -> Iterator[None]:
    """Around a command's imports: where a package of others is missing, the process ends and says why.

    Args:
        command: what its user called.
        extra: the extra of the distribution `penstock` that brings what it imports.
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
