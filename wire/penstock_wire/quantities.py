"""Numbers of bytes as users write them: `10485760`, `10Mi`, `2G`."""

from __future__ import annotations

import re

PATTERN = r"^[0-9]{1,16}([kMGTP]|[KMGTP]i)?$"
_UNITS: dict[str, int] = {
    **{unit: 1000**power for power, unit in enumerate(("", "k", "M", "G", "T", "P"))},
    **{unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), start=1)},
}


def bytes_of(quantity: int | str) -> int:
    """Convert a quantity to bytes: a number, or digits with one of k, Ki, M, Mi, G, Gi, T, Ti, P, Pi.

    Args:
        quantity: as a user writes it.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(quantity, int):
        return quantity
    if re.fullmatch(PATTERN, quantity, re.ASCII) is None:
        raise ValueError(f"expected a number of bytes, or a quantity such as 32Mi, found {quantity!r}")
    digits = quantity.rstrip("kKMGTPi")
    return int(digits) * _UNITS[quantity.removeprefix(digits)]
